#include "checkpoint/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>
#include "absl/strings/str_cat.h"

namespace muster::checkpoint {
namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little, "numbers are copied without swapping bytes");

constexpr char kMetadata[] = "__metadata__";
constexpr uint64_t kAlign = 64;

absl::Status Wrong(std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("safetensors header: ", std::string(what)));
}

// Parses JSON and refuses duplicate keys, which other libraries resolve in different ways.
absl::StatusOr<json> ParseJson(std::string_view text) {
  std::vector<std::set<std::string>> keys;
  std::string twice;
  const auto look = [&](int, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key && !keys.back().insert(parsed.get<std::string>()).second) {
      twice = parsed.get<std::string>();
    }
    return true;
  };
  json parsed = json::parse(text, look, /*allow_exceptions=*/false);
  if (parsed.is_discarded()) return Wrong("not JSON");
  if (!twice.empty()) return Wrong(absl::StrCat("the key \"", twice, "\" is there twice"));
  if (!parsed.is_object()) return Wrong("not a JSON object");
  return parsed;
}

absl::StatusOr<std::vector<uint64_t>> Numbers(const json& value, const std::string& where) {
  if (!value.is_array()) return Wrong(absl::StrCat(where, " is not a list"));
  std::vector<uint64_t> numbers;
  for (const json& item : value) {
    if (!item.is_number_unsigned()) return Wrong(absl::StrCat(where, " holds something that is not a whole number"));
    numbers.push_back(item.get<uint64_t>());
  }
  return numbers;
}

absl::StatusOr<TensorEntry> ParseTensor(const std::string& name, const json& value) {
  TensorEntry tensor{.name = name};
  if (!value.is_object() || value.size() != 3 || !value.contains("dtype") || !value.contains("shape") ||
      !value.contains("data_offsets")) {
    return Wrong(absl::StrCat(name, " needs exactly dtype, shape and data_offsets"));
  }
  if (!value["dtype"].is_string()) return Wrong(absl::StrCat(name, ": dtype is not a string"));
  tensor.dtype = value["dtype"].get<std::string>();
  uint64_t bytes = DtypeBytes(tensor.dtype);
  if (bytes == 0) return Wrong(absl::StrCat(name, ": unknown dtype ", tensor.dtype));
  absl::StatusOr<std::vector<uint64_t>> shape = Numbers(value["shape"], absl::StrCat(name, ": shape"));
  if (!shape.ok()) return shape.status();
  tensor.shape = *std::move(shape);
  for (const uint64_t n : tensor.shape) {
    if (__builtin_mul_overflow(bytes, n, &bytes)) return Wrong(absl::StrCat(name, ": its shape is too large"));
  }
  const absl::StatusOr<std::vector<uint64_t>> offsets =
      Numbers(value["data_offsets"], absl::StrCat(name, ": data_offsets"));
  if (!offsets.ok()) return offsets.status();
  if (offsets->size() != 2 || (*offsets)[1] < (*offsets)[0])
    return Wrong(absl::StrCat(name, ": data_offsets are not a range"));
  tensor.begin = (*offsets)[0];
  tensor.end = (*offsets)[1];
  if (tensor.end - tensor.begin != bytes) {
    return Wrong(absl::StrCat(name, ": ", tensor.end - tensor.begin, " bytes, its shape and dtype need ", bytes));
  }
  return tensor;
}

absl::Status CheckCover(const std::vector<TensorEntry>& tensors, uint64_t buffer_bytes) {
  uint64_t covered = 0;
  for (const TensorEntry& tensor : tensors) {
    if (tensor.begin != covered) {
      return Wrong(absl::StrCat(tensor.name, " begins at byte ", tensor.begin,
                                tensor.begin > covered ? " after a hole from " : ", which overlaps what reaches to ",
                                covered));
    }
    covered = tensor.end;
  }
  if (covered == buffer_bytes) return absl::OkStatus();
  return Wrong(absl::StrCat("tensors take ", covered, " bytes, the file has ", buffer_bytes,
                            " after the header: ", covered > buffer_bytes ? "it was cut" : "something was added"));
}

}  // namespace

