#include "worker/agent/trainer_server.h"

#include <fcntl.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/server_posix.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log/log.h"
#include "common/rpc/rpc.h"
#include "worker/agent/callers.h"
#include "worker/agent/trainer_service.h"

namespace muster::agent {
namespace {

constexpr int kBacklog = 128;
constexpr int kMaxMessageBytes = 1 << 20;  // from a trainer: a key of 64 KiB at most

absl::StatusOr<int> Listen(const std::string& path, bool other_users) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() > kMaxSocketPathBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the socket path ", path, " has ", path.size(), " bytes, more than ",
                                                   kMaxSocketPathBytes, ": use a shorter --run-dir"));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return absl::ErrnoToStatus(errno, "cannot make a socket");
  unlink(path.c_str());  // of a daemon that was killed
  const mode_t mode = other_users ? 0666 : 0600;
  if (bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 || chmod(path.c_str(), mode) != 0 ||
      listen(fd, kBacklog) != 0) {
    const absl::Status status = absl::ErrnoToStatus(errno, absl::StrCat("cannot listen on ", path));
    close(fd);
    return status;
  }
  return fd;
}

// Accepts by itself, so that each connection's process is known before gRPC has it.
class Server final : public TrainerServer {
 public:
  Server(const std::string& run, EventLoop* loop, TrainerHost* host)
      : loop_(loop), callers_(run), gate_(std::make_shared<HostGate>(loop, host)), service_(gate_, &callers_) {}

  ~Server() override {
    Shutdown();
    if (listening_ >= 0) close(listening_);
    if (wake_ >= 0) close(wake_);
  }

  absl::Status Begin(const std::string& path, bool other_users) {
    grpc::ServerBuilder builder;
    builder.RegisterService(&service_);
    builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
    rpc::AllowKeepalive(builder);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr) return absl::InternalError("gRPC could not start a server for trainers");
    wake_ = eventfd(0, EFD_CLOEXEC);
    if (wake_ < 0) return absl::ErrnoToStatus(errno, "cannot make an event descriptor");
    absl::StatusOr<int> fd = Listen(path, other_users);
    if (!fd.ok()) return fd.status();
    listening_ = *fd;
    acceptor_ = std::thread([this] { Accept(); });
    return absl::OkStatus();
  }

  void Shutdown() override {
    gate_->Close();
    if (acceptor_.joinable()) {
      const uint64_t one = 1;
      [[maybe_unused]] const ssize_t n = write(wake_, &one, sizeof one);
      acceptor_.join();
    }
    if (server_ == nullptr) return;
    // gRPC waits for calls whose answers are posted to the loop, which is this thread.
    std::atomic<bool> down = false;
    std::thread ending([this, &down] {
      server_->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(200));
      server_.reset();
      down = true;
    });
    while (!down) loop_->RunPending();
    ending.join();
  }

 private:
  void Accept() {
    while (true) {
      pollfd fds[2] = {{listening_, POLLIN, 0}, {wake_, POLLIN, 0}};
      if (poll(fds, 2, -1) < 0 && errno != EINTR) return;
      if (fds[1].revents != 0) return;
      const int fd = accept4(listening_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
      if (fd < 0) {
        // Out of descriptors: the connection waits in the backlog; not in a busy loop.
        if (errno == EMFILE || errno == ENFILE) poll(&fds[1], 1, 100);
        continue;
      }
      if (absl::Status status = callers_.Connected(fd); !status.ok()) {
        LogWarn("refused a connection to the trainer socket", {{"error", status}});
        close(fd);
        continue;
      }
      grpc::AddInsecureChannelFromFd(server_.get(), fd);
    }
  }

  EventLoop* const loop_;
  Callers callers_;
  const std::shared_ptr<HostGate> gate_;
  TrainerService service_;
  std::unique_ptr<grpc::Server> server_;
  int listening_ = -1;
  int wake_ = -1;
  std::thread acceptor_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TrainerServer>> TrainerServer::Start(const std::string& run, bool other_users,
                                                                    EventLoop* loop, TrainerHost* host) {
  auto server = std::make_unique<Server>(run, loop, host);
  if (absl::Status status = server->Begin(run + "/trainer.sock", other_users); !status.ok()) return status;
  return server;
}

}  // namespace muster::agent
