#include "data/token_file.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "data/file_pattern.h"

namespace muster::data {
namespace {

constexpr uint64_t kCheckedBytes = 1 << 20;  // in one block, where not everything is read

absl::Status Outside(const TokenShard& shard, uint64_t position, uint64_t vocabulary) {
  uint32_t token = 0;
  if (absl::Status status = shard.Read(position, absl::MakeSpan(&token, 1)); !status.ok()) return status;
  return absl::OutOfRangeError(
      absl::StrCat(shard.path(), ": token ", token, " at position ", position, " is not below the vocabulary of ",
                   vocabulary, ": the file was made with another tokenizer, or model.vocabulary is too small"));
}

}  // namespace

absl::StatusOr<TokenFile> TokenFile::Open(const std::string& pattern, uint64_t context) {
  const absl::StatusOr<std::vector<std::string>> paths = FilesOf(pattern);
  if (!paths.ok()) return paths.status();
  TokenFile file;
  std::set<std::string> opened;  // a pattern may match both files of a Megatron pair
  uint64_t tokens = 0;
  for (const std::string& path : *paths) {
    absl::StatusOr<TokenShard> shard = TokenShard::Open(path);
    if (!shard.ok()) return shard.status();
    if (!opened.insert(shard->path()).second) continue;
    tokens += shard->tokens();
    file.shards_.push_back(*std::move(shard));
    file.ends_.push_back(tokens);
  }
  if (tokens < context + 1) {
    return absl::InvalidArgumentError(absl::StrCat(pattern, " holds ", tokens, tokens == 1 ? " token" : " tokens",
                                                   ", but one sample needs ", context + 1,
                                                   " (context + 1): use a longer text or a smaller model.context"));
  }
  return file;
}

absl::Status TokenFile::Read(uint64_t begin, absl::Span<uint32_t> out) const {
  size_t shard = std::upper_bound(ends_.begin(), ends_.end(), begin) - ends_.begin();
  while (!out.empty()) {
    const uint64_t shard_begin = ends_[shard] - shards_[shard].tokens();
    const uint64_t count = std::min<uint64_t>(out.size(), ends_[shard] - begin);
    if (absl::Status status = shards_[shard].Read(begin - shard_begin, out.first(count)); !status.ok()) return status;
    begin += count;
    out.remove_prefix(count);
    ++shard;
  }
  return absl::OkStatus();
}

absl::Status TokenFile::CheckVocabulary(uint64_t vocabulary, uint64_t most_bytes) const {
  uint64_t blocks = 0, number = 0;
  for (const TokenShard& shard : shards_) blocks += shard.tokens() * shard.width() / kCheckedBytes + 1;
  const uint64_t most = std::max<uint64_t>(most_bytes / kCheckedBytes, 1);
  const uint64_t stride = (blocks + most - 1) / most;  // of so many blocks one is read
  for (const TokenShard& shard : shards_) {
    const uint64_t block = stride == 1 ? shard.tokens() : kCheckedBytes / shard.width();
    for (uint64_t begin = 0; begin < shard.tokens(); begin += block) {
      if (number++ % stride != 0) continue;
      const absl::StatusOr<uint64_t> position = shard.FindOutside(vocabulary, begin, begin + block);
      if (!position.ok()) return position.status();
      if (*position < shard.tokens()) return Outside(shard, *position, vocabulary);
    }
  }
  return absl::OkStatus();
}

}  // namespace muster::data
