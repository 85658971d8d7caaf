// The schema and the reader must agree on what fits: each file is judged by both, the schema's side by Python's
// jsonschema.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "cli/spec/reader.h"
#include "cli/spec/sample_job.h"
#include "cli/spec/schema.h"
#include "testing/temporary_folder.h"

namespace muster::cli {
namespace {

constexpr char kHead[] = "apiVersion: muster/v1\nkind: Job\n";

const std::vector<std::string>& Right() {
  static const auto& texts = *new std::vector<std::string>{
      "strategy: ddp\ncommunication: {compression: auto}\n",
      "model: {family: gpt2, size: tiny, layers: 2}\n",
      "workload: train\nsteps: 10\nname: a\n",
      "workload: exec\ncommand: [python, train.py]\nlaunchers: [torchrun, slurm]\nworkdir: /data\n",
      "strategy: {}\n",
      "pipeline: {cut: auto}\n",
      "pipeline: {cut: [h.4, h.8]}\n",
      "strategy: {kind: zero, stage: 3}\n",
      "strategy: {kind: fsdp, reshard: hybrid}\n",
      "optimizer: {lr: 3e-4, beta1: 0.9, eps: 1e-8}\n",
      "optimizer: {kind: adamw, beta2: 0.95, lr: 1}\n",
      "optimizer: {kind: sgd, momentum: 0, nesterov: true}\n",
      "optimizer: {kind: lion, beta1: 0.95, beta2: 0.98}\n",
      "optimizer: {kind: muon, momentum: 0.9, ns_steps: 4, adjust_lr_fn: match_rms_adamw, adamw_lr: 3e-4}\n",
      "optimizer: {kind: adafactor, beta2_decay: -0.5, eps1: 1e-30, d: 2}\n",
      "optimizer: {lr_schedule: {warmup_steps: 3}}\n",
      "optimizer: {lr_schedule: {kind: linear, min_lr: 0.1}}\n",
      "optimizer: {lr_schedule: {kind: cosine, min_lr: 0, warmup_steps: 1}}\n",
      "resources: {ranks: 4294967295, device: cuda}\npriority: -2147483648\n",
      "precision: {compute: bf16}\nseed: 18446744073709551615\n",
      "data: {tokens: a, order: sequential}\nvalidation: {every_steps: 0}\ncheckpoint: {path: c, keep: 2}\n",
  };
  return texts;
}

const std::vector<std::string>& Wrong() {
  static const auto& texts = *new std::vector<std::string>{
      "stepz: 1\n",
      "pipeline: {cut: even}\n",
      "steps: -1\n",
      "steps: 1.5\n",
      "steps: many\n",
      "name: 12\n",
      "name: [a]\n",
      "priority: 2147483648\n",
      "model: {}\n",
      "model: {family: gpt3}\n",
      "model: {family: gpt2, size: huge}\n",
      "model: gpt2\n",
      "strategy: {kind: ddp, stage: 3}\n",
      "strategy: {stage: 3}\n",
      "strategy: {kind: fsdp, reshard: FULL_SHARD}\n",
      "optimizer: {kind: sgd, beta1: 0.9}\n",
      "optimizer: {kind: lion, eps: 1e-8}\n",
      "optimizer: {kind: muon, adjust_lr_fn: best}\n",
      "optimizer: {nesterov: true}\n",
      "optimizer: {kind: sgd, nesterov: 1}\n",
      "optimizer: {lr: fast}\n",
      "optimizer: {lr_schedule: {min_lr: 0.1}}\n",
      "optimizer: {lr_schedule: {kind: constant, min_lr: 0.1}}\n",
      "resources: {device: gpu}\n",
      "precision: {compute: fp64}\n",
      "workload: other\n",
      "workload: exec\nsteps: 10\n",
      "command: [python]\n",
      "data:\n",
      "train: {steps: 3}\n",
  };
  return texts;
}

std::string Read(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

class SchemaPeerTest : public ::testing::Test {
 protected:
  // The result of jsonschema for each text.
  std::vector<std::string> Judge(const std::vector<std::string>& texts) const {
    const char* python = getenv("MUSTER_PEER_PYTHON");
    if (python == nullptr) {
      ADD_FAILURE() << "MUSTER_PEER_PYTHON is not set: run ./test.sh, or tools/fetch_torch.sh peer and pass "
                       "--test_env=MUSTER_PEER_PYTHON=~/.cache/muster/peer/bin/python";
      return {};
    }
    std::string command =
        absl::StrCat(python, " cli/spec/schema_peer.py ", folder_.Write("schema.json", SpecSchema().dump()));
    for (size_t i = 0; i < texts.size(); ++i)
      absl::StrAppend(&command, " ", folder_.Write(absl::StrCat(i, ".yaml"), texts[i]));
    std::FILE* pipe = popen(command.c_str(), "r");
    std::string out;
    char buffer[4096];
    for (size_t count; (count = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) out.append(buffer, count);
    EXPECT_EQ(pclose(pipe), 0) << out;
    return absl::StrSplit(out, '\n', absl::SkipEmpty());
  }

  const TemporaryFolder folder_;
};

TEST_F(SchemaPeerTest, AgreesWithTheReader) {
  std::vector<std::string> texts;
  for (const std::string& body : Right()) texts.push_back(kHead + body);
  texts.push_back(WriteSampleJob({}));
  texts.push_back(Read("examples/gpt2_tiny.yaml"));
  const size_t right = texts.size();
  for (const std::string& body : Wrong()) texts.push_back(kHead + body);
  for (const char* text : {"kind: Job\n", "apiVersion: muster/v2\nkind: Job\n", "- a\n"}) texts.push_back(text);
  const std::vector<std::string> answers = Judge(texts);
  ASSERT_EQ(answers.size(), texts.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    EXPECT_EQ(ReadSpec(texts[i], "job.yaml", {}).problems.empty(), i < right) << texts[i];
    EXPECT_EQ(answers[i] == "ok", i < right) << texts[i] << answers[i];
  }
}

}  // namespace
}  // namespace muster::cli
