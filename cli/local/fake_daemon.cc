// Replaces muster-coordinator in the tests of `muster local`: serves, has a running job if $FAKE_JOB is set, and lists
// a live node for each file in $FAKE_NODES, with as many slots as its first line says; the second line, if any, is the
// problem that the check of the trainer found; a node is away if there is a third. The fake worker is a shell script
// that creates such a file.
#include <csignal>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/time/clock.h"
#include "common/proto_time.h"
#include "testing/fake_coordinator.h"
#include "testing/fake_store.h"

namespace {

volatile std::sig_atomic_t stop = 0;

}  // namespace

int main(int argc, char** argv) {
  using namespace muster;  // NOLINT: a program of its own
  std::signal(SIGTERM, [](int) { stop = 1; });
  std::string socket;
  for (int i = 1; i + 1 < argc; ++i) {
    if (std::string(argv[i]) == "--listen") socket = std::string(argv[i + 1]).substr(5);
  }
  FakeStore store;
  store.list_nodes = [] {
    std::vector<v1::Node> nodes;
    for (const auto& entry : std::filesystem::directory_iterator(std::getenv("FAKE_NODES"))) {
      nodes.emplace_back().set_id(entry.path().filename());
      nodes.back().set_state(v1::NODE_STATE_LIVE);
      int slots = 0;
      std::ifstream file(entry.path());
      file >> slots;
      file.ignore();
      for (int i = 0; i < slots; ++i) nodes.back().add_slots();
      if (std::string problem; std::getline(file, problem) && !problem.empty()) {
        Preflight& preflight = *nodes.back().mutable_preflight();
        *preflight.mutable_time() = ToProto(absl::Now());
        preflight.add_checks()->set_name("trainer");
        preflight.mutable_checks(0)->set_problem(problem);
      }
      if (std::string away; std::getline(file, away)) nodes.back().set_state(v1::NODE_STATE_AWAY);
    }
    return nodes;
  };
  if (std::getenv("FAKE_JOB") != nullptr) {
    v1::Job job;
    job.set_id("a-x7f2");
    job.set_state(v1::JOB_STATE_RUNNING);
    store.PutJob(job);
  }
  FakeCoordinator coordinator(socket, &store);
  coordinator.Serve();
  std::fprintf(stderr, "serving\n");
  while (stop == 0) absl::SleepFor(absl::Milliseconds(20));
  return 0;
}
