// The TensorBoard folder of a coordinator: <folder>/<job>/events.out.tfevents.<generation>.muster, and
// <folder>/progress, which says how far they are written. Every metric of the stream is in them once, also after a
// crash at any instant: at the next start each file is cut back to what `progress` knows, and the stream is read on
// from there.
//
//   auto log = TensorBoardLog::Open(folder).value();
//   ... items of the stream behind log->cursor() ...
//   status = log->Write(items);   // an error: nothing counts as written, the same call may be made again
//   status = log->Save();         // now and then
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
  // Makes the folder if it is not there. A `progress` that is damaged, or knows of more than is there (after a power
  // loss), means to begin at the beginning. Errors as FileError.
  static absl::StatusOr<std::unique_ptr<TensorBoardLog>> Open(const std::string& folder);

  // Of the last item that was written; empty: none.
  const std::string& cursor() const { return progress_.cursor(); }
  // Forgets how far it is: the coordinator's stream is another one. Files are written anew as their items come.
  void Restart();

  // Events and metrics of the stream, in its order; other items are left out. Errors as FileError.
  absl::Status Write(const std::vector<WatchItem>& items);
  // What is written so far survives a crash.
  absl::Status Save();
  bool unsaved() const { return unsaved_; }

  // Removes what is there of a job that was deleted; files of others in its folder stay.
  void Remove(const JobId& job);

  static std::string FolderOf(const std::string& folder, const std::string& job) { return folder + "/" + job; }

 private:
  explicit TensorBoardLog(std::string folder) : folder_(std::move(folder)) {}
  absl::Status Load();
  absl::Status Append(const TensorBoardProgress::Run& run, const std::string& records);
  std::string PathOf(const TensorBoardProgress::Run& run) const;

  const std::string folder_;
  TensorBoardProgress progress_;
  std::set<std::string> unsynced_;  // files
  bool unsaved_ = false;
};

}  // namespace muster::metrics
