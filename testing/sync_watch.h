// What a power loss at this moment would lose, from the system calls of this process. Killing a process does not show a
// missing fsync, since the page cache outlives the process.
//
//   SyncWatch watch(folder);
//   ASSERT_TRUE(WriteDurably(folder + "/a", "bytes").ok());
//   EXPECT_THAT(watch.Unsynced(), IsEmpty());
//   EXPECT_THAT(watch.RenamedUnsynced(), IsEmpty());
//
// Defines open, write, pwrite, fsync, fdatasync, link, rename and renameat2 for the program that links it,
// including its shared libraries. Does not see writes through a mapping. One at a time. Thread-safe.
#pragma once

#include <string>
#include <vector>

namespace muster {

class SyncWatch {
 public:
  // Watches only below `root`. Existing files count as synced.
  explicit SyncWatch(const std::string& root);
  ~SyncWatch();
  SyncWatch(const SyncWatch&) = delete;

  // Files with unsynced bytes, and folders with unsynced entries; ascending.
  std::vector<std::string> Unsynced() const;
  // "from -> to: file" for every rename so far of something with unsynced bytes or entries.
  std::vector<std::string> RenamedUnsynced() const;
};

}  // namespace muster
