#include "data/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace muster::data {
namespace {

// Of one match; PCRE2's default for steps takes a fraction of a second.
constexpr uint32_t kMaxSteps = 10'000'000;
constexpr uint32_t kMaxHeapKibibytes = 64 << 10;
constexpr size_t kMaxStackBytes = 1 << 20;

}  // namespace

struct Regex::State {
  pcre2_code* code = nullptr;
  pcre2_match_data* match = nullptr;
  pcre2_match_context* context = nullptr;
  pcre2_jit_stack* stack = nullptr;
  ~State() {
    pcre2_match_data_free(match);
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
    pcre2_code_free(code);
  }
};

Regex::Regex(std::unique_ptr<State> state) : state_(std::move(state)) {}
Regex::Regex(Regex&& other) noexcept = default;
Regex::~Regex() = default;

absl::StatusOr<Regex> Regex::Make(std::string_view oniguruma) {
  const absl::StatusOr<std::string> pattern = ToPcre2(oniguruma);
  if (!pattern.ok()) return pattern.status();
  auto state = std::make_unique<State>();
  int error = 0;
  PCRE2_SIZE where = 0;
  state->code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern->data()), pattern->size(), PCRE2_UTF, &error, &where, nullptr);
  if (state->code == nullptr) {
    PCRE2_UCHAR message[256] = "";
    pcre2_get_error_message(error, message, sizeof message);
    return absl::InvalidArgumentError(
        absl::StrCat("not a regular expression for PCRE2: ", reinterpret_cast<const char*>(message)));
  }
  pcre2_jit_compile(state->code, PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD);  // slower without
  state->match = pcre2_match_data_create(1, nullptr);
  state->context = pcre2_match_context_create(nullptr);
  state->stack = pcre2_jit_stack_create(32 << 10, kMaxStackBytes, nullptr);
  MUSTER_CHECK(state->match != nullptr && state->context != nullptr, "out of memory");
  pcre2_set_match_limit(state->context, kMaxSteps);
  pcre2_set_heap_limit(state->context, kMaxHeapKibibytes);
  if (state->stack != nullptr) pcre2_jit_stack_assign(state->context, nullptr, state->stack);
  return Regex(std::move(state));
}

absl::StatusOr<Regex::Found> Regex::Find(std::string_view text, size_t at, bool whole) const {
  // A hard partial match is one that looked at the end of the text, in whatever alternative or lookahead.
  const uint32_t options = PCRE2_NO_UTF_CHECK | (whole ? 0 : PCRE2_PARTIAL_HARD);
  const auto run = [&](uint32_t more) {
    return pcre2_match(state_->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at, options | more,
                       state_->match, state_->context);
  };
  int found = run(0);
  if (found == PCRE2_ERROR_JIT_STACKLIMIT) found = run(PCRE2_NO_JIT);
  if (found == PCRE2_ERROR_NOMATCH) return Found{};
  const PCRE2_SIZE* const range = pcre2_get_ovector_pointer(state_->match);
  if (found == PCRE2_ERROR_PARTIAL) return Found{Found::kOpen, range[0], range[1]};
  if (found >= 0) return Found{Found::kMatch, range[0], range[1]};
  PCRE2_UCHAR message[256] = "";
  pcre2_get_error_message(found, message, sizeof message);
  return absl::ResourceExhaustedError(absl::StrCat("the tokenizer's regular expression takes too long on this text: ",
                                                   reinterpret_cast<const char*>(message)));
}

bool IsWord(std::string_view text, size_t at) {
  static const auto* const kWord = [] {
    constexpr char kPattern[] = R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}])";
    int error = 0;
    PCRE2_SIZE where = 0;
    return pcre2_compile(reinterpret_cast<PCRE2_SPTR>(kPattern), PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_ANCHORED,
                         &error, &where, nullptr);
  }();
  MUSTER_CHECK(kWord != nullptr, "the pattern of a word's character");
  pcre2_match_data* const match = pcre2_match_data_create(1, nullptr);
  const int found = pcre2_match(kWord, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at, PCRE2_NO_UTF_CHECK,
                                match, nullptr);
  pcre2_match_data_free(match);
  return found >= 0;
}

}  // namespace muster::data
