#include "tests/parity/peer.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"

extern char** environ;

namespace muster::parity {

Difference Compare(const Curve& ours, const Curve& theirs) {
  const size_t steps = ours.losses.size();
  if (steps == 0 || theirs.losses.size() != steps || ours.norms.size() != steps || theirs.norms.size() != steps) {
    std::printf("%zu and %zu steps\n", steps, theirs.losses.size());
    return {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::infinity()};
  }
  Difference d;
  for (size_t i = 0; i < steps; ++i) {
    d.loss = std::max(d.loss, std::abs(ours.losses[i] / theirs.losses[i] - 1));
    d.norm = std::max(d.norm, std::abs(ours.norms[i] / theirs.norms[i] - 1));
  }
  std::printf("largest relative difference over %zu steps: losses %.2g, norms %.2g\n", steps, d.loss, d.norm);
  return d;
}

Peer& Peer::Get() {
  static Peer peer;
  return peer;
}

Peer::Peer() {
  const char* python = std::getenv("MUSTER_PEER_PYTHON");
  if (python == nullptr) {
    started_ = absl::FailedPreconditionError(
        "MUSTER_PEER_PYTHON is not set: run ./test.sh, or tools/fetch_torch.sh peer and pass "
        "--test_env=MUSTER_PEER_PYTHON=~/.cache/muster/peer/bin/python");
    return;
  }
  std::array<int, 2> in{}, out{};
  if (pipe2(in.data(), O_CLOEXEC) != 0 || pipe2(out.data(), O_CLOEXEC) != 0) {
    started_ = absl::InternalError("no pipe");
    return;
  }
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
  std::string program = python, script = "tests/parity/peer.py";
  std::array<char*, 3> argv = {program.data(), script.data(), nullptr};
  if (const int error = posix_spawnp(&pid_, python, &actions, nullptr, argv.data(), environ); error != 0) {
    started_ = absl::InternalError(absl::StrCat("cannot start ", python, ": ", std::strerror(error)));
  }
  posix_spawn_file_actions_destroy(&actions);
  close(in[0]);
  close(out[1]);
  to_ = fdopen(in[1], "w");
  from_ = fdopen(out[0], "r");
}

Peer::~Peer() {
  if (to_ != nullptr) std::fclose(to_);  // the peer exits at the end of its input
  if (from_ != nullptr) std::fclose(from_);
  if (pid_ > 0) waitpid(pid_, nullptr, 0);
}

namespace {

absl::StatusOr<Curve> CurveOf(const absl::StatusOr<nlohmann::json>& answer) {
  if (!answer.ok()) return answer.status();
  return Curve{(*answer)["losses"], (*answer)["norms"]};
}

}  // namespace

absl::StatusOr<Curve> Peer::TrainGpt2(const nlohmann::json& config) { return CurveOf(Ask("gpt2_peer", config)); }

absl::StatusOr<Curve> Peer::TrainLlama(const nlohmann::json& config) { return CurveOf(Ask("llama_peer", config)); }

absl::StatusOr<nlohmann::json> Peer::AskOrders(const nlohmann::json& config) { return Ask("orders_peer", config); }

absl::StatusOr<nlohmann::json> Peer::AskResnet(const nlohmann::json& config) { return Ask("resnet_peer", config); }

absl::StatusOr<nlohmann::json> Peer::AskTensors(const nlohmann::json& config) { return Ask("tensors_peer", config); }

absl::StatusOr<nlohmann::json> Peer::AskOptimizer(const nlohmann::json& config) {
  return Ask("optimizer_peer", config);
}

absl::StatusOr<nlohmann::json> Peer::Ask(const char* peer, nlohmann::json config) {
  if (!started_.ok()) return started_;
  config["peer"] = peer;
  std::fprintf(to_, "%s\n", config.dump().c_str());
  std::fflush(to_);
  char* line = nullptr;
  size_t size = 0;
  const ssize_t length = getline(&line, &size, from_);
  const std::string answer = length > 0 ? std::string(line, static_cast<size_t>(length)) : "";
  std::free(line);
  nlohmann::json result = nlohmann::json::parse(answer, nullptr, /*allow_exceptions=*/false);
  if (!result.is_object()) {
    return absl::InternalError(
        absl::StrCat("the peer exited or did not answer with JSON (does its Python have torch?): ", answer));
  }
  return result;
}

}  // namespace muster::parity
