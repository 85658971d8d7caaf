// The partition tables of this node's ranks. An assignment names its table by SHA-256. The daemon fetches each table
// once (Workers.FetchTable), however many ranks use it, and keeps it on disk while any rank uses it, so that a
// restarted daemon has it even while the coordinator is away.
//
//   Tables tables(&loop, channel, token, state_dir + "/tables", [] { /* a table has arrived */ });
//   tables.Keep({{sha256, key_of_a_rank}});
//   std::shared_ptr<const PartitionTable> table = tables.Find(sha256);  // null: not yet
//
// Used on the loop's thread only.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include <grpcpp/channel.h>

#include "absl/status/statusor.h"
#include "proto/worker.pb.h"
#include "worker/agent/event_loop.h"

namespace muster::agent {

// The limit of a trainer's message; the coordinator makes no larger table (strategies/compile.h).
inline constexpr size_t kMaxTableBytes = size_t{15} << 20;

class Tables {
 public:
  // `loop` outlives it. `arrived` is called on the loop's thread, never from within a method.
  Tables(EventLoop* loop, std::shared_ptr<grpc::Channel> channel, std::string token, std::string folder,
         std::function<void()> arrived);
  ~Tables();

  // Keeps exactly these tables, each with a rank that uses it. Removes all others, also from disk. Fetches the missing
  // ones, and retries until they arrive or are no longer kept. Bytes with a wrong hash count as missing.
  void Keep(const std::map<std::string, RankKey>& tables);
  // Null: it has not arrived, or is not kept.
  std::shared_ptr<const PartitionTable> Find(const std::string& sha256) const;
  // For later calls.
  void UseChannel(std::shared_ptr<grpc::Channel> channel) { channel_ = std::move(channel); }

 private:
  class Fetch;
  struct Entry {
    RankKey key;
    std::shared_ptr<const PartitionTable> table;
    std::shared_ptr<Fetch> fetch;  // in progress
    std::string complaint;         // logged once, not at each attempt
  };

  std::string PathOf(const std::string& sha256) const;
  void Load(const std::string& sha256, Entry& entry) const;
  void RemoveOthers() const;
  void Begin(const std::string& sha256, Entry& entry);
  void Ended(const std::string& sha256, const Fetch* fetch, const absl::StatusOr<std::string>& bytes);

  EventLoop* const loop_;
  std::shared_ptr<grpc::Channel> channel_;
  const std::string token_;
  const std::string folder_;
  const std::function<void()> arrived_;
  std::map<std::string, Entry> entries_;  // by hash
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace muster::agent
