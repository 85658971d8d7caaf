#include "cli/spec/writer.h"
#include "common/message/tree.h"

#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "cli/spec/reader.h"
#include "common/message/fields.h"
#include "proto/job.pb.h"

namespace muster::cli {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using google::protobuf::util::MessageDifferencer;

TEST(WriteSpec, WritesWhatUsersWrite) {
  const Reading reading = ReadSpec(R"(
apiVersion: muster/v1
kind: Job
model: {family: gpt2, size: tiny}
strategy: {kind: zero, stage: 3}
optimizer: {lr: 3e-4}
data: {tokens: "a: b", mean: [0.219, 0.4914, 1]}
steps: 10
env: [{name: NCCL_DEBUG, value: INFO}, {name: NCCL_IB_DISABLE, value: "1"}]
)",
                                   "f", {});
  ASSERT_TRUE(reading.problems.empty());
  EXPECT_EQ(WriteSpec(reading.spec),
            "apiVersion: muster/v1\n"
            "kind: Job\n"
            "env:\n  - name: NCCL_DEBUG\n    value: INFO\n  - name: NCCL_IB_DISABLE\n    value: \"1\"\n"
            "model:\n  family: gpt2\n  size: tiny\n"
            "data:\n  tokens: \"a: b\"\n  mean:\n    - 0.219\n    - 0.4914\n    - 1\n"
            "strategy:\n  kind: zero\n  stage: 3\n"
            "optimizer:\n  kind: adamw\n  lr: 0.0003\n"
            "steps: 10\n");
}

// Random specs: each field present or not, values from the extremes of their types.
class Generator {
 public:
  explicit Generator(uint64_t seed) : random_(seed) {}

  void Fill(Message& message) {
    const Descriptor& type = *message.GetDescriptor();
    const Reflection& r = *message.GetReflection();
    for (int i = 0; i < type.real_oneof_decl_count(); ++i) {
      const auto& oneof = *type.oneof_decl(i);
      Fill(*r.MutableMessage(&message, oneof.field(static_cast<int>(random_() % oneof.field_count()))));
    }
    for (int i = 0; i < type.field_count(); ++i) {
      const FieldDescriptor& field = *type.field(i);
      if (field.real_containing_oneof() != nullptr || random_() % 3 == 0) continue;
      Set(message, field);
    }
  }

 private:
  void Set(Message& message, const FieldDescriptor& field) {
    const Reflection& r = *message.GetReflection();
    if (field.is_repeated() && field.cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) {
      for (uint64_t count = random_() % 4; count > 0; --count) {
        if (field.cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
          r.AddString(&message, &field, "an item " + String());
        } else if (field.cpp_type() == FieldDescriptor::CPPTYPE_FLOAT) {
          r.AddFloat(&message, &field, static_cast<float>(random_() % 4096) / 256);
        } else if (field.cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE) {
          r.AddDouble(&message, &field, Double());
        } else if (field.cpp_type() == FieldDescriptor::CPPTYPE_UINT32) {
          r.AddUInt32(&message, &field, static_cast<uint32_t>(Bits()));
        } else if (field.cpp_type() == FieldDescriptor::CPPTYPE_ENUM) {
          const int values = field.enum_type()->value_count();
          r.AddEnum(&message, &field, field.enum_type()->value(1 + static_cast<int>(random_() % (values - 1))));
        } else {
          r.AddUInt64(&message, &field, Bits());
        }
      }
      return;
    }
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT32:
        return r.SetInt32(&message, &field, static_cast<int32_t>(Bits()));
      case FieldDescriptor::CPPTYPE_UINT32:
        return r.SetUInt32(&message, &field, static_cast<uint32_t>(Bits()));
      case FieldDescriptor::CPPTYPE_UINT64:
        return r.SetUInt64(&message, &field, Bits());
      case FieldDescriptor::CPPTYPE_DOUBLE:
        return r.SetDouble(&message, &field, Double());
      case FieldDescriptor::CPPTYPE_BOOL:
        return r.SetBool(&message, &field, random_() % 2 == 0);
      case FieldDescriptor::CPPTYPE_ENUM: {
        const int count = field.enum_type()->value_count();
        return r.SetEnum(&message, &field, field.enum_type()->value(1 + static_cast<int>(random_() % (count - 1))));
      }
      case FieldDescriptor::CPPTYPE_STRING:
        return r.SetString(&message, &field, String());
      case FieldDescriptor::CPPTYPE_MESSAGE:
        if (!field.is_repeated()) return Fill(*r.MutableMessage(&message, &field));
        for (uint64_t count = random_() % 3; count > 0; --count) Fill(*r.AddMessage(&message, &field));
        return;
      default:
        FAIL() << "a type that this generator does not know: " << field.full_name();
    }
  }
  uint64_t Bits() { return random_() >> (random_() % 65 == 64 ? 63 : random_() % 64); }
  double Double() {
    static constexpr double kCorners[] = {0, 1, -1, 3e-4, 1e-8, 1e15, 0.1, 1e300, 5e-324};
    if (random_() % 2 == 0) return kCorners[random_() % std::size(kCorners)];
    return std::ldexp(static_cast<double>(static_cast<int64_t>(random_())), static_cast<int>(random_() % 200) - 100);
  }
  std::string String() {
    static const std::string kPieces[] = {"a",      "runs/x", " ",      ":",      "# ",    "\"",   "'",    "\\",
                                          "\n",     "\t",     "ä",      "日本",   "null",  "~",    "-",    "12",
                                          "1e3",    "{",      "[",      "&",      "*",     "!",    "%",    "@",
                                          "\x01",   "...",    "---",    "true",   ",",     "\r\n", "\x7f", "\u2028",
                                          "\u0085", "\u0099", "\ufffe", "\uffff", "\u202e"};
    std::string text;
    do {
      text += kPieces[random_() % std::size(kPieces)];
    } while (random_() % 3 != 0);
    return text;
  }

  std::mt19937_64 random_;
};

