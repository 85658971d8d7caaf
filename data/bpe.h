// GPT-2's byte-level byte-pair encoding (Radford et al. 2019; Sennrich et al. 2016), from the two files that OpenAI and
// Hugging Face publish: encoder.json (vocab.json) and vocab.bpe (merges.txt).
//
//   auto bpe = Bpe::Load("vocab.json", "merges.txt").value();
//   std::vector<uint32_t> ids;
//   bpe->Encode("Hello world", ids);       // 15496 995
//   bpe->Decode(ids);                      // "Hello world"
//
// Equal to the published encoder on UTF-8. Other bytes are encoded too, each run as a separate piece, so that Decode
// inverts Encode. The text "<|endoftext|>" is encoded as ordinary text.
// Not thread-safe: it caches encoded pieces.
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

namespace muster::data {

class Bpe {
 public:
  // NotFound: no such file. InvalidArgument: not such a vocabulary or list of merges, or the two do not belong together
  // (a byte or a merge's result has no id); names file, line and cause.
  static absl::StatusOr<std::unique_ptr<Bpe>> Load(const std::string& vocabulary, const std::string& merges);
  ~Bpe();

  uint64_t vocabulary() const;                  // ids are below it
  std::optional<uint32_t> end_of_text() const;  // id of "<|endoftext|>"

  // Appends the ids of `text`.
  void Encode(std::string_view text, std::vector<uint32_t>& ids);
  // The same for the next part of a stream: encodes the prefix that later parts cannot change and returns its length.
  // The next call's `text` must begin with the rest. `last`: nothing follows, so everything is encoded.
  size_t EncodePart(std::string_view text, bool last, std::vector<uint32_t>& ids);

  // Returns bytes, which may begin or end inside a character. Unknown ids are skipped.
  std::string Decode(absl::Span<const uint32_t> ids) const;

 private:
  struct State;
  explicit Bpe(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace muster::data
