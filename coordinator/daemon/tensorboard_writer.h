// Writes the TensorBoard folder on a thread of its own: it reads the stream like any reader, a page at a time, so that
// a slow or full disk costs one page of memory and delays nobody. What it cannot write now it tries again later.
//
// Forget is thread-safe, and may come until the end. The loop outlives the call of Stop.
#pragma once

#include <memory>
#include <thread>

#include "coordinator/metrics/tensorboard_log.h"
#include "coordinator/server/loop.h"

namespace muster::server {

class TensorBoardWriter {
 public:
  // Starts. Goes on where `log` ended; a log of another coordinator's stream is written anew.
  TensorBoardWriter(std::unique_ptr<metrics::TensorBoardLog> log, Loop* loop);
  ~TensorBoardWriter();
  TensorBoardWriter(const TensorBoardWriter&) = delete;
  TensorBoardWriter& operator=(const TensorBoardWriter&) = delete;

  // While the loop still runs; the destructor does it if nobody did. The page at hand is written, and how far it came
  // is saved; the rest is written after the next start.
  void Stop();

  // The job was deleted; its files go.
  void Forget(const JobId& job);

 private:
  struct Shared;

  void Run();
  void Open();
  void WriteUntilDone(const WatchPage& page);
  void RemoveForgotten();

  const std::unique_ptr<metrics::TensorBoardLog> log_;
  Loop* const loop_;
  const std::shared_ptr<Shared> shared_;  // with the callbacks that the loop still has
  std::thread thread_;
};

}  // namespace muster::server
