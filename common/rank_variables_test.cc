#include "common/rank_variables.h"

#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace muster {
namespace {

// Empty: accepted.
std::string Refusal(const std::string& name, VariableSource source) {
  return std::string(CheckRankVariableName(name, source).message());
}

TEST(RankVariables, WhoMaySetWhat) {
  struct Case {
    std::string name, job, node;  // part of the error; empty: accepted
  };
  const std::string unknown = absl::StrCat("allowed are ", AllowedRankVariables());
  const Case cases[] = {
      {"NCCL_DEBUG", "", ""},
      {"NCCL_SOCKET_IFNAME", "", ""},
      {"NCCL_IB_HCA", "", ""},
      {"FI_PROVIDER", "", ""},
      {"UCX_NET_DEVICES", "", ""},
      {"UCX_IB_NUM_PATHS", "", ""},
      {"MLX5_SHUT_UP_BF", "", ""},
      {"IBV_FORK_SAFE", "", ""},
      {"GLOO_SOCKET_IFNAME", "", ""},
      {"MKL_CBWR", "", ""},
      {"CUDA_LAUNCH_BLOCKING", "", ""},
      {"CUDA_DEVICE_MAX_CONNECTIONS", "", ""},
      {"NCCL_COMM_ID", "NCCL_COMM_ID: ranks meet through the coordinator", "ranks meet through the coordinator"},
      {"NCCL_COMM_BLOCKING", "past every deadline", "past every deadline"},
      {"NCCL_HOSTID", "muster-worker --env NCCL_HOSTID=VALUE", ""},
      {"NCCL_NET_PLUGIN", "belong to the node; a node sets it: muster-worker --env NCCL_NET_PLUGIN=VALUE", ""},
      {"NCCL_DEBUG_FILE", "belong to the node", ""},
      {"NCCL_CONF_FILE", "belong to the node", ""},
      {"FI_PROVIDER_PATH", "belong to the node", ""},
      {"UCX_MODULE_DIR", "belong to the node", ""},
      {"UCX_GDB_COMMAND", "belong to the node", ""},
      {"UCX_ERROR_MAIL_TO", "belong to the node", ""},
      {"LD_PRELOAD", "cannot have LD_PRELOAD: allowed are", unknown},
      {"LD_LIBRARY_PATH", unknown, unknown},
      {"PATH", unknown, unknown},
      {"NCCL", unknown, unknown},
      {"NCCL_", unknown, unknown},
      {"XNCCL_DEBUG", unknown, unknown},
      {"nccl_debug", unknown, unknown},
      {"GLOO_SOCKET_IFNAME_2", unknown, unknown},
      {"CUDA_VISIBLE_DEVICES", unknown, unknown},
      {"CUBLAS_WORKSPACE_CONFIG", unknown, unknown},
      {"NCCL_DEBUG=INFO\nLD_PRELOAD", "NCCL_DEBUG=INFO\\nLD_PRELOAD: allowed", unknown},
      {"NCCL_A B", unknown, unknown},
      {"", "missing", "missing"},
      {std::string("NCCL_") + std::string(124, 'A'), "has 129 characters, at most 128", "at most 128"},
  };
  for (const Case& c : cases) {
    for (const auto& [source, says] : {std::pair(VariableSource::kJob, c.job), {VariableSource::kNode, c.node}}) {
      const std::string refusal = Refusal(c.name, source);
      EXPECT_EQ(refusal.empty(), says.empty()) << c.name << ": " << refusal;
      EXPECT_TRUE(absl::StrContains(refusal, says)) << c.name << ": " << refusal;
    }
  }
  EXPECT_EQ(Refusal(std::string("NCCL_") + std::string(123, 'A'), VariableSource::kJob), "");
}

TEST(RankVariables, ValuesArePrintableAscii) {
  const auto refusal = [](const std::string& value) { return std::string(CheckRankVariableValue(value).message()); };
  EXPECT_EQ(refusal("=eth0,eth1"), "");
  EXPECT_EQ(refusal("^docker, lo"), "");
  EXPECT_EQ(refusal(std::string(512, 'a')), "");
  EXPECT_EQ(refusal(""), "missing");
  EXPECT_EQ(refusal(std::string(513, 'a')), "has 513 characters, at most 512 are allowed");
  for (const std::string& value :
       {std::string("a\nb"), std::string("a\0b", 3), std::string("\x7f"), std::string("é")}) {
    EXPECT_EQ(refusal(value), "has a character that is not printable ASCII");
  }
}

TEST(RankVariables, ANodesFlagIsNameAndValue) {
  const auto parsed = ParseNodeVariable("NCCL_SOCKET_IFNAME==eth0");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->first, "NCCL_SOCKET_IFNAME");
  EXPECT_EQ(parsed->second, "=eth0");
  const auto refusal = [](const std::string& text) { return std::string(ParseNodeVariable(text).status().message()); };
  EXPECT_EQ(refusal("NCCL_DEBUG"), "expected NAME=VALUE");
  EXPECT_EQ(refusal("NCCL_DEBUG="), "NCCL_DEBUG: the value is missing");
  EXPECT_EQ(refusal("NCCL_DEBUG=a\tb"), "NCCL_DEBUG: the value has a character that is not printable ASCII");
  EXPECT_TRUE(absl::StrContains(refusal("LD_PRELOAD=/x.so"), "LD_PRELOAD: allowed are NCCL_*, FI_*"))
      << refusal("LD_PRELOAD=/x.so");
}

}  // namespace
}  // namespace muster
