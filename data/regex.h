// The regular expressions of tokenizer.json. The `tokenizers` package runs them with Oniguruma; here they are checked,
// written out for PCRE2 and run with it. What the two could understand in different ways is refused:
//   - supported: literals, ., classes (also nested), \s \S \d \D, \p and \P of general categories, \r \n \t \f \v \xHH
//     \x{...} \uHHHH, groups, alternatives, lookahead, atomic groups, the quantifiers of Perl, and (?i:...) around
//     ASCII
//   - refused: anchors, lookbehind, \b, \w, \h, back references, options, &&, POSIX classes, names of scripts, and
//     whatever can match an empty text
// So no expression looks at what precedes its match, and a match depends on later text only if it reaches the end.
// Characters that are newer than PCRE2's tables (Unicode 14) count as what they are in Oniguruma's (Unicode 16).
// Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace muster::data {

// In PCRE2's syntax. InvalidArgument: says what is not supported and where.
absl::StatusOr<std::string> ToPcre2(std::string_view oniguruma);

// The expression that matches `text` and nothing else.
std::string EscapeRegex(std::string_view text);

// `text` with each character that is newer than Unicode 14 replaced by an older one of the same category and length;
// `copy` holds it if there is any.
std::string_view WithStandIns(std::string_view text, std::string& copy);

class Regex {
 public:
  // InvalidArgument: not supported (see above), or too large.
  static absl::StatusOr<Regex> Make(std::string_view oniguruma);
  Regex(Regex&& other) noexcept;
  Regex& operator=(Regex&&) = delete;
  ~Regex();

  struct Found {
    enum Kind { kNothing, kMatch, kOpen } kind = kNothing;
    size_t begin = 0;
    size_t end = 0;  // of a match; not empty
  };
  // The first match at or after `at` in valid UTF-8 that went through WithStandIns. Unless `whole`, more text may
  // follow: kOpen says that it decides about a match at `begin`, and that there is none before.
  // ResourceExhausted: too many steps.
  absl::StatusOr<Found> Find(std::string_view text, size_t at, bool whole) const;

 private:
  struct State;
  explicit Regex(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Whether Rust's \w matches the character at `at`; `text` as in Find.
bool IsWord(std::string_view text, size_t at);

}  // namespace muster::data
