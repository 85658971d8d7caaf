#include "data/tensors/tensor_file.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/some_of.h"
#include "data/file_pattern.h"

namespace muster::data {
namespace {

using checkpoint::TensorEntry;

constexpr uint64_t kScanElements = 1 << 17;
constexpr size_t kItemsNamed = 8;  // of a list, in a message

// What a safetensors file calls it.
const char* DtypeName(const BatchTensor& tensor) { return tensor.type() == BatchTensor::INT64 ? "I64" : "F32"; }

// A file may hold anything as a name.
std::string Quoted(const std::string& name) {
  constexpr size_t kMostBytes = 64;
  return absl::StrCat("\"", absl::CHexEscape(name.substr(0, kMostBytes)), name.size() > kMostBytes ? "..." : "", "\"");
}

absl::Status CheckTensor(const std::string& path, const BatchTensor& expected, const TensorEntry& found) {
  const auto wrong = [&](const auto&... parts) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": the tensor ", Quoted(expected.name()), " ", parts...));
  };
  if (found.dtype != DtypeName(expected)) {
    return wrong("is of ", found.dtype, ", the model reads ", DtypeName(expected));
  }
  const bool same = found.shape.size() == static_cast<size_t>(expected.shape_size()) + 1 &&
                    std::equal(expected.shape().begin(), expected.shape().end(), found.shape.begin() + 1);
  if (same) return absl::OkStatus();
  const std::vector<std::string> shape = [&] {
    std::vector<std::string> sizes = {"samples"};
    for (const uint64_t n : expected.shape()) sizes.push_back(absl::StrCat(n));
    return sizes;
  }();
  return wrong("has the shape [", SomeOf(found.shape, kItemsNamed), "], the model reads [", absl::StrJoin(shape, ", "),
               "]");
}

}  // namespace

TensorFile::TensorFile(const Task& task) : task_(task) {
  for (const BatchTensor& tensor : task.tensors()) {
    uint64_t bytes = checkpoint::DtypeBytes(DtypeName(tensor));
    for (const uint64_t n : tensor.shape()) bytes *= n;
    sample_bytes_.push_back(bytes);
  }
}

absl::StatusOr<TensorFile> TensorFile::Open(const std::string& pattern, const Task& task) {
  const absl::StatusOr<std::vector<std::string>> paths = FilesOf(pattern);
  if (!paths.ok()) return paths.status();
  TensorFile file(task);
  for (const std::string& path : *paths) {
    if (absl::Status status = file.Add(path); !status.ok()) return status;
  }
  return file;
}

absl::Status TensorFile::Add(const std::string& path) {
  absl::StatusOr<checkpoint::SafetensorsFile> file = checkpoint::SafetensorsFile::Open(path);
  if (!file.ok()) return file.status();
  const std::vector<TensorEntry>& found = file->header().tensors;
  std::vector<TensorEntry> tensors;
  for (const BatchTensor& expected : task_.tensors()) {
    const auto entry =
        std::find_if(found.begin(), found.end(), [&](const TensorEntry& e) { return e.name == expected.name(); });
    if (entry == found.end()) {
      const auto name = [](std::string* out, const TensorEntry& e) { absl::StrAppend(out, Quoted(e.name)); };
      return absl::InvalidArgumentError(absl::StrCat(path, ": has no tensor ", Quoted(expected.name()),
                                                     ", which the model reads; it has ",
                                                     found.empty() ? "none" : SomeOf(found, kItemsNamed, ", ", name)));
    }
    if (absl::Status status = CheckTensor(path, expected, *entry); !status.ok()) return status;
    if (!tensors.empty() && entry->shape[0] != tensors[0].shape[0]) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": the tensor ", Quoted(entry->name), " has ",
                                                     entry->shape[0], " samples, but ", Quoted(tensors[0].name),
                                                     " has ", tensors[0].shape[0]));
    }
    tensors.push_back(*entry);
  }
  if (tensors[0].shape[0] == 0) return absl::InvalidArgumentError(absl::StrCat(path, ": holds no samples"));
  ends_.push_back((ends_.empty() ? 0 : ends_.back()) + tensors[0].shape[0]);
  shards_.push_back({*std::move(file), std::move(tensors)});
  return absl::OkStatus();
}

absl::Status TensorFile::Read(size_t tensor, absl::Span<const uint64_t> records, char* out) const {
  const uint64_t bytes = sample_bytes_[tensor];
  for (size_t i = 0; i < records.size();) {
    const size_t s = std::upper_bound(ends_.begin(), ends_.end(), records[i]) - ends_.begin();
    const Shard& shard = shards_[s];
    size_t run = 1;  // neighbors in the file, read at once
    while (i + run < records.size() && records[i + run] == records[i] + run && records[i + run] < ends_[s]) ++run;
    const uint64_t first = records[i] - (s == 0 ? 0 : ends_[s - 1]);
    absl::Status status = shard.file.Read(shard.tensors[tensor], first * bytes, run * bytes, out + i * bytes);
    if (!status.ok()) return status;
    i += run;
  }
  return absl::OkStatus();
}

absl::Status TensorFile::CheckBounds() const {
  for (const Shard& shard : shards_) {
    for (size_t t = 0; t < shard.tensors.size(); ++t) {
      if (task_.tensors(static_cast<int>(t)).type() != BatchTensor::INT64) continue;
      if (absl::Status status = CheckBoundsOf(shard, t); !status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

absl::Status TensorFile::CheckBoundsOf(const Shard& shard, size_t tensor) const {
  const uint64_t bound = task_.tensors(static_cast<int>(tensor)).bound();
  const TensorEntry& entry = shard.tensors[tensor];
  const uint64_t elements = (entry.end - entry.begin) / sizeof(int64_t);
  std::vector<int64_t> values(std::min(elements, kScanElements));
  for (uint64_t begin = 0; begin < elements; begin += values.size()) {
    values.resize(std::min<uint64_t>(values.size(), elements - begin));
    absl::Status read = shard.file.Read(entry, begin * sizeof(int64_t), values.size() * sizeof(int64_t),
                                        reinterpret_cast<char*>(values.data()));
    if (!read.ok()) return read;
    const auto wrong = std::find_if(values.begin(), values.end(),
                                    [&](int64_t value) { return static_cast<uint64_t>(value) >= bound; });
    if (wrong == values.end()) continue;
    const uint64_t element = begin + static_cast<uint64_t>(wrong - values.begin());
    return absl::OutOfRangeError(absl::StrCat(shard.file.file().path(), ": the tensor ", Quoted(entry.name), " has ",
                                              *wrong, " in sample ", element / (elements / entry.shape[0]),
                                              ", which is not 0 to ", bound - 1,
                                              ": the file is of another data set, or the model's bound is too small"));
  }
  return absl::OkStatus();
}

}  // namespace muster::data
