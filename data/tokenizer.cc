#include "data/tokenizer.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "data/added_tokens.h"
#include "data/byte_pairs.h"
#include "data/nfc.h"
#include "data/text_stage.h"
#include "data/tokenizer_file.h"
#include "data/utf8.h"

namespace muster::data {

struct Tokenizer::State {
  explicit State(BytePairs byte_pairs) : pairs(std::move(byte_pairs)) {}

  absl::Status AddTokens(const TokenizerFile& file);
  absl::Status BuildStages(const TokenizerFile& file);
  void FindEndOfText(const TokenizerFile& file);
  std::optional<uint32_t> IdOf(const std::string& name) const;
  absl::Status Feed(std::string_view text, bool last);

  BytePairs pairs;
  TokenizerOrigin origin;
  absl::flat_hash_map<uint32_t, std::string> added_bytes;  // by id
  absl::flat_hash_map<std::string, uint32_t> added_ids;    // by content
  uint64_t vocabulary = 0;
  std::vector<uint32_t> before_text, after_text;
  std::optional<uint32_t> end_of_text;

  std::vector<uint32_t>* out = nullptr;  // of the call that is under way
  StagePointer first;
  absl::Status failed;
  std::string held;     // bytes that may begin a character, after `invalid`
  std::string invalid;  // a run of bytes that are no characters, which may go on
};

absl::Status Tokenizer::State::AddTokens(const TokenizerFile& file) {
  vocabulary = pairs.ids_end();
  // The package's rule: a token that the model has keeps its id, others get the next one.
  uint64_t next = pairs.size();
  for (const AddedToken& token : file.added) {
    if (added_ids.contains(token.content)) {
      return absl::InvalidArgumentError(absl::StrCat(file.path, ": added_tokens: \"", token.content, "\" comes twice"));
    }
    const std::optional<uint32_t> known = pairs.IdOf(token.content);
    const uint64_t id = known.value_or(next);
    if (id != token.id) {
      return absl::InvalidArgumentError(absl::StrCat(file.path, ": added_tokens: \"", token.content, "\" says id ",
                                                     token.id, ", but Hugging Face's tokenizers gives it ", id));
    }
    added_ids[token.content] = static_cast<uint32_t>(id);
    std::string copy;
    const bool normalize = file.nfc && token.normalized;
    added_bytes[id] = NamedBytes(normalize ? std::string(Nfc(token.content, copy)) : token.content);
    next = std::max(next, id + 1);
    vocabulary = std::max(vocabulary, id + 1);
  }
  return absl::OkStatus();
}

absl::Status Tokenizer::State::BuildStages(const TokenizerFile& file) {
  first = CollectPieces([this](std::string_view piece) { pairs.Encode(piece, *out); });
  for (size_t i = file.splits.size(); true; --i) {
    if (file.prefix_space == i) first = PrefixSpace(std::move(first));
    if (i == 0) break;
    absl::StatusOr<StagePointer> split = SplitBy(file.splits[i - 1], std::move(first));
    if (!split.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(file.path, ": pre_tokenizer: ", split.status().message()));
    }
    first = *std::move(split);
  }
  std::vector<AddedToken> before, after;
  for (const bool special : {true, false}) {
    for (const AddedToken& token : file.added) {
      if (token.special == special) (token.normalized ? after : before).push_back(token);
    }
  }
  const auto emit = [this](uint32_t id) { out->push_back(id); };
  std::string copy;
  if (file.nfc) {
    for (AddedToken& token : after) token.content = Nfc(std::string(token.content), copy);
  }
  if (!after.empty()) first = SplitAtTokens(after, emit, std::move(first));
  if (file.nfc) first = NormalizeNfc(std::move(first));
  if (!before.empty()) first = SplitAtTokens(before, emit, std::move(first));
  return absl::OkStatus();
}

std::optional<uint32_t> Tokenizer::State::IdOf(const std::string& name) const {
  const auto found = added_ids.find(name);
  return found == added_ids.end() ? pairs.IdOf(name) : found->second;
}

void Tokenizer::State::FindEndOfText(const TokenizerFile& file) {
  if (file.end_of_text.has_value()) end_of_text = IdOf(*file.end_of_text);
  if (!end_of_text.has_value() && !after_text.empty()) end_of_text = after_text.back();
  for (const char* name : {"<|endoftext|>", "<|end_of_text|>", "</s>"}) {
    if (!end_of_text.has_value()) end_of_text = IdOf(name);
  }
}

