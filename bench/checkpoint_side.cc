// Our side of checkpoint.py: a real trainer that trains a GPT-2 on a small batch and writes a checkpoint every few
// steps. Prints a JSON line for each checkpoint: how long training waited, how long the write took, its bytes.
#include <CLI/CLI.hpp>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "worker/trainer/fake_trainer_server.h"

int main(int argc, char** argv) {
  uint32_t layers = 4, width = 768, vocabulary = 50257, checkpoints = 4, every = 2;
  std::string path;
  CLI::App app("Checkpoints of a trainer of Muster, for bench/checkpoint.py");
  app.add_option("--path", path, "folder of the checkpoints")->required();
  app.add_option("--layers", layers);
  app.add_option("--width", width);
  app.add_option("--vocabulary", vocabulary);
  app.add_option("--checkpoints", checkpoints);
  app.add_option("--every", every, "steps between them");
  CLI11_PARSE(app, argc, argv);

  muster::trainer::Bench bench;
  muster::JobSpec spec = bench.MakeJob();
  muster::Train& train = *spec.mutable_train();
  muster::Gpt2& model = *train.mutable_model()->mutable_gpt2();
  model.set_layers(layers), model.set_heads(width / 64), model.set_width(width), model.set_vocabulary(vocabulary);
  train.mutable_batch()->set_sequences(1);
  train.mutable_batch()->set_microbatch(1);
  train.set_steps(uint64_t{checkpoints} * every + 1);
  train.mutable_checkpoint()->set_path(path);
  train.mutable_checkpoint()->set_every_steps(every);
  const muster::Assignment assignment = bench.Assign(spec, 1);
  muster::trainer::Process trainer = bench.Start(assignment);
  if (trainer.Wait(absl::Minutes(30)) != 0) {
    std::fprintf(stderr, "%s\n", trainer.Log().c_str());
    return 1;
  }
  for (const muster::Record& record : bench.Records(assignment)) {
    // A job's last checkpoint is written while training waits.
    if (!record.has_checkpoint() || record.checkpoint().step() == train.steps()) continue;
    const nlohmann::json line = {{"stall_seconds", record.checkpoint().stall_seconds()},
                                 {"write_seconds", record.checkpoint().write_seconds()},
                                 {"bytes", record.checkpoint().bytes()}};
    std::printf("%s\n", line.dump().c_str());
  }
}
