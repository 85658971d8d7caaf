#include "data/bpe.h"

#include <algorithm>
#include <array>
#include <limits>
#include <queue>
#include <unordered_map>
#include <utility>

#include <nlohmann/json.hpp>
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/file/read_file.h"
#include "data/split.h"

namespace muster::data {
namespace {

constexpr char kEndOfText[] = "<|endoftext|>";
constexpr size_t kRememberedPieces = 1 << 17, kRememberedBytes = 32;
constexpr uint64_t kMaxFileBytes = 256 << 20;

// The character that represents each byte in the two files: itself if printable, else one from U+0100 on.
std::array<uint32_t, 256> ByteCharacters() {
  std::array<uint32_t, 256> characters;
  uint32_t next = 256;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool prints = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    characters[byte] = prints ? byte : next++;
  }
  return characters;
}

std::string Utf8(uint32_t character) {  // below U+0800
  if (character < 0x80) return std::string(1, static_cast<char>(character));
  return {static_cast<char>(0xc0 | character >> 6), static_cast<char>(0x80 | (character & 0x3f))};
}

// Decodes a name of the vocabulary to bytes; none: it holds other characters (a special token).
std::optional<std::string> BytesOf(const std::string& name) {
  static const auto* const kBytes = [] {
    auto* bytes = new std::unordered_map<uint32_t, char>;
    const auto characters = ByteCharacters();
    for (uint32_t byte = 0; byte < 256; ++byte) (*bytes)[characters[byte]] = static_cast<char>(byte);
    return bytes;
  }();
  std::string out;
  for (size_t i = 0; i < name.size(); ++i) {
    uint32_t character = static_cast<uint8_t>(name[i]);
    if (character >= 0xc2 && character < 0xe0 && i + 1 < name.size()) {
      character = (character & 0x1f) << 6 | (static_cast<uint8_t>(name[++i]) & 0x3f);
    }
    const auto found = kBytes->find(character);
    if (found == kBytes->end()) return std::nullopt;
    out.push_back(found->second);
  }
  return out;
}

struct Merge {
  uint32_t rank = 0;
  uint32_t id = 0;  // of the result
};

uint64_t Pair(uint32_t left, uint32_t right) { return uint64_t{left} << 32 | right; }

}  // namespace

struct Bpe::State {
  Splitter splitter;
  std::unordered_map<std::string, uint32_t> ids;  // by name
  std::vector<std::string> bytes;                 // by id
  std::array<uint32_t, 256> byte_ids;
  std::unordered_map<uint64_t, Merge> merges;
  std::optional<uint32_t> end_of_text;
  std::unordered_map<std::string, std::vector<uint32_t>> remembered;

  absl::Status LoadVocabulary(const std::string& path);
  absl::Status LoadMerges(const std::string& path);
  void MergePairs(std::vector<uint32_t>& symbols) const;
  void EncodePiece(std::string_view piece, std::vector<uint32_t>& out);
};

absl::Status Bpe::State::LoadVocabulary(const std::string& path) {
  const auto wrong = [&](auto... what) { return absl::InvalidArgumentError(absl::StrCat(path, what...)); };
  const absl::StatusOr<std::string> text = ReadWhole(path, kMaxFileBytes);
  if (!text.ok()) return text.status();
  const auto json = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    return wrong(" is no JSON object of names and ids: expected GPT-2's encoder.json or vocab.json");
  }
  for (const auto& [name, id] : json.items()) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= (1u << 24)) {
      return wrong(": the id of \"", name, "\" is no whole number below ", 1u << 24);
    }
    const auto number = id.get<uint32_t>();
    if (bytes.size() <= number) bytes.resize(number + 1);
    bytes[number] = BytesOf(name).value_or(name);
    ids[name] = number;
    if (name == kEndOfText) end_of_text = number;
  }
  const auto characters = ByteCharacters();
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const auto found = ids.find(Utf8(characters[byte]));
    if (found == ids.end()) {
      return wrong(" has no id for byte ", byte, ", \"", Utf8(characters[byte]),
                   "\": it is no byte-level vocabulary as GPT-2's");
    }
    byte_ids[byte] = found->second;
  }
  return absl::OkStatus();
}

