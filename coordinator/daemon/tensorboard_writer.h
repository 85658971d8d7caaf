// Writes the TensorBoard folder on its own thread. It reads the stream like any other reader, one page at a time, so a
// slow or full disk costs one page of memory and delays no one else. It retries failed writes later.
//
// Forget is thread-safe until destruction. The loop outlives the call of Stop.
#pragma once

#include <memory>
#include <thread>

#include "coordinator/metrics/tensorboard_log.h"
#include "coordinator/server/loop.h"

namespace muster::server {

class TensorBoardWriter {
 public:
  // Starts, and continues where `log` ended; a log of another coordinator's stream is rewritten.
  TensorBoardWriter(std::unique_ptr<metrics::TensorBoardLog> log, Loop* loop);
  ~TensorBoardWriter();
  TensorBoardWriter(const TensorBoardWriter&) = delete;
  TensorBoardWriter& operator=(const TensorBoardWriter&) = delete;

  // Called while the loop still runs; the destructor calls it too. Writes the current page and saves the progress; the
  // rest is written after the next start.
  void Stop();

  // Removes the files of a deleted job.
  void Forget(const JobId& job);

 private:
  struct Shared;

  void Run();
  void Open();
  void WriteUntilDone(const WatchPage& page);
  void RemoveForgotten();

  const std::unique_ptr<metrics::TensorBoardLog> log_;
  Loop* const loop_;
  const std::shared_ptr<Shared> shared_;  // shared with callbacks that the loop still holds
  std::thread thread_;
};

}  // namespace muster::server
