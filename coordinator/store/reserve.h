// Disk space that is kept for the state store: a file beside it that is removed when the disk is full, so that what was
// decided can still be stored while everything else waits for room.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <string>

namespace muster::store {

class Reserve {
 public:
  // Takes `bytes` in `path`, or what an earlier process took there. Nothing if the disk has no room for it: then there
  // is no reserve until Refill finds some.
  Reserve(std::string path, uint64_t bytes);

  // Gives the space back to the disk. False: there was none.
  bool Release();
  // Takes the space again once the disk has twice as much free. Returns whether it is there now. Cheap while it is.
  bool Refill();

 private:
  bool Take();

  const std::string path_;
  const uint64_t bytes_;
  bool held_ = false;
};

}  // namespace muster::store
