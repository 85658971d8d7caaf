// Reads the scalars that a script writes for TensorBoard: the event files below some folders, as they grow.
//
//   EventFolder events({"/shared/project"}, [&] { return pids_of_the_script; });
//   events.SkipExisting();                            // before the script runs
//   events.Scan();                                    // now and then
//   std::vector<MetricPoint> points = events.Read();  // often
//
// Follows symbolic links to the given folders, but none below them, and enters no folders whose name begins with a dot.
// Bounded: kMostFiles files; of each given folder kMostEntries entries, kMostLevels deep; kBytesAtOnce of events a call
// of Read, and twice kMostWaiting steps. Not thread-safe.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "worker/exec/scalars.h"

namespace muster::exec {

// Whether the writer that an event file's name gives is one of these processes of that host. TensorBoard's writers,
// TensorFlow's and torch's name them events.out.tfevents.SECONDS.HOST.PID.N; others name no process.
bool WriterIs(absl::string_view name, absl::string_view host, const std::set<pid_t>& processes);

// The folders that a command's arguments may name: absolute paths, alone or after a "=", at most eight.
std::vector<std::string> FoldersIn(const std::vector<std::string>& arguments);

class EventFolder {
 public:
  static constexpr size_t kMostFiles = 64;
  static constexpr int kMostEntries = 10'000;
  static constexpr int kMostLevels = 8;
  static constexpr uint64_t kBytesAtOnce = 4 << 20;
  static constexpr size_t kMostWaiting = 2000;

  // `writers`: the script's processes at each scan; only files of these are read. Null: those of any writer.
  EventFolder(std::vector<std::string> folders, std::function<std::set<pid_t>()> writers);

  // Skips data that existing files already hold: an earlier run wrote it.
  void SkipExisting();
  // Looks for new files.
  void Scan();
  bool has_files() const { return !files_.empty(); }
  // The points of complete steps since the last call, by step. A step is complete when a later one has come, or when no
  // file has grown since the last call. `last`: the script has ended, and all is complete once more() is false. Of too
  // many steps at once evenly spaced ones.
  std::vector<MetricPoint> Read(bool last = false);
  // Whether the last call of Read left something unread. The next one begins with another file.
  bool more() const { return more_; }
  // Once for the first damaged file, and once for a limit that leaves files out; else empty.
  std::string TakeWarning();

 private:
  struct File {
    uint64_t offset = 0;  // read
    bool done = false;    // damaged, or cut by its writer
  };

  template <typename Visit>
  void ForEachEventFile(const Visit& visit);
  // Whether it has grown. Takes what it reads from `budget`.
  bool ReadFile(const std::string& path, File& file, uint64_t& budget);
  void Warn(const std::string& warning);
  void WarnOfLimit(const std::string& warning);

  const std::vector<std::string> folders_;
  const std::function<std::set<pid_t>()> writers_;
  const std::string host_;
  std::map<std::string, uint64_t> existing_;  // path, and size then
  std::map<std::string, File> files_;
  Scalars scalars_;
  std::string first_;  // path of the file to read first
  bool more_ = false;
  bool damaged_ = false, limited_ = false;
  std::string warning_;
};

}  // namespace muster::exec