TEST(WriteSpec, ReadsBackAsTheSameSpec) {
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    v1::JobSpec spec;
    Generator(seed).Fill(spec);
    spec.set_api_version(kApiVersion);
    spec.set_kind(kJobKind);
    spec.clear_template_();  // what is written is whole
    const std::string yaml = WriteSpec(spec);
    const Reading reading = ReadSpec(yaml, "f", {});
    ASSERT_TRUE(reading.problems.empty()) << seed << "\n" << yaml << reading.problems[0].ToString();
    ASSERT_TRUE(MessageDifferencer::Equals(reading.spec, spec)) << seed << "\n" << yaml << spec.DebugString();
  }
}

TEST(MessageTree, ShowsZerosTimesEnumsAndTheSpecInside) {
  v1::Job job;
  job.set_id("a-x7f2");
  job.set_state(v1::JOB_STATE_RUNNING);
  job.mutable_submitted()->set_seconds(1'700'000'000);
  job.mutable_spec()->mutable_train()->mutable_strategy()->mutable_ddp();
  const auto tree = MessageTree(job);
  EXPECT_EQ(tree["state"], "running");
  EXPECT_EQ(tree["submitted"], "2023-11-14T22:13:20Z");
  EXPECT_EQ(tree["restarts"], 0);
  EXPECT_EQ(tree["reason"], "");
  EXPECT_TRUE(tree["stop_intent"].is_null());
  EXPECT_EQ(tree["checkpoints"], nlohmann::ordered_json::array());
  EXPECT_FALSE(tree.contains("started"));
  EXPECT_EQ(tree["spec"].dump(), R"({"strategy":{"kind":"ddp"}})");
  v1::RankExit exit;
  exit.set_cause(v1::RankExit::VANISHED);
  exit.add_last_lines("x");
  EXPECT_EQ(ToYaml(MessageTree(exit)),
            "cause: vanished\nexit_code: 0\nsignal: 0\nmessage: \"\"\nlast_lines:\n  - x\npeak_memory_bytes: "
            "0\nof_node: false\nof_other_rank: false\n");
}

TEST(ToYaml, EscapesWhatSteersATerminal) {
  EXPECT_EQ(ToYaml("a\u202eb\u2066c\u009bd\x1b\x7f"), "\"a\\u202Eb\\u2066c\\u009Bd\\x1B\\x7F\"\n");
  EXPECT_EQ(ToYaml("\ufffe\u00e4\u65e5\n"), "\"\\uFFFE\u00e4\u65e5\\n\"\n");
}

TEST(ToYaml, NestsListsAndMaps) {
  const auto tree = nlohmann::ordered_json::parse(R"([{"a": 1, "b": {"c": [1, {"d": 2, "e": []}]}}, "x", {}])");
  EXPECT_EQ(ToYaml(tree),
            "- a: 1\n"
            "  b:\n"
            "    c:\n"
            "      - 1\n"
            "      - d: 2\n"
            "        e: []\n"
            "- x\n"
            "- {}\n");
}

}  // namespace
}  // namespace muster::cli
