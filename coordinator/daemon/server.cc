#include "coordinator/daemon/server.h"

#include <google/protobuf/descriptor.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <pwd.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "common/file/lock.h"
#include "common/file/private_folder.h"
#include "common/file/reliable_folder.h"
#include "common/log/log.h"
#include "common/random_text.h"
#include "common/rpc/rpc.h"
#include "common/tls/endpoint.h"
#include "common/tls/trust_folder.h"
#include "coordinator/daemon/address.h"
#include "coordinator/daemon/front_door.h"
#include "coordinator/daemon/instruments.h"
#include "coordinator/notify/notifier.h"
#include "coordinator/rpc/admin.h"
#include "coordinator/rpc/call.h"
#include "coordinator/rpc/free_space.h"
#include "coordinator/rpc/jobs.h"
#include "coordinator/rpc/nodes.h"
#include "coordinator/rpc/trust.h"
#include "coordinator/rpc/workers.h"
#include "coordinator/server/fatal.h"
#include "coordinator/tracking/tracker.h"
#include "coordinator/web/web.h"

namespace muster::server {
namespace {

constexpr char kStopIt[] = "stop it first, or name another one";
constexpr int kMaxReceivedBytes = 8 << 20;  // a worker's full report of thousands of ranks
constexpr int kMaxSentBytes = 16 << 20;
constexpr int kMaxMetadataBytes = 16 << 10;
// A node has at most some dozen calls open; a stranger could otherwise open thousands that wait for their message.
constexpr int kMaxStreamsPerConnection = 256;
constexpr size_t kLocalTokenSize = 48;  // 240 bits
constexpr int kHandshakeMilliseconds = 10'000;
constexpr size_t kMaxMemoryBytes = size_t{1} << 30;          // of gRPC's buffers
constexpr auto kShutdownDeadline = std::chrono::seconds(1);  // idle clients close their connections slowly

std::string NameOfThisUser() {
  const uid_t uid = geteuid();
  char buffer[4096];
  passwd entry{};
  passwd* found = nullptr;
  if (getpwuid_r(uid, &entry, buffer, sizeof(buffer), &found) == 0 && found != nullptr) return found->pw_name;
  return absl::StrCat("uid-", uid);
}

// Each stream and each worker takes a descriptor.
void RaiseDescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) {
    LogWarn("cannot raise the limit of open files", {{"error", std::strerror(errno)}});
  }
}

// Prepares a socket path for this process: only the holder of the lock file beside it may remove a stale socket.
absl::StatusOr<FileLock> PrepareSocket(const std::string& path) {
  if (absl::Status status = MakePrivateFolder(path.substr(0, path.rfind('/'))); !status.ok()) return status;
  absl::StatusOr<FileLock> lock =
      FileLock::Take(path + ".lock", "coordinator", absl::StrCat("the socket ", path), kStopIt);
  if (!lock.ok()) return lock;
  struct stat info {};
  if (lstat(path.c_str(), &info) == 0) {
    if (!S_ISSOCK(info.st_mode)) {
      return absl::FailedPreconditionError(absl::StrCat(path, " exists and is not a socket; choose another path"));
    }
    if (unlink(path.c_str()) != 0) {
      return absl::InternalError(absl::StrCat("cannot remove the stale socket ", path, ": ", std::strerror(errno)));
    }
  }
  return lock;
}

void SetLimits(grpc::ServerBuilder& builder) {
  builder.SetMaxReceiveMessageSize(kMaxReceivedBytes);
  builder.SetMaxSendMessageSize(kMaxSentBytes);
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadataBytes);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreamsPerConnection);
  builder.SetResourceQuota(grpc::ResourceQuota("coordinator").Resize(kMaxMemoryBytes));
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeMilliseconds);
  rpc::AllowKeepalive(builder);
  // Only reflection uses the synchronous API.
  builder.SetSyncServerOption(grpc::ServerBuilder::NUM_CQS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::MIN_POLLERS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::MAX_POLLERS, 2);
}

