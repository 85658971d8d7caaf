// A fixture that runs the real program against a fake coordinator over a real socket.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "cli/testing/program.h"
#include "testing/fake_coordinator.h"
#include "testing/fake_store.h"
#include "testing/temporary_folder.h"

namespace muster::cli {

class MusterTest : public ::testing::Test {
 protected:
  MusterTest() {
    environment_ = {{"HOME", folder_.path()},
                    {"MUSTER_RUNTIME_DIR", folder_.path()},
                    {"XDG_STATE_HOME", folder_.path() + "/state"},
                    {"TERM", "xterm"},
                    {"LANG", "C.UTF-8"},
                    {"TZ", "UTC"}};
  }

  void Serve() {
    coordinator_ = std::make_unique<FakeCoordinator>(folder_.path() + "/coordinator.sock", &store_);
    coordinator_->Serve();
  }

  v1::Job PutJob(const std::string& id, v1::JobState state) {
    v1::Job job;
    job.set_id(id);
    job.set_state(state);
    job.mutable_spec()->set_name(id);
    job.mutable_spec()->mutable_resources()->set_ranks(1);
    job.mutable_spec()->mutable_train()->set_steps(100);
    store_.PutJob(job);
    return job;
  }

  void AddNode(const std::string& id) {
    v1::Node node;
    node.set_id(id);
    node.set_state(v1::NODE_STATE_LIVE);
    store_.nodes.push_back(node);
  }

  std::vector<std::string> Command(const std::vector<std::string>& arguments) const {
    std::vector<std::string> command = {ProgramPath("cli/muster")};
    command.insert(command.end(), arguments.begin(), arguments.end());
    return command;
  }
  Ended Run(const std::vector<std::string>& arguments, const std::string& input = "") const {
    return RunToEnd(Command(arguments), environment_, input);
  }

  bool Called(const std::string& call) const {
    const auto calls = store_.Calls();
    return std::find(calls.begin(), calls.end(), call) != calls.end();
  }

  const TemporaryFolder folder_;
  Program::Environment environment_;
  FakeStore store_;
  std::unique_ptr<FakeCoordinator> coordinator_;
};

}  // namespace muster::cli
