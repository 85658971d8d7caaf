// A server with TLS on a loopback port, and the kinds of callers that connect to it.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "absl/time/clock.h"
#include "common/rpc/rpc.h"
#include "common/tls/certificate.h"
#include "common/tls/token.h"
#include "common/tls/trust_folder.h"
#include "coordinator/daemon/server_fixture_test.h"

namespace muster::server {

class TrustFixture : public ServerFixture {
 protected:
  TrustFixture() {
    options_.listen.push_back("127.0.0.1:0");
    std::filesystem::create_directory(options_.state_dir);
    std::filesystem::permissions(options_.state_dir, std::filesystem::perms::owner_all);
    const auto trust = tls::MakeTrust(options_.state_dir, {"127.0.0.1"}, absl::Now());
    EXPECT_TRUE(trust.ok()) << trust.status();
    trust_ = *trust;
  }

  const std::string& tls_address() const { return server_->addresses()[1]; }
  rpc::Security Plain() const { return {trust_.authority.certificate, {}}; }  // TLS, and no certificate of ours

  // As the operator, over the Unix socket.
  std::string MakeToken(TokenRole role, const std::string& user, int64_t ttl_seconds = 0, std::string* id = nullptr) {
    CreateTokenRequest request;
    request.set_role(role);
    request.set_user(user);
    if (ttl_seconds > 0) request.mutable_ttl()->set_seconds(ttl_seconds);
    CreateTokenReply reply;
    const grpc::Status status = client_->trust().CreateToken(client_->Context().get(), request, &reply);
    EXPECT_TRUE(status.ok()) << status.error_message();
    if (id != nullptr) *id = reply.info().id();
    return reply.token();
  }

  grpc::Status Join(const std::string& token, const std::string& node, const std::string& key, JoinReply* reply) {
    Client client(tls_address(), token, Plain());
    JoinRequest request;
    request.set_node(node);
    request.set_certificate_request(tls::MakeRequest(key, "whatever").value());
    return client.trust().Join(client.Context().get(), request, reply);
  }

  // A node that has joined.
  rpc::Security MustJoin(const std::string& node) {
    const std::string key = tls::MakeKey().value();
    JoinReply reply;
    const grpc::Status status = Join(MakeToken(TOKEN_ROLE_WORKER, ""), node, key, &reply);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return {trust_.authority.certificate, {reply.certificate(), key}};
  }

  tls::Trust trust_;
};

}  // namespace muster::server
