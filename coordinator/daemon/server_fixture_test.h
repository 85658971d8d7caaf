// The fixture of the server's tests.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "common/clock.h"
#include "coordinator/daemon/server.h"
#include "coordinator/daemon/testing.h"
#include "testing/temporary_folder.h"

namespace muster::server {

// A server in its own folder, and a client. The test starts it, and may change the options first.
class ServerFixture : public ::testing::Test {
 protected:
  ServerFixture() {
    options_.state_dir = folder_.path() + "/state";
    options_.listen = {"unix:" + folder_.path() + "/run/c.sock"};
  }
  void Start() {
    auto server = Server::Start(options_, &clock_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    client_ = std::make_unique<Client>(address());
  }
  const std::string& address() const { return server_->addresses()[0]; }

  const TemporaryFolder folder_;
  RealClock clock_;
  ServerOptions options_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<Client> client_;
};

}  // namespace muster::server
