// The partition tables that this node's ranks run by. An assignment names its table by the SHA-256; the daemon fetches
// each one once (Workers.FetchTable), however many ranks want it, and keeps it on disk for as long as any of them does:
// so a daemon that was restarted has them also while the coordinator is away.
//
//   Tables tables(&loop, channel, token, state_dir + "/tables", [] { /* something is there now */ });
//   tables.Want({{sha256, key_of_a_rank}});
//   std::shared_ptr<const PartitionTable> table = tables.Find(sha256);  // null: not yet
//
// Of the loop's thread.
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

// A larger one would not fit into a trainer's message; the coordinator makes none (strategies/compile.h).
inline constexpr size_t kMaxTableBytes = size_t{15} << 20;

class Tables {
 public:
  // `loop` outlives it. `arrived` is called on the loop's thread, never from within a method.
  Tables(EventLoop* loop, std::shared_ptr<grpc::Channel> channel, std::string token, std::string folder,
         std::function<void()> arrived);
  ~Tables();

  // All tables that ranks here are to run by, each with one such rank. The others are forgotten, on disk too; what is
  // neither in memory nor on disk is fetched, again and again until it comes or is not wanted any more. Bytes that do
  // not have the hash that was asked for count as not there.
  void Want(const std::map<std::string, RankKey>& wanted);
  // Null: not there yet, or not wanted.
  std::shared_ptr<const PartitionTable> Find(const std::string& sha256) const;
  // For calls that follow.
  void UseChannel(std::shared_ptr<grpc::Channel> channel) { channel_ = std::move(channel); }

 private:
  class Fetch;
  struct Entry {
    RankKey key;
    std::shared_ptr<const PartitionTable> table;
    std::shared_ptr<Fetch> fetch;  // under way
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
  std::map<std::string, Entry> entries_;  // by hash: what is wanted
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace muster::agent
