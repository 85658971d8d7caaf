// Cuts text into the pieces within which byte pairs are merged: GPT-2's pattern
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
// over UTF-8; a run of invalid bytes is a separate piece. Not thread-safe.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string_view>

namespace muster::data {

class Splitter {
 public:
  Splitter();
  ~Splitter();

  // Calls `piece` for each piece in order and returns how many bytes they cover: all of `text` if `last`, else those
  // that no continuation of `text` changes.
  size_t Split(std::string_view text, bool last, const std::function<void(std::string_view)>& piece);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace muster::data
