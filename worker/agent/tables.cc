#include "worker/agent/tables.h"

#include <grpcpp/client_context.h>
#include <grpcpp/support/client_callback.h>

#include <chrono>
#include <filesystem>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/bytes.h"
#include "common/file/durable_file.h"
#include "common/file/private_folder.h"
#include "common/file/read_file.h"
#include "common/log/log.h"
#include "common/rpc/rpc.h"
#include "common/rpc/self_owned.h"
#include "common/sha256.h"
#include "proto/workers_service.grpc.pb.h"

namespace muster::agent {
namespace {

constexpr absl::Duration kTableRetry = absl::Milliseconds(300);
constexpr absl::Duration kDeadline = absl::Minutes(1);  // of one attempt

// Checked because the coordinator sends it and it becomes a file name here.
bool IsHash(const std::string& text) {
  if (text.size() != 64) return false;
  for (const char c : text) {
    if (!absl::ascii_isdigit(static_cast<unsigned char>(c)) && (c < 'a' || c > 'f')) return false;
  }
  return true;
}

absl::StatusOr<std::shared_ptr<const PartitionTable>> Parse(const absl::StatusOr<std::string>& bytes,
                                                            const std::string& sha256) {
  if (!bytes.ok()) return bytes.status();
  const std::string found = Sha256Hex(*bytes);
  if (found != sha256) return absl::DataLossError(absl::StrCat("it has another hash, ", found));
  auto table = std::make_shared<PartitionTable>();
  if (!table->ParseFromString(*bytes)) return absl::DataLossError("its hash is right, but it does not parse");
  return table;
}

}  // namespace

// Lives until OnDone.
class Tables::Fetch final : public grpc::ClientReadReactor<TableChunk>, public rpc::SelfOwned<Fetch> {
 public:
  using Done = std::function<void(const Fetch*, const absl::StatusOr<std::string>&)>;

  Fetch(std::shared_ptr<EventLoop> loop, const std::shared_ptr<grpc::Channel>& channel, Done done)
      : loop_(std::move(loop)), stub_(Workers::NewStub(channel)), done_(std::move(done)) {}

  void Start(const std::string& token, const RankKey& key, const std::string& sha256) {
    rpc::AddCallMetadata(token, context_);
    context_.set_deadline(std::chrono::system_clock::now() + absl::ToChronoNanoseconds(kDeadline));
    *request_.mutable_key() = key;
    request_.set_table_sha256(sha256);
    stub_->async()->FetchTable(&context_, &request_, this);
    StartRead(&chunk_);
    StartCall();
  }

  void Cancel() { context_.TryCancel(); }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    bytes_.append(chunk_.data());
    if (bytes_.size() > kMaxTableBytes) {
      context_.TryCancel();
      return;
    }
    StartRead(&chunk_);
  }

  void OnDone(const grpc::Status& status) override {
    absl::StatusOr<std::string> outcome = std::move(bytes_);
    if (outcome->size() > kMaxTableBytes) {
      outcome = absl::ResourceExhaustedError(absl::StrCat("it has more than ", FormatBytes(kMaxTableBytes),
                                                          "; of the placements, even has the smallest tables"));
    } else if (!status.ok()) {
      outcome = rpc::FromGrpc(status);
    }
    loop_->Post([self = Release(), outcome = std::move(outcome)] { self->done_(self.get(), outcome); });
  }

 private:
  const std::shared_ptr<EventLoop> loop_;
  const std::unique_ptr<Workers::Stub> stub_;
  const Done done_;
  grpc::ClientContext context_;
  FetchTableRequest request_;
  TableChunk chunk_;
  std::string bytes_;
};

Tables::Tables(EventLoop* loop, std::shared_ptr<grpc::Channel> channel, std::string token, std::string folder,
               std::function<void()> arrived)
    : loop_(loop),
      channel_(std::move(channel)),
      token_(std::move(token)),
      folder_(std::move(folder)),
      arrived_(std::move(arrived)) {
  if (absl::Status status = MakeFolder(folder_); !status.ok()) {
    LogWarn("partition tables are not kept", {{"error", status}});
  }
}

