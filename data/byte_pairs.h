// Byte-level byte-pair encoding (Radford et al. 2019; Sennrich et al. 2016): merges the bytes of a piece of text, the
// pair of lowest rank first. Files write each byte as one printable character; names here are as in the files.
// Not thread-safe: it caches encoded pieces.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace muster::data {

constexpr uint64_t kMaxTokenIds = 1 << 24;

struct BytePairTable {
  std::vector<std::pair<std::string, uint64_t>> names;      // and their ids
  std::vector<std::pair<std::string, std::string>> merges;  // by rank
  bool ignore_merges = false;                               // a piece that is a token is not merged
};

class BytePairs {
 public:
  // InvalidArgument: an id is not below kMaxTokenIds or has two names, or a merge's parts or result are no names.
  static absl::StatusOr<BytePairs> Make(const BytePairTable& table);

  size_t size() const { return ids_.size(); }         // tokens
  uint64_t ids_end() const { return bytes_.size(); }  // ids are below it
  std::optional<uint32_t> IdOf(const std::string& name) const;
  // A byte without a token, if there is one. Encode leaves such bytes out, as the `tokenizers` package does.
  std::optional<uint8_t> missing_byte() const { return missing_byte_; }

  void Encode(std::string_view piece, std::vector<uint32_t>& ids);
  uint64_t left_out() const { return left_out_; }  // bytes, so far

  // Of a token, or of none.
  const std::string& BytesOf(uint32_t id) const;

 private:
  struct Merge {
    uint32_t rank = 0;
    uint32_t id = 0;  // of the result
  };
  struct Remembered {
    uint32_t begin = 0, size = 0;  // in remembered_ids_
  };

  absl::Status Add(const std::string& name, uint64_t id);
  void MergePairs(std::vector<uint32_t>& symbols) const;
  void EncodeAnew(std::string_view piece, std::vector<uint32_t>& ids) const;

  absl::flat_hash_map<std::string, uint32_t> ids_;  // by name
  std::vector<std::string> bytes_;                  // by id
  std::vector<bool> named_;                         // by id
  std::array<uint32_t, 256> byte_ids_;
  std::optional<uint8_t> missing_byte_;
  absl::flat_hash_map<uint64_t, Merge> merges_;
  absl::flat_hash_map<std::string, uint32_t> whole_;  // ids by bytes, with ignore_merges
  absl::flat_hash_map<std::string, Remembered> remembered_;
  std::vector<uint32_t> remembered_ids_;
  uint64_t left_out_ = 0;
};

// The bytes that a token's name stands for; the name itself if it has a character that stands for no byte.
std::string NamedBytes(const std::string& name);

}  // namespace muster::data
