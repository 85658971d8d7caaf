// What a loss of power would take away now, by the calls that this process makes: a kill cannot show that an fsync is
// missing, since the page cache outlives the process.
//
//   SyncWatch watch(folder);
//   ASSERT_TRUE(WriteDurably(folder + "/a", "bytes").ok());
//   EXPECT_THAT(watch.Unsynced(), IsEmpty());
//   EXPECT_THAT(watch.RenamedUnsynced(), IsEmpty());
//
// Defines open, write, pwrite, fsync, fdatasync and rename for the program that it is linked into, its shared libraries
// too. What is written through a mapping is not seen. One at a time. Thread-safe.
#pragma once

#include <string>
#include <vector>

namespace muster {

class SyncWatch {
 public:
  // Below `root` alone. What is there already counts as synced.
  explicit SyncWatch(const std::string& root);
  ~SyncWatch();
  SyncWatch(const SyncWatch&) = delete;

  // Files with bytes, and folders with names, that were not synced since; ascending.
  std::vector<std::string> Unsynced() const;
  // "from -> to: file" of every rename so far of something with unsynced bytes or names in it.
  std::vector<std::string> RenamedUnsynced() const;
};

}  // namespace muster