absl::Status Bpe::State::LoadMerges(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadWhole(path, kMaxFileBytes);
  if (!text.ok()) return text.status();
  uint32_t rank = 0;
  size_t number = 0;
  for (absl::string_view line : absl::StrSplit(*text, '\n')) {
    ++number;
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (line.empty() || (number == 1 && line.substr(0, 8) == "#version")) continue;
    const auto wrong = [&](auto... what) {
      return absl::InvalidArgumentError(absl::StrCat(path, ":", number, ": ", what...));
    };
    const std::vector<std::string> parts = absl::StrSplit(line, ' ');
    if (parts.size() != 2)
      return wrong("expected two names with a space between them, as GPT-2's vocab.bpe or merges.txt");
    const auto left = ids.find(parts[0]), right = ids.find(parts[1]), both = ids.find(parts[0] + parts[1]);
    for (const auto& [found, name] :
         {std::pair(left, parts[0]), std::pair(right, parts[1]), std::pair(both, parts[0] + parts[1])}) {
      if (found == ids.end())
        return wrong("\"", name, "\" is not in the vocabulary: do the two files belong together?");
    }
    merges.emplace(Pair(left->second, right->second), Merge{rank++, both->second});
  }
  return absl::OkStatus();
}

// Merges the pair of lowest rank first, and the leftmost of equal ones, with a heap of candidates over a linked list:
// O(n log n) for a piece of n bytes.
void Bpe::State::MergePairs(std::vector<uint32_t>& symbols) const {
  constexpr size_t kNone = std::numeric_limits<size_t>::max();
  constexpr uint32_t kGone = std::numeric_limits<uint32_t>::max();
  struct Candidate {
    uint32_t rank;
    size_t at;
    uint64_t pair;
    uint32_t id;
    bool operator<(const Candidate& other) const { return std::pair(rank, at) > std::pair(other.rank, other.at); }
  };
  std::vector<size_t> next(symbols.size()), previous(symbols.size());
  for (size_t i = 0; i < symbols.size(); ++i) {
    next[i] = i + 1 < symbols.size() ? i + 1 : kNone;
    previous[i] = i == 0 ? kNone : i - 1;
  }
  std::priority_queue<Candidate> queue;
  const auto offer = [&](size_t at) {
    if (at == kNone || next[at] == kNone) return;
    const uint64_t pair = Pair(symbols[at], symbols[next[at]]);
    if (const auto found = merges.find(pair); found != merges.end()) {
      queue.push({found->second.rank, at, pair, found->second.id});
    }
  };
  for (size_t i = 0; i < symbols.size(); ++i) offer(i);
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    const size_t right = symbols[best.at] == kGone ? kNone : next[best.at];
    if (right == kNone || Pair(symbols[best.at], symbols[right]) != best.pair) continue;  // merged meanwhile
    symbols[best.at] = best.id;
    symbols[right] = kGone;
    next[best.at] = next[right];
    if (next[right] != kNone) previous[next[right]] = best.at;
    offer(previous[best.at]);
    offer(best.at);
  }
  symbols.erase(std::remove(symbols.begin(), symbols.end(), kGone), symbols.end());
}

void Bpe::State::EncodePiece(std::string_view piece, std::vector<uint32_t>& out) {
  if (piece.size() > kRememberedBytes) {
    std::vector<uint32_t> symbols;
    for (const char c : piece) symbols.push_back(byte_ids[static_cast<uint8_t>(c)]);
    MergePairs(symbols);
    out.insert(out.end(), symbols.begin(), symbols.end());
    return;
  }
  if (remembered.size() >= kRememberedPieces) remembered.clear();
  const auto [found, fresh] = remembered.try_emplace(std::string(piece));
  if (fresh) {
    for (const char c : piece) found->second.push_back(byte_ids[static_cast<uint8_t>(c)]);
    MergePairs(found->second);
  }
  out.insert(out.end(), found->second.begin(), found->second.end());
}

Bpe::Bpe(std::unique_ptr<State> state) : state_(std::move(state)) {}
Bpe::~Bpe() = default;

absl::StatusOr<std::unique_ptr<Bpe>> Bpe::Load(const std::string& vocabulary, const std::string& merges) {
  auto state = std::make_unique<State>();
  if (absl::Status status = state->LoadVocabulary(vocabulary); !status.ok()) return status;
  if (absl::Status status = state->LoadMerges(merges); !status.ok()) return status;
  return std::unique_ptr<Bpe>(new Bpe(std::move(state)));
}

uint64_t Bpe::vocabulary() const { return state_->bytes.size(); }

std::optional<uint32_t> Bpe::end_of_text() const { return state_->end_of_text; }

void Bpe::Encode(std::string_view text, std::vector<uint32_t>& ids) { EncodePart(text, /*last=*/true, ids); }

size_t Bpe::EncodePart(std::string_view text, bool last, std::vector<uint32_t>& ids) {
  return state_->splitter.Split(text, last, [&](std::string_view piece) { state_->EncodePiece(piece, ids); });
}

std::string Bpe::Decode(absl::Span<const uint32_t> ids) const {
  std::string text;
  for (const uint32_t id : ids) {
    if (id < state_->bytes.size()) text += state_->bytes[id];
  }
  return text;
}

}  // namespace muster::data
