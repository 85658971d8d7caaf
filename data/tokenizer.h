// Byte-level byte-pair tokenizers, from the files that Hugging Face and OpenAI publish.
//
//   auto tokenizer = Tokenizer::Load("Llama-3.2-1B").value();   // a folder, or its tokenizer.json
//   std::vector<uint32_t> ids;
//   tokenizer->Encode("Hello world", ids).IgnoreError();
//   tokenizer->Decode(ids);                                     // "Hello world"
//
// Encode equals encode(text, add_special_tokens=False) of the `tokenizers` package on any UTF-8: added tokens are found
// in the text, the text between them is normalized and split, and byte pairs are merged in each piece. Other bytes are
// encoded, too: a run of them ends the text before it, and is a piece. `truncation` and `padding` are ignored.
// Not thread-safe: it caches encoded pieces and keeps what a stream has not decided yet.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/manifest.pb.h"

namespace muster::data {

class Tokenizer {
 public:
  // `path`: a tokenizer.json, or a folder that holds one, or else vocab.json and merges.txt (OpenAI's encoder.json and
  // vocab.bpe), which split as GPT-2 does and have no added tokens.
  // NotFound: no such file. InvalidArgument: not such files; or what the tokenizer does is not supported: another model
  // than BPE over bytes, a normalizer other than NFC, a pre-tokenizer other than ByteLevel (which must be the last),
  // Split and Digits, and the regular expressions that regex.h lists. The message names the file, the field and the
  // cause.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Load(const std::string& path);
  ~Tokenizer();

  uint64_t vocabulary() const;  // ids are below it

  const TokenizerOrigin& origin() const;  // the files that it was made from

  // Special tokens that the post_processor's template puts before and after a text; Encode does not.
  const std::vector<uint32_t>& before_text() const;
  const std::vector<uint32_t>& after_text() const;
  // tokenizer_config.json's eos_token, else the template's last token after a text, else the token "<|endoftext|>",
  // "<|end_of_text|>" or "</s>".
  std::optional<uint32_t> end_of_text() const;

  // Appends the ids of `text`. ResourceExhausted: a regular expression took too long; the tokenizer is of no further
  // use.
  absl::Status Encode(std::string_view text, std::vector<uint32_t>& ids);
  // The same for the next part of a stream, which may end anywhere. Appends the ids that later parts cannot change and
  // keeps the rest; `last` ends the stream. What is kept is short but for a run of letters or white space without end,
  // or a tokenizer whose only splitter is a ByteLevel with use_regex false: that one needs a whole text.
  absl::Status EncodePart(std::string_view part, bool last, std::vector<uint32_t>& ids);

  // Bytes that had no token and were left out, as the `tokenizers` package does: some vocabularies have no token for
  // some control characters.
  uint64_t bytes_left_out() const;

  // Returns bytes, which may begin or end inside a character. Special tokens are text, unknown ids are skipped.
  std::string Decode(absl::Span<const uint32_t> ids) const;

 private:
  struct State;
  explicit Tokenizer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace muster::data
