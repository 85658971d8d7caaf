// The .idx file of Megatron-LM's indexed datasets (megatron/core/datasets/indexed_dataset.py): the begin and length of
// each sequence in the .bin file.
//
//   "MMIDIDX\0\0", u64 1, u8 dtype, u64 sequences, u64 documents + 1, i32 lengths, i64 places, i64 first sequences
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace muster::data {

struct MegatronIndex {
  uint32_t width = 0;   // bytes of a token
  uint64_t tokens = 0;  // of all sequences
  uint64_t sequences = 0;
  uint64_t documents = 0;
  uint64_t bytes = 0;  // of the index itself
};

// Whether the file exists and begins like an index.
bool LooksLikeMegatronIndex(const std::string& path);

// Reads it in parts and checks that the sequences follow each other without holes, so that the .bin file is one stream.
// InvalidArgument: cut, another version, a dtype that holds no token ids, or sequences that are not in order; messages
// begin with the path.
absl::StatusOr<MegatronIndex> ReadMegatronIndex(const std::string& path);

}  // namespace muster::data
