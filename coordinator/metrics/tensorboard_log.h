// The TensorBoard folder of a coordinator: <folder>/<job>/events.out.tfevents.<generation>.muster, and
// <folder>/progress, which stores how far they are written. The files hold every metric of the stream exactly once,
// even after a crash: at the next start each file is truncated to what `progress` covers, and the stream is read from
// there.
//
//   auto log = TensorBoardLog::Open(folder).value();
//   ... items of the stream after log->cursor() ...
//   status = log->Write(items);   // on an error nothing counts as written; retry the same call
//   status = log->Save();         // periodically
//
// Not thread-safe.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/ids.h"
#include "proto/jobs.pb.h"
#include "proto/tensorboard.pb.h"

namespace muster::metrics {

class TensorBoardLog {
 public:
  // Creates the folder if it is missing. If `progress` is damaged, or covers more than the files hold (after a power
  // loss), writing starts from the beginning. Errors as FileError.
  static absl::StatusOr<std::unique_ptr<TensorBoardLog>> Open(const std::string& folder);

  // Cursor of the last item that was written; empty: none.
  const std::string& cursor() const { return progress_.cursor(); }
  // Resets the progress because the coordinator's stream is a different one. Files are rewritten as their items arrive.
  void Restart();

  // Writes the events and metrics of the stream, in order; ignores other items. Errors as FileError.
  absl::Status Write(const std::vector<WatchItem>& items);
  // Makes everything written so far durable.
  absl::Status Save();
  bool unsaved() const { return unsaved_; }

  // Removes the files of a deleted job; other files in its folder stay.
  void Remove(const JobId& job);

  static std::string FolderOf(const std::string& folder, const std::string& job) { return folder + "/" + job; }

 private:
  explicit TensorBoardLog(std::string folder) : folder_(std::move(folder)) {}
  absl::Status Load();
  absl::Status Append(const TensorBoardProgress::Run& run, const std::string& records);
  std::string PathOf(const TensorBoardProgress::Run& run) const;

  const std::string folder_;
  TensorBoardProgress progress_;
  std::set<std::string> unsynced_;  // paths of files to sync
  bool unsaved_ = false;
};

}  // namespace muster::metrics