uint64_t DtypeBytes(std::string_view dtype) {
  static constexpr std::pair<std::string_view, uint64_t> kDtypes[] = {
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E5M2", 1}, {"F8_E4M3", 1}, {"I16", 2}, {"U16", 2}, {"F16", 2},
      {"BF16", 2}, {"I32", 4}, {"U32", 4}, {"F32", 4},     {"F64", 8},     {"I64", 8}, {"U64", 8}};
  for (const auto& [name, bytes] : kDtypes) {
    if (name == dtype) return bytes;
  }
  return 0;
}

std::string EncodeHeader(const SafetensorsHeader& header) {
  nlohmann::ordered_json root = nlohmann::ordered_json::object();
  if (!header.metadata.empty()) root[kMetadata] = header.metadata;
  for (const TensorEntry& tensor : header.tensors) {
    root[tensor.name] = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {tensor.begin, tensor.end}}};
  }
  std::string text = root.dump();
  text.append((kAlign - (text.size() + sizeof(uint64_t)) % kAlign) % kAlign, ' ');
  const uint64_t length = text.size();
  std::string bytes(sizeof length, '\0');
  std::memcpy(bytes.data(), &length, sizeof length);
  return bytes + text;
}

absl::StatusOr<SafetensorsHeader> ParseHeader(std::string_view text, uint64_t buffer_bytes) {
  if (text.empty() || text[0] != '{') return Wrong("does not begin with {");
  absl::StatusOr<json> root = ParseJson(text);
  if (!root.ok()) return root.status();
  SafetensorsHeader header;
  for (const auto& [name, value] : root->items()) {
    if (name != kMetadata) {
      absl::StatusOr<TensorEntry> tensor = ParseTensor(name, value);
      if (!tensor.ok()) return tensor.status();
      header.tensors.push_back(*std::move(tensor));
      continue;
    }
    if (!value.is_object()) return Wrong("__metadata__ is not an object");
    for (const auto& [key, entry] : value.items()) {
      if (!entry.is_string()) return Wrong(absl::StrCat("__metadata__.", key, " is not a string"));
      header.metadata[key] = entry.get<std::string>();
    }
  }
  std::sort(header.tensors.begin(), header.tensors.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  if (absl::Status status = CheckCover(header.tensors, buffer_bytes); !status.ok()) return status;
  return header;
}

absl::StatusOr<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  absl::StatusOr<ReadFile> file = ReadFile::Open(path);
  if (!file.ok()) return file.status();
  const auto wrong = [&](std::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", std::string(what)));
  };
  uint64_t length = 0;
  if (file->bytes() < sizeof length) return wrong("too short for a safetensors file");
  if (absl::Status s = file->Read(0, sizeof length, reinterpret_cast<char*>(&length)); !s.ok()) return s;
  if (length > kMaxHeaderBytes) return wrong(absl::StrCat("a safetensors header of ", length, " bytes is over 100 MB"));
  if (length > file->bytes() - sizeof length) return wrong("its safetensors header is longer than the file");
  std::string text(length, '\0');
  if (absl::Status s = file->Read(sizeof length, length, text.data()); !s.ok()) return s;
  const uint64_t buffer = sizeof length + length;
  absl::StatusOr<SafetensorsHeader> header = ParseHeader(text, file->bytes() - buffer);
  if (!header.ok()) return wrong(std::string(header.status().message()));
  return SafetensorsFile(*std::move(file), *std::move(header), buffer);
}

absl::Status SafetensorsFile::Read(const TensorEntry& tensor, uint64_t offset, uint64_t length, char* out) const {
  return file_.Read(buffer_ + tensor.begin + offset, length, out);
}

}  // namespace muster::checkpoint