absl::Status Tokenizer::State::Feed(std::string_view text, bool last) {
  if (!held.empty()) {
    held += text;
    text = held;
  }
  const size_t whole = text.size() - (last ? 0 : IncompleteBytes(text));
  size_t at = 0;
  while (at < whole) {
    size_t end = at;
    for (size_t length = 1; end < whole && length > 0; end += length) {
      end = FindByteFrom(text.substr(0, whole), end, 0x80);
      length = end < whole ? CharacterBytes(text.substr(0, whole), end) : 0;
    }
    if (end > at) {
      if (!invalid.empty()) pairs.Encode(std::exchange(invalid, ""), *out);
      if (absl::Status status = first->Feed(text.substr(at, end - at), false); !status.ok()) return status;
    }
    at = end;
    if (at == whole) break;
    if (invalid.empty()) {
      if (absl::Status status = first->Feed("", true); !status.ok()) return status;
    }
    for (; at < whole && CharacterBytes(text.substr(0, whole), at) == 0; ++at) invalid += text[at];
  }
  if (last && !invalid.empty()) pairs.Encode(std::exchange(invalid, ""), *out);
  held = std::string(text.substr(whole));
  return last ? first->Feed("", true) : absl::OkStatus();
}

Tokenizer::Tokenizer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Tokenizer::~Tokenizer() = default;

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Load(const std::string& path) {
  const absl::StatusOr<TokenizerFile> file = ReadTokenizer(path);
  if (!file.ok()) return file.status();
  absl::StatusOr<BytePairs> pairs = BytePairs::Make(file->pairs);
  if (!pairs.ok()) return absl::InvalidArgumentError(absl::StrCat(file->path, ": ", pairs.status().message()));
  if (file->every_byte && pairs->missing_byte().has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(file->path, ": has no token for byte ", *pairs->missing_byte(),
                                                   ": it is not a byte-level vocabulary as GPT-2's"));
  }
  auto state = std::make_unique<State>(*std::move(pairs));
  if (absl::Status status = state->AddTokens(*file); !status.ok()) return status;
  if (absl::Status status = state->BuildStages(*file); !status.ok()) return status;
  state->before_text = file->before_text;
  state->after_text = file->after_text;
  for (const auto* ids : {&state->before_text, &state->after_text}) {
    for (const uint32_t id : *ids) {
      if (id < state->vocabulary) continue;
      return absl::InvalidArgumentError(absl::StrCat(file->path, ": post_processor: no token has the id ", id));
    }
  }
  state->FindEndOfText(*file);
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(path, error);
  state->origin.set_path(error ? path : absolute.lexically_normal().string());
  state->origin.set_sha256(file->sha256);
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::move(state)));
}

const TokenizerOrigin& Tokenizer::origin() const { return state_->origin; }
uint64_t Tokenizer::vocabulary() const { return state_->vocabulary; }
const std::vector<uint32_t>& Tokenizer::before_text() const { return state_->before_text; }
const std::vector<uint32_t>& Tokenizer::after_text() const { return state_->after_text; }
std::optional<uint32_t> Tokenizer::end_of_text() const { return state_->end_of_text; }
uint64_t Tokenizer::bytes_left_out() const { return state_->pairs.left_out(); }

absl::Status Tokenizer::Encode(std::string_view text, std::vector<uint32_t>& ids) {
  return EncodePart(text, /*last=*/true, ids);
}

absl::Status Tokenizer::EncodePart(std::string_view part, bool last, std::vector<uint32_t>& ids) {
  if (!state_->failed.ok()) return state_->failed;
  state_->out = &ids;
  state_->failed = state_->Feed(part, last);
  state_->out = nullptr;
  return state_->failed;
}

std::string Tokenizer::Decode(absl::Span<const uint32_t> ids) const {
  std::string text;
  for (const uint32_t id : ids) {
    const auto added = state_->added_bytes.find(id);
    text += added == state_->added_bytes.end() ? state_->pairs.BytesOf(id) : added->second;
  }
  return text;
}

}  // namespace muster::data
