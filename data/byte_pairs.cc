#include "data/byte_pairs.h"

#include <algorithm>
#include <limits>
#include <queue>
#include <unordered_map>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "data/utf8.h"

namespace muster::data {
namespace {

constexpr size_t kRememberedPieces = 1 << 17, kRememberedBytes = 32;
constexpr uint32_t kNoToken = std::numeric_limits<uint32_t>::max();

// The character that represents each byte: itself if printable, else one from U+0100 on.
std::array<uint32_t, 256> ByteCharacters() {
  std::array<uint32_t, 256> characters;
  uint32_t next = 256;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool prints = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    characters[byte] = prints ? byte : next++;
  }
  return characters;
}

// None: the name has a character that stands for no byte.
std::optional<std::string> BytesOfName(const std::string& name) {
  static const auto* const kBytes = [] {
    auto* bytes = new std::unordered_map<uint32_t, char>;
    const auto characters = ByteCharacters();
    for (uint32_t byte = 0; byte < 256; ++byte) (*bytes)[characters[byte]] = static_cast<char>(byte);
    return bytes;
  }();
  std::string out;
  for (size_t at = 0; at < name.size();) {
    const size_t bytes = CharacterBytes(name, at);
    const auto found = bytes == 0 ? kBytes->end() : kBytes->find(CharacterAt(name, at));
    if (found == kBytes->end()) return std::nullopt;
    out.push_back(found->second);
    at += bytes;
  }
  return out;
}

uint64_t Pair(uint32_t left, uint32_t right) { return uint64_t{left} << 32 | right; }

absl::string_view Key(std::string_view text) { return {text.data(), text.size()}; }

}  // namespace

std::string NamedBytes(const std::string& name) { return BytesOfName(name).value_or(name); }

absl::Status BytePairs::Add(const std::string& name, uint64_t id) {
  if (id >= kMaxTokenIds) {
    return absl::InvalidArgumentError(absl::StrCat("the id of \"", name, "\" is not below ", kMaxTokenIds));
  }
  if (bytes_.size() <= id) {
    bytes_.resize(id + 1);
    named_.resize(id + 1);
  }
  if (named_[id]) return absl::InvalidArgumentError(absl::StrCat("two tokens have the id ", id));
  named_[id] = true;
  bytes_[id] = NamedBytes(name);
  ids_[name] = static_cast<uint32_t>(id);
  return absl::OkStatus();
}

absl::StatusOr<BytePairs> BytePairs::Make(const BytePairTable& table) {
  BytePairs pairs;
  for (const auto& [name, id] : table.names) {
    if (absl::Status status = pairs.Add(name, id); !status.ok()) return status;
    if (!table.ignore_merges) continue;
    if (std::optional<std::string> bytes = BytesOfName(name)) pairs.whole_[*std::move(bytes)] = pairs.ids_[name];
  }
  const auto characters = ByteCharacters();
  for (uint32_t byte = 0; byte < 256; ++byte) {
    std::string name;
    AppendUtf8(characters[byte], name);
    pairs.byte_ids_[byte] = pairs.IdOf(name).value_or(kNoToken);
    if (pairs.byte_ids_[byte] == kNoToken && !pairs.missing_byte_.has_value()) pairs.missing_byte_ = byte;
  }
  uint32_t rank = 0;
  for (const auto& [left, right] : table.merges) {
    for (const std::string& name : {left, right, left + right}) {
      if (pairs.ids_.contains(name)) continue;
      return absl::InvalidArgumentError(absl::StrCat("merge ", rank + 1, ", \"", left, "\" and \"", right, "\": \"",
                                                     name, "\" is not in the vocabulary: do the two belong together?"));
    }
    // Of equal merges the last counts, as in the `tokenizers` package.
    pairs.merges_[Pair(pairs.ids_[left], pairs.ids_[right])] = {rank++, pairs.ids_[left + right]};
  }
  return pairs;
}

std::optional<uint32_t> BytePairs::IdOf(const std::string& name) const {
  const auto found = ids_.find(name);
  if (found == ids_.end()) return std::nullopt;
  return found->second;
}

const std::string& BytePairs::BytesOf(uint32_t id) const {
  static const auto& none = *new std::string;
  return id < bytes_.size() ? bytes_[id] : none;
}

// Merges the pair of lowest rank first, and the leftmost of equal ones, with a heap of candidates over a linked list:
// O(n log n) for a piece of n bytes.
void BytePairs::MergePairs(std::vector<uint32_t>& symbols) const {
  constexpr size_t kNone = std::numeric_limits<size_t>::max();
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
    if (const auto found = merges_.find(pair); found != merges_.end()) {
      queue.push({found->second.rank, at, pair, found->second.id});
    }
  };
  for (size_t i = 0; i < symbols.size(); ++i) offer(i);
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    const size_t right = symbols[best.at] == kNoToken ? kNone : next[best.at];
    if (right == kNone || Pair(symbols[best.at], symbols[right]) != best.pair) continue;  // merged meanwhile
    symbols[best.at] = best.id;
    symbols[right] = kNoToken;
    next[best.at] = next[right];
    if (next[right] != kNone) previous[next[right]] = best.at;
    offer(previous[best.at]);
    offer(best.at);
  }
  symbols.erase(std::remove(symbols.begin(), symbols.end(), kNoToken), symbols.end());
}

void BytePairs::EncodeAnew(std::string_view piece, std::vector<uint32_t>& ids) const {
  if (const auto whole = whole_.find(Key(piece)); whole != whole_.end()) {
    ids.push_back(whole->second);
    return;
  }
  std::vector<uint32_t> symbols;
  symbols.reserve(piece.size());
  for (const char c : piece) {
    if (const uint32_t id = byte_ids_[static_cast<uint8_t>(c)]; id != kNoToken) symbols.push_back(id);
  }
  MergePairs(symbols);
  ids.insert(ids.end(), symbols.begin(), symbols.end());
}

void BytePairs::Encode(std::string_view piece, std::vector<uint32_t>& ids) {
  if (missing_byte_.has_value() && !whole_.contains(Key(piece))) {
    left_out_ += std::count_if(piece.begin(), piece.end(),
                               [&](char c) { return byte_ids_[static_cast<uint8_t>(c)] == kNoToken; });
  }
  if (piece.size() > kRememberedBytes) return EncodeAnew(piece, ids);
  auto found = remembered_.find(Key(piece));
  if (found == remembered_.end()) {
    if (remembered_.size() >= kRememberedPieces) {
      remembered_.clear();
      remembered_ids_.clear();
    }
    const auto begin = static_cast<uint32_t>(remembered_ids_.size());
    EncodeAnew(piece, remembered_ids_);
    const auto size = static_cast<uint32_t>(remembered_ids_.size()) - begin;
    found = remembered_.emplace(std::string(piece), Remembered{begin, size}).first;
  }
  const uint32_t* const begin = remembered_ids_.data() + found->second.begin;
  ids.insert(ids.end(), begin, begin + found->second.size);
}

}  // namespace muster::data
