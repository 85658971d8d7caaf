// Reads the scalars that a script writes for TensorBoard: the event files below some folders, as they grow.
//
//   EventFolder events({"/shared/project"}, [&] { return pids_of_the_script; });
//   events.SkipExisting();                            // before the script runs
//   events.Scan();                                    // now and then
//   std::vector<MetricPoint> points = events.Read();  // often
//
// Never follows symbolic links, nor enters folders whose name begins with a dot. Bounded: kMostFiles files, and of each
// folder kMostEntries entries, kMostLevels deep. Not thread-safe.
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

// Whether the writer that an event file's name gives is one of these processes. TensorBoard's writers, TensorFlow's and
// torch's name them events.out.tfevents.SECONDS.HOST.PID.N; others name no process.
bool WriterIs(absl::string_view name, const std::set<pid_t>& processes);

// The folders that a command's arguments may name: absolute paths, alone or after a "=", at most eight.
std::vector<std::string> FoldersIn(const std::vector<std::string>& arguments);

class EventFolder {
 public:
  static constexpr size_t kMostFiles = 64;
  static constexpr int kMostEntries = 10'000;
  static constexpr int kMostLevels = 8;

  // `writers`: the script's processes at each scan; only files of these are read. Null: those of any writer.
  EventFolder(std::vector<std::string> folders, std::function<std::set<pid_t>()> writers);

  // What the files of now hold already is of an earlier run.
  void SkipExisting();
  // Looks for new files.
  void Scan();
  // The points of complete steps since the last call, by step. A step is complete when a later one has come, or when no
  // file has grown since the last call. `last`: the script has ended, and all is complete.
  std::vector<MetricPoint> Read(bool last = false);
  // Once for the first damaged file; else empty.
  std::string TakeWarning();

 private:
  struct File {
    uint64_t offset = 0;  // read
    bool done = false;    // damaged, or cut by its writer
  };

  template <typename Visit>
  void ForEachEventFile(const Visit& visit) const;
  // Whether it has grown.
  bool ReadFile(const std::string& path, File& file, uint64_t most_bytes);

  const std::vector<std::string> folders_;
  const std::function<std::set<pid_t>()> writers_;
  std::map<std::string, uint64_t> existing_;  // path, and size then
  std::map<std::string, File> files_;
  Scalars scalars_;
  bool damaged_ = false;
  std::string warning_;
};

}  // namespace muster::exec