// Without this check, a method without a rule would stay unnoticed until a user calls it and is refused.
absl::Status CheckRules() {
  for (const char* name :
       {"muster.v1.Jobs", "muster.v1.Nodes", "muster.v1.Admin", "muster.v1.Workers", "muster.v1.Trust"}) {
    const auto* service = google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(name);
    for (int i = 0; service != nullptr && i < service->method_count(); ++i) {
      const std::string method = absl::StrCat("/", name, "/", std::string(service->method(i)->name()));
      if (!rpc::HasRule(method)) {
        return absl::InternalError(absl::StrCat(method, " has no rule in coordinator/rpc/authorize.cc"));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status CheckListener(const Address& address, const ServerOptions& options) {
  if (!address.socket_path.empty() || tls::HasTrust(options.state_dir)) return absl::OkStatus();
  if (!address.is_local) {
    return absl::FailedPreconditionError(
        absl::StrCat("\"", address.text, "\" is not a loopback address: other machines reach it, which needs TLS; ",
                     "make an authority with: muster coordinator init --state-dir ", options.state_dir,
                     " --host THE_NAME_THAT_OTHERS_USE"));
  }
  if (!options.token_file.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("listening on ", address.text, " needs --token-file: any user of this machine reaches a TCP port, ",
                   "and a user who may submit a job may run code"));
}

// Clients may come without a certificate (users have tokens); the handshake verifies a certificate that is presented. A
// new certificate in the folder is used for new connections within `reload`.
std::shared_ptr<grpc::ServerCredentials> CredentialsOf(const std::string& state_dir, absl::Duration reload,
                                                       const rpc::Gate& gate) {
  const std::string folder = tls::TrustFolderOf(state_dir);
  const auto seconds = static_cast<unsigned>(std::max<int64_t>(1, absl::ToInt64Seconds(reload)));
  grpc::experimental::TlsServerCredentialsOptions options(
      std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
          folder + "/server.key", folder + "/server.crt", folder + "/ca.crt", seconds));
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_cert_request_type(GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY);
  std::shared_ptr<grpc::ServerCredentials> credentials = grpc::experimental::TlsServerCredentials(options);
  credentials->SetAuthMetadataProcessor(gate.BeforeMessages());
  return credentials;
}

// Of a TCP address that only this machine reaches: plain HTTP/2, whose callers are refused as over TLS, before their
// message is read. Any client without TLS can speak to it.
std::shared_ptr<grpc::ServerCredentials> LoopbackCredentials(const rpc::Gate& gate) {
  std::shared_ptr<grpc::ServerCredentials> credentials =
      grpc::experimental::LocalServerCredentials(grpc_local_connect_type::LOCAL_TCP);
  credentials->SetAuthMetadataProcessor(gate.BeforeMessages());
  return credentials;
}

// Makes a new certificate of the coordinator when its own is due, or not valid yet by a clock that was mended.
class CertificateUpkeep {
 public:
  CertificateUpkeep(std::string state_dir, absl::Duration interval, const Clock* clock)
      : state_dir_(std::move(state_dir)), interval_(interval), clock_(clock), thread_([this] { Run(); }) {}
  ~CertificateUpkeep() {
    {
      const absl::MutexLock lock(&mutex_);
      stopping_ = true;
    }
    thread_.join();
  }

 private:
  void Run() {
    while (true) {
      {
        const absl::MutexLock lock(&mutex_);
        if (mutex_.AwaitWithTimeout(absl::Condition(&stopping_), interval_)) return;
      }
      const absl::StatusOr<tls::Trust> trust = tls::LoadTrust(state_dir_, clock_->Read().wall);
      if (!trust.ok()) LogError("the coordinator's certificate cannot be renewed", {{"error", trust.status()}});
    }
  }

  const std::string state_dir_;
  const absl::Duration interval_;
  const Clock* const clock_;
  absl::Mutex mutex_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace

// In construction order; destroyed in reverse.
struct Server::Parts {
  std::optional<FileLock> state_lock;
  std::vector<FileLock> socket_locks;
  std::unique_ptr<FrontDoor> door;             // its acceptors outlive the server
  std::unique_ptr<tracking::Tracker> tracker;  // null: there are no tracking servers. The instruments read its counts
  Instruments instruments;
  std::unique_ptr<Loop> loop;
  std::unique_ptr<rpc::Authority> authority;  // null: there is none
  std::unique_ptr<rpc::Gate> gate;
  std::unique_ptr<web::Web> web;  // null: not served
  std::unique_ptr<rpc::JobsService> jobs;
  std::unique_ptr<rpc::NodesService> nodes;
  std::unique_ptr<rpc::AdminService> admin;
  std::unique_ptr<rpc::WorkersService> workers;
  std::unique_ptr<rpc::TrustService> trust;
  std::unique_ptr<grpc::Server> server;
  std::vector<notify::Destination> destinations;
  std::vector<tracking::Destination> tracking_servers;
  std::unique_ptr<notify::Notifier> notifier;  // null: there are none
  std::unique_ptr<CertificateUpkeep> upkeep;   // null: no authority
  std::vector<std::string> addresses;
  std::vector<std::string> sockets;

  absl::Status Prepare(const ServerOptions& options, std::vector<Address>& addresses,
                       std::optional<rpc::Tokens>& tokens);
  absl::Status LoadAuthority(const ServerOptions& options, absl::Time now);
  absl::Status StartInstruments(const ServerOptions& options);
  absl::Status ListenForBrowsers(const ServerOptions& options, const std::string& local_token, const Clock* clock);
  absl::Status Listen(const std::vector<Address>& addresses, const ServerOptions& options);
  // What follows the stream for others: notices and tracking servers.
  absl::Status StartReaders(const ServerOptions& options);
};

// All checks that are possible before anything is opened.
absl::Status Server::Parts::Prepare(const ServerOptions& options, std::vector<Address>& addresses,
                                    std::optional<rpc::Tokens>& tokens) {
  if (options.listen.empty()) return absl::InvalidArgumentError("no address to listen on");
  if (absl::Status status = CheckRules(); !status.ok()) return status;
  if (!options.token_file.empty()) {
    absl::StatusOr<rpc::Tokens> loaded = rpc::Tokens::Load(options.token_file);
    if (!loaded.ok()) return loaded.status();
    tokens = *std::move(loaded);
  }
  if (!options.notify_file.empty()) {
    absl::StatusOr<std::vector<notify::Destination>> loaded = notify::LoadConfig(options.notify_file);
    if (!loaded.ok()) return loaded.status();
    destinations = *std::move(loaded);
  }
  if (!options.tracking_file.empty()) {
    absl::StatusOr<std::vector<tracking::Destination>> loaded = tracking::LoadConfig(options.tracking_file);
    if (!loaded.ok()) return loaded.status();
    tracking_servers = *std::move(loaded);
  }
  for (const std::string& text : options.listen) {
    absl::StatusOr<Address> address = ParseAddress(text);
    if (!address.ok()) return address.status();
    if (absl::Status status = CheckListener(*address, options); !status.ok()) return status;
    addresses.push_back(*std::move(address));
  }
  if (absl::Status status = MakePrivateFolder(options.state_dir); !status.ok()) return status;
  const long type = options.file_system_type != 0 ? options.file_system_type : FileSystemType(options.state_dir);
  if (absl::Status status = CheckReliable(options.state_dir, options.allow_network_filesystem, type); !status.ok()) {
    return status;
  }
  absl::StatusOr<FileLock> lock = FileLock::Take(options.state_dir + "/lock", "coordinator",
                                                 absl::StrCat("the state directory ", options.state_dir), kStopIt);
  if (!lock.ok()) return lock.status();
  state_lock = *std::move(lock);
  return absl::OkStatus();
}

absl::Status Server::Parts::LoadAuthority(const ServerOptions& options, absl::Time now) {
  if (!tls::HasTrust(options.state_dir)) return absl::OkStatus();
  absl::StatusOr<tls::Trust> trust = tls::LoadTrust(options.state_dir, now);
  if (!trust.ok()) return trust.status();
  absl::StatusOr<std::unique_ptr<rpc::TrustRecords>> records =
      rpc::TrustRecords::Open(tls::TrustFolderOf(options.state_dir) + "/records.pb");
  if (!records.ok()) return records.status();
  LogInfo("TCP addresses serve TLS", {{"authority_sha256", trust->authority_facts.sha256},
                                      {"certificate_expires", trust->server_facts.validity.end}});
  authority = std::make_unique<rpc::Authority>(
      rpc::Authority{*std::move(trust), *std::move(records), options.node_certificate_life});
  return absl::OkStatus();
}

absl::Status Server::Parts::StartInstruments(const ServerOptions& options) {
  if (!options.tensorboard_dir.empty()) {
    absl::Status status = instruments.WriteTensorBoard(options.tensorboard_dir, loop.get());
    if (!status.ok()) return status;
  }
  if (options.metrics_address.empty()) return absl::OkStatus();
  instruments.WatchRoom(
      [folder = options.state_dir, least = options.min_free_bytes] { return rpc::CheckFreeSpace(folder, least); });
  const auto reach =
      options.allow_remote_metrics ? MetricsEndpoint::Reach::kNetwork : MetricsEndpoint::Reach::kThisMachine;
  return instruments.Serve(options.metrics_address, reach, /*of_jobs=*/!options.private_jobs, loop.get());
}

absl::Status Server::Parts::ListenForBrowsers(const ServerOptions& options, const std::string& local_token,
                                              const Clock* clock) {
  if (options.web_address.empty()) return absl::OkStatus();
  web::Web::Options web_options{{.address = options.web_address}, options.state_dir, local_token};
  const absl::StatusOr<tls::Endpoint> endpoint = tls::ParseEndpoint(options.web_address);
  if (endpoint.ok() && !tls::IsLoopback(endpoint->host)) {
    if (authority == nullptr) {
      return absl::FailedPreconditionError(absl::StrCat(
          "the web page at ", options.web_address, " would be open to other machines, which needs TLS: make an ",
          "authority with `muster coordinator init`, or serve it on 127.0.0.1 and reach it through a tunnel"));
    }
    const std::string folder = tls::TrustFolderOf(options.state_dir);
    web_options.http.certificate_file = folder + "/server.crt";
    web_options.http.key_file = folder + "/server.key";
  }
  absl::StatusOr<std::unique_ptr<web::Web>> listening = web::Web::Listen(web_options, clock);
  if (!listening.ok()) return listening.status();
  web = *std::move(listening);
  return absl::OkStatus();
}

absl::Status Server::Parts::Listen(const std::vector<Address>& requested, const ServerOptions& options) {
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  SetLimits(builder);
  for (size_t i = 0; i < requested.size(); ++i) {
    if (!requested[i].socket_path.empty()) {
      absl::StatusOr<FileLock> lock = PrepareSocket(requested[i].socket_path);
      if (!lock.ok()) return lock.status();
      socket_locks.push_back(*std::move(lock));
      sockets.push_back(requested[i].socket_path);
    }
    const bool encrypted = authority != nullptr && requested[i].socket_path.empty();
    const absl::StatusOr<int> port =
        door->Open(requested[i], builder,
                   encrypted ? CredentialsOf(options.state_dir, options.certificate_check, *gate)
                   : requested[i].socket_path.empty() ? LoopbackCredentials(*gate)
                                                      : grpc::InsecureServerCredentials());
    if (!port.ok()) return port.status();
    const std::string& text = requested[i].text;
    addresses.push_back(requested[i].socket_path.empty() ? absl::StrCat(text.substr(0, text.rfind(':') + 1), *port)
                                                         : text);
  }
  builder.RegisterService(jobs.get()).RegisterService(nodes.get());
  builder.RegisterService(admin.get()).RegisterService(workers.get()).RegisterService(trust.get());
  builder.experimental().SetInterceptorCreators(instruments.CallCounters());
  server = builder.BuildAndStart();
  if (server == nullptr) return absl::InternalError("gRPC could not start a server");
  door->Start();
  if (web != nullptr) web->Serve(server->InProcessChannel(grpc::ChannelArguments()));
  return absl::OkStatus();
}

absl::Status Server::Parts::StartReaders(const ServerOptions& options) {
  if (!destinations.empty()) {
    absl::StatusOr<std::unique_ptr<notify::Notifier>> started =
        notify::Notifier::Start({.folder = options.state_dir + "/notify", .destinations = destinations}, loop.get());
    if (!started.ok()) return started.status();
    notifier = *std::move(started);
  }
  if (!tracking_servers.empty()) {
    absl::StatusOr<std::unique_ptr<tracking::Tracker>> started = tracking::Tracker::Start(
        {.folder = options.state_dir + "/tracking", .destinations = tracking_servers}, loop.get());
    if (!started.ok()) return started.status();
    tracker = *std::move(started);
    instruments.WatchTracker(tracker.get());
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options, const Clock* clock) {
  RaiseDescriptorLimit();
  auto parts = std::make_unique<Parts>();
  std::vector<Address> addresses;
  std::optional<rpc::Tokens> tokens;
  if (absl::Status status = parts->Prepare(options, addresses, tokens); !status.ok()) return status;
  if (absl::Status status = parts->LoadAuthority(options, clock->Read().wall); !status.ok()) return status;
  absl::StatusOr<std::unique_ptr<Loop>> loop =
      Loop::Start({options.state_dir, options.core, options.history, options.workers, &parts->instruments,
                   options.plans, options.audit_kept},
                  clock);
  if (!loop.ok()) return loop.status();
  parts->loop = *std::move(loop);
  if (absl::Status status = parts->StartInstruments(options); !status.ok()) {
    parts->instruments.Stop();
    return status;
  }
  parts->door = std::make_unique<FrontDoor>(options.connections, clock, EndUnreachable);
  parts->instruments.WatchConnections(parts->door.get());
  const absl::StatusOr<std::string> local_token = RandomText(kLocalTokenSize);
  if (!local_token.ok()) return local_token.status();
  if (absl::Status status = parts->ListenForBrowsers(options, *local_token, clock); !status.ok()) {
    parts->instruments.Stop();
    return status;
  }
  parts->gate = std::make_unique<rpc::Gate>(
      rpc::Principal{NameOfThisUser(), rpc::Role::kLocal, {}, {}}, std::move(tokens),
      parts->authority == nullptr ? nullptr : parts->authority->records.get(), clock,
      [door = parts->door.get()](const std::string& peer) { door->Known(peer); },
      parts->web == nullptr ? "" : *local_token);
  parts->jobs = std::make_unique<rpc::JobsService>(rpc::JobsService::Options{options.state_dir,
                                                                             options.min_free_bytes,
                                                                             {options.max_ranks, options.core.timeouts},
                                                                             options.tensorboard_dir,
                                                                             options.private_jobs},
                                                   parts->gate.get(), parts->loop.get());
  parts->nodes = std::make_unique<rpc::NodesService>(parts->gate.get(), parts->loop.get());
  parts->admin = std::make_unique<rpc::AdminService>(options.state_dir, options.min_free_bytes,
                                                     parts->web == nullptr ? nullptr : &parts->web->sign_ins(),
                                                     parts->gate.get(), parts->loop.get());
  parts->workers = std::make_unique<rpc::WorkersService>(parts->gate.get(), parts->loop.get());
  parts->trust =
      std::make_unique<rpc::TrustService>(parts->authority.get(), clock, parts->gate.get(), parts->loop.get());
  if (parts->authority != nullptr) {
    parts->upkeep = std::make_unique<CertificateUpkeep>(options.state_dir, options.certificate_check, clock);
  }
  absl::Status listening = parts->Listen(addresses, options);
  if (listening.ok()) listening = parts->StartReaders(options);
  std::unique_ptr<Server> server(new Server(std::move(parts)));
  if (!listening.ok()) return listening;
  return server;
}

Server::Server(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

Server::~Server() { Shutdown(); }

const std::vector<std::string>& Server::addresses() const { return parts_->addresses; }

std::string Server::metrics_address() const { return parts_->instruments.metrics_address(); }

std::string Server::web_url() const { return parts_->web == nullptr ? "" : parts_->web->url(); }

void Server::Shutdown() {
  if (parts_->notifier != nullptr) parts_->notifier->Stop();
  if (parts_->tracker != nullptr) parts_->tracker->Stop();
  if (parts_->web != nullptr) parts_->web->Stop();
  if (parts_->server != nullptr) {
    parts_->server->GetHealthCheckService()->Shutdown();
    parts_->loop->Drain();
    parts_->door->Stop();
    parts_->server->Shutdown(std::chrono::system_clock::now() + kShutdownDeadline);
    parts_->server->Wait();
    parts_->server.reset();
    for (const std::string& socket : parts_->sockets) unlink(socket.c_str());
  }
  parts_->instruments.Stop();
  parts_->loop->Stop();
}

}  // namespace muster::server
