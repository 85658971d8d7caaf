#include "cli/spec/schema.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace muster::cli {
namespace {

using nlohmann::ordered_json;

TEST(Schema, FollowsTheRulesOfTheReader) {
  const ordered_json schema = SpecSchema();
  EXPECT_EQ(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
  EXPECT_EQ(schema["additionalProperties"], false);
  EXPECT_EQ(schema["properties"]["apiVersion"]["const"], "muster/v1");
  // Members of a oneof are next to its key.
  EXPECT_EQ(schema["properties"]["optimizer"]["anyOf"][1]["$ref"], "#/$defs/Optimizer");
  const ordered_json optimizer = schema["$defs"]["Optimizer"];
  EXPECT_EQ(optimizer["properties"]["kind"]["enum"], (ordered_json{"adamw", "sgd", "lion", "muon", "adafactor"}));
  EXPECT_EQ(optimizer["properties"]["kind"]["default"], "adamw");
  EXPECT_EQ(optimizer["properties"]["lr"]["type"], "number");
  EXPECT_EQ(optimizer["additionalProperties"], false);
  EXPECT_EQ(schema["$defs"]["Model"]["required"], (ordered_json{"family"}));
  EXPECT_FALSE(schema["$defs"].contains("Gpt2"));
  EXPECT_EQ(schema["$defs"]["Precision"]["properties"]["compute"]["enum"], (ordered_json{"fp32", "bf16", "fp16"}));
  EXPECT_EQ(schema["$defs"]["Precision"]["properties"]["params"]["enum"], (ordered_json{"fp32", "bf16"}));
  EXPECT_EQ(schema["properties"]["steps"]["maximum"], 18446744073709551615u);
  EXPECT_EQ(schema["properties"]["parallel"]["anyOf"],
            (ordered_json{{{"const", "auto"}}, {{"$ref", "#/$defs/Parallel"}}}));
  EXPECT_EQ(schema["$defs"]["Pipeline"]["properties"]["cut"]["anyOf"],
            (ordered_json{{{"const", "auto"}}, {{"type", "array"}, {"items", {{"type", "string"}}}}}));
  EXPECT_EQ(schema["properties"]["env"]["type"], "array");
  EXPECT_EQ(schema["properties"]["labels"]["anyOf"][0]["type"], "array");
  EXPECT_EQ(schema["properties"]["labels"]["anyOf"][1]["type"], "object");
  EXPECT_EQ(schema["properties"]["env"]["items"]["$ref"], "#/$defs/EnvVar");
  EXPECT_EQ(schema["$defs"]["EnvVar"]["properties"]["value"]["type"], "string");
}

TEST(Schema, DescribesByTheCommentsOfTheProto) {
  const ordered_json schema = SpecSchema();
  EXPECT_EQ(schema["properties"]["max_restarts"]["description"],
            "restarts without progress before the job fails; default 3");
  EXPECT_EQ(schema["$defs"]["Optimizer"]["properties"]["lr"]["description"],
            "Peak learning rate; default 3e-4 (adamw), 0.1 (sgd), 1e-4 (lion), 1e-3 (muon), 1e-2 (adafactor).");
  // If two members have a key of the same name, both comments stay.
  const ordered_json& least = schema["$defs"]["LrSchedule"]["properties"]["min_lr"]["anyOf"];
  ASSERT_EQ(least.size(), 2u);
  EXPECT_EQ(least[0]["description"], "default 0");
  EXPECT_EQ(least[1]["description"], "default 0.1 * lr");
}

}  // namespace
}  // namespace muster::cli
