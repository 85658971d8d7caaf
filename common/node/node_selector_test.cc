#include "common/node/node_selector.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace muster {
namespace {

TEST(NodeSelector, AsksForLabelsThatANodeHasOrHasNot) {
  Node node;
  node.set_id("gpu-7");
  node.set_hostname("host7.example");
  node.add_labels("rack=a");
  node.add_labels("zone=eu=west");  // a value may have a '='
  node.add_slots()->set_model("NVIDIA H200");
  struct Case {
    std::vector<std::string> selector;
    bool selects;
  };
  for (const Case& c : std::vector<Case>{{{}, true},
                                         {{"rack=a"}, true},
                                         {{"rack=b"}, false},
                                         {{"rack!=b"}, true},
                                         {{"rack!=a"}, false},
                                         {{"rack=a", "zone=eu=west"}, true},
                                         {{"rack=a", "zone=us"}, false},
                                         {{"row=1"}, false},
                                         {{"row!=1"}, true},
                                         {{"node=gpu-7"}, true},
                                         {{"node!=gpu-7"}, false},
                                         {{"hostname=host7.example"}, true},
                                         {{"device_model=NVIDIA H200"}, true},
                                         {{"device_model!=NVIDIA H200"}, false}}) {
    const google::protobuf::RepeatedPtrField<std::string> selector(c.selector.begin(), c.selector.end());
    EXPECT_EQ(Selects(selector, node), c.selects) << testing::PrintToString(c.selector);
  }
}

TEST(NodeSelector, FindsTheValueOfALabel) {
  Node node;
  node.set_id("gpu-7");
  node.set_hostname("host7");
  node.add_labels("rack2=x");
  node.add_labels("rack=a=b");
  EXPECT_EQ(NodeLabel(node, "rack"), "a=b");
  EXPECT_EQ(NodeLabel(node, "rack2"), "x");
  EXPECT_EQ(NodeLabel(node, "rac"), std::nullopt);
  EXPECT_EQ(NodeLabel(node, "node"), "gpu-7");
  EXPECT_EQ(NodeLabel(node, "hostname"), "host7");
  EXPECT_EQ(NodeLabel(node, "device_model"), std::nullopt) << "it has no slots";
  node.add_slots()->set_model("NVIDIA H200");
  EXPECT_EQ(NodeLabel(node, "device_model"), "NVIDIA H200");
  EXPECT_TRUE(CheckNodeLabelKey("example.com/rack").ok());
  for (const std::string bad : {"", "rack=a", "-rack", "ra ck"}) {
    EXPECT_EQ(CheckNodeLabelKey(bad).code(), absl::StatusCode::kInvalidArgument) << bad;
  }
}

TEST(NodeSelector, SaysWhatIsNone) {
  for (const char* good : {"rack=a", "rack!=a", "example.com/zone=eu 1", "node=x", "a=b=c"}) {
    EXPECT_TRUE(CheckNodeRequirement(good).ok()) << good;
  }
  for (const std::string bad :
       {"", "rack", "=a", "!=a", "rack=", "rack!", "ra ck=a", "rack=a,b", "rack=\n", "-rack=a", "rack=\xc3\xa4"}) {
    EXPECT_EQ(CheckNodeRequirement(bad).code(), absl::StatusCode::kInvalidArgument) << bad;
  }
  EXPECT_FALSE(CheckNodeRequirement(std::string(64, 'k') + "=v").ok());
  EXPECT_FALSE(CheckNodeRequirement("k=" + std::string(129, 'v')).ok());
  const auto labels = [](const std::vector<std::string>& all) {
    return CheckNodeLabels(google::protobuf::RepeatedPtrField<std::string>(all.begin(), all.end()));
  };
  EXPECT_TRUE(labels({"rack=a"}).ok());
  for (const char* bad : {"rack", "rack!=a", "node=x", "hostname=x", "device_model=x"}) {
    EXPECT_FALSE(labels({bad}).ok()) << bad;
    EXPECT_FALSE(labels({"rack=a", bad}).ok()) << bad;
  }
  EXPECT_TRUE(labels(std::vector<std::string>(64, "rack=a")).ok());
  EXPECT_FALSE(labels(std::vector<std::string>(65, "rack=a")).ok());
}

TEST(Labels, OfJobsAreAnyKeysAndValues) {
  const auto list = [](const std::vector<std::string>& of) {
    return google::protobuf::RepeatedPtrField<std::string>(of.begin(), of.end());
  };
  EXPECT_TRUE(LabelSelector(list({})).Selects(list({})));
  EXPECT_TRUE(
      LabelSelector(list({"team=nlp", "node=x", "stage!=test"})).Selects(list({"node=x", "stage=prod", "team=nlp"})));
  EXPECT_FALSE(LabelSelector(list({"team=nlp"})).Selects(list({"team=nlp2"})));
  EXPECT_FALSE(LabelSelector(list({"team!=nlp"})).Selects(list({"team=nlp"})));
  EXPECT_TRUE(CheckLabel("node=x").ok()) << "what is every node's own means nothing of a job";
  EXPECT_EQ(LabelKey("a=b=c"), "a");
  for (const char* bad : {"", "team", "team=", "=x", "team!=x", "te am=x", "team=a,b", "team=\n"}) {
    EXPECT_EQ(CheckLabel(bad).code(), absl::StatusCode::kInvalidArgument) << bad;
  }
  EXPECT_TRUE(CheckLabelRequirement("team!=nlp").ok());
  EXPECT_FALSE(CheckLabelRequirement("team").ok());
}

}  // namespace
}  // namespace muster