Tables::~Tables() {
  *alive_ = false;
  for (const auto& [sha256, entry] : entries_) {
    if (entry.fetch != nullptr) entry.fetch->Cancel();
  }
}

std::string Tables::PathOf(const std::string& sha256) const { return absl::StrCat(folder_, "/", sha256); }

std::shared_ptr<const PartitionTable> Tables::Find(const std::string& sha256) const {
  const auto entry = entries_.find(sha256);
  return entry == entries_.end() ? nullptr : entry->second.table;
}

void Tables::Keep(const std::map<std::string, RankKey>& tables) {
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    if (tables.contains(entry->first)) {
      ++entry;
      continue;
    }
    if (entry->second.fetch != nullptr) entry->second.fetch->Cancel();
    entry = entries_.erase(entry);
  }
  for (const auto& [sha256, key] : tables) {
    if (!IsHash(sha256)) {
      LogError("the name of a partition table is not a SHA-256", {{"job", key.job()}, {"table", sha256}});
      continue;
    }
    const auto [entry, fresh] = entries_.try_emplace(sha256);
    entry->second.key = key;
    if (!fresh) continue;
    Load(sha256, entry->second);
    if (entry->second.table == nullptr) Begin(sha256, entry->second);
  }
  RemoveOthers();
}

void Tables::Load(const std::string& sha256, Entry& entry) const {
  absl::StatusOr<std::shared_ptr<const PartitionTable>> table = Parse(ReadWhole(PathOf(sha256)), sha256);
  if (table.ok()) {
    entry.table = *std::move(table);
  } else if (!absl::IsNotFound(table.status())) {
    LogWarn("cannot use the stored partition table; fetching it again",
            {{"path", PathOf(sha256)}, {"error", table.status()}});
  }
}

void Tables::RemoveOthers() const {
  std::error_code ignored;  // what cannot be removed now is tried at the next change
  for (const auto& file : std::filesystem::directory_iterator(folder_, ignored)) {
    if (!entries_.contains(file.path().filename())) std::filesystem::remove(file.path(), ignored);
  }
}

void Tables::Begin(const std::string& sha256, Entry& entry) {
  entry.fetch =
      Fetch::Make(loop_->shared_from_this(), channel_,
                  [this, alive = alive_, sha256](const Fetch* fetch, const absl::StatusOr<std::string>& bytes) {
                    if (*alive) Ended(sha256, fetch, bytes);
                  });
  entry.fetch->Start(token_, entry.key, sha256);
}

void Tables::Ended(const std::string& sha256, const Fetch* fetch, const absl::StatusOr<std::string>& bytes) {
  const auto found = entries_.find(sha256);
  if (found == entries_.end() || found->second.fetch.get() != fetch) return;  // it was dropped meanwhile
  Entry& entry = found->second;
  entry.fetch.reset();
  absl::StatusOr<std::shared_ptr<const PartitionTable>> table = Parse(bytes, sha256);
  if (table.ok()) {
    entry.table = *std::move(table);
    // Without it on disk only a restarted daemon has to ask again.
    if (absl::Status status = WriteDurably(PathOf(sha256), *bytes); !status.ok()) {
      LogWarn("cannot keep the partition table", {{"table", sha256}, {"error", status}});
    }
    return arrived_();
  }
  const std::string complaint = table.status().ToString();
  if (complaint != entry.complaint) {
    LogWarn("cannot fetch the partition table; retrying",
            {{"job", entry.key.job()}, {"table", sha256}, {"error", table.status()}});
  }
  entry.complaint = complaint;
  loop_->PostAfter(kTableRetry, [this, alive = alive_, sha256] {
    if (!*alive) return;
    const auto entry = entries_.find(sha256);
    if (entry == entries_.end() || entry->second.table != nullptr || entry->second.fetch != nullptr) return;
    Begin(sha256, entry->second);
  });
}

}  // namespace muster::agent
