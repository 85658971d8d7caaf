#include "cli/spec/reader.h"

#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "cli/spec/paths.h"
#include "cli/spec/set.h"
#include "cli/spec/writer.h"

namespace muster::cli {
namespace {

constexpr char kWhole[] = R"(apiVersion: muster/v1
kind: Job
name: gpt2-tiny
model: {family: gpt2, size: tiny}
data: {tokens: train.bin, validation: /data/val.bin}
strategy: {kind: zero, stage: 3}
resources: {ranks: 2, device: auto}
batch: {sequences: 64, microbatch: 8}
precision: {compute: bf16, reduce: fp32}
optimizer: {kind: sgd, lr: 3e-4, momentum: 0.9, nesterov: true, lr_schedule: {kind: cosine, min_lr: 0, warmup_steps: 010}}
steps: 1000
seed: 0
checkpoint: {path: runs/gpt2-tiny, every_steps: 100, keep: 2}
max_restarts: 0
priority: -3
)";

std::string Text(const std::vector<Problem>& problems) {
  std::string all;
  for (const Problem& problem : problems) all += problem.ToString() + "\n";
  return all;
}

std::string Problems(const std::string& body) {
  return Text(ReadSpec("apiVersion: muster/v1\nkind: Job\n" + body, "job.yaml", {}).problems);
}

TEST(ReadSpec, ReadsAWholeSpec) {
  const Reading reading = ReadSpec(kWhole, "job.yaml", {});
  ASSERT_EQ(Text(reading.problems), "");
  const v1::JobSpec& spec = reading.spec;
  EXPECT_EQ(spec.api_version(), "muster/v1");
  EXPECT_EQ(spec.resources().ranks(), 2u);
  EXPECT_EQ(spec.resources().device(), v1::DEVICE_AUTO);
  EXPECT_EQ(spec.priority(), -3);
  EXPECT_TRUE(spec.has_max_restarts());
  const v1::Train& train = spec.train();
  EXPECT_EQ(train.model().gpt2().size(), v1::GPT2_SIZE_TINY);
  EXPECT_EQ(train.strategy().zero().stage(), 3u);
  EXPECT_EQ(train.precision().compute(), v1::DTYPE_BF16);
  EXPECT_EQ(train.optimizer().lr(), 3e-4);
  EXPECT_TRUE(train.optimizer().sgd().nesterov());
  EXPECT_EQ(train.optimizer().lr_schedule().warmup_steps(), 10u);  // YAML 1.2: no octal 8
  EXPECT_EQ(train.optimizer().lr_schedule().cosine().min_lr(), 0);
  EXPECT_TRUE(train.has_seed());
  EXPECT_FALSE(train.has_validation());
}

TEST(ReadSpec, TakesLabelsAsAMapOrAsAList) {
  const auto labels = [](const std::string& text) {
    const Reading reading = ReadSpec(std::string(kWhole) + text, "job.yaml", {});
    EXPECT_EQ(Text(reading.problems), "") << text;
    return std::vector<std::string>(reading.spec.labels().begin(), reading.spec.labels().end());
  };
  EXPECT_EQ(labels("labels: {team: nlp, run: 7, ok: true}\n"),
            (std::vector<std::string>{"team=nlp", "run=7", "ok=true"}));
  EXPECT_EQ(labels("labels: [team=nlp]\n"), (std::vector<std::string>{"team=nlp"}));
  EXPECT_TRUE(absl::StrContains(Problems("labels: {team: [a]}\n"), "labels.team: expected a value, got"));
  EXPECT_TRUE(absl::StrContains(Problems("labels: nlp\n"), "labels: expected a list, got"));
  EXPECT_TRUE(absl::StrContains(Problems("resources: {node_selector: {rack: a}}\n"), "expected a list"))
      << "only where the field says so";
}

TEST(ReadSpec, TakesTheDefaultMemberOfAOneofThatIsLeftOut) {
  const Reading reading = ReadSpec("apiVersion: muster/v1\nkind: Job\noptimizer: {lr: 1}\nstrategy: {}\n", "f", {});
  EXPECT_EQ(Text(reading.problems), "");
  EXPECT_TRUE(reading.spec.has_train());
  EXPECT_TRUE(reading.spec.train().optimizer().has_adamw());
  EXPECT_TRUE(reading.spec.train().strategy().has_single());
}

TEST(ReadSpec, UnknownFieldsSuggestTheNearestName) {
  EXPECT_EQ(Problems("optimizer:\n  lrr: 1\n"),
            "job.yaml:4:3: optimizer.lrr: unknown field, did you mean optimizer.lr?\n");
  EXPECT_EQ(Problems("apiversion: x\n"), "job.yaml:3:1: apiversion: unknown field, did you mean apiVersion?\n");
  // A key of exactly one other map gets a suggestion.
  EXPECT_EQ(Problems("lr: 1\n"), "job.yaml:3:1: lr: unknown field, did you mean optimizer.lr?\n");
  EXPECT_EQ(Problems("every_steps: 1\n"), "job.yaml:3:1: every_steps: unknown field\n");
  EXPECT_EQ(Problems("blah: 1\n"), "job.yaml:3:1: blah: unknown field\n");
  // Also of a map below its own; a field of another map is none that was meant.
  EXPECT_EQ(Problems("optimizer: {lr: 1, warmup_steps: 5}\n"),
            "job.yaml:3:20: optimizer.warmup_steps: unknown field, did you mean optimizer.lr_schedule.warmup_steps?\n");
  EXPECT_EQ(Problems("parallel: {kind: x}\n"), "job.yaml:3:12: parallel.kind: unknown field\n");
  EXPECT_EQ(Problems("offload: {kind: x}\n"), "job.yaml:3:11: offload.kind: unknown field\n");
  EXPECT_EQ(Problems("strategy: {kind: zero, stagge: 1}\n"),
            "job.yaml:3:24: strategy.stagge: unknown field, did you mean strategy.stage?\n");
}

TEST(ReadSpec, StepsThatNoFieldHoldsAreOutOfTheBoundsOfSteps) {
  EXPECT_EQ(Problems("steps: -1\n"), "job.yaml:3:8: steps: must be 1 to 1000000000000, got -1\n");
  EXPECT_EQ(Problems("steps: 99999999999999999999\n"),
            "job.yaml:3:8: steps: must be 1 to 1000000000000, got 99999999999999999999\n");
  EXPECT_EQ(Problems("steps: \"10\"\n"),
            "job.yaml:3:8: steps: expected an integer, got the string \"10\", did you mean 10?\n");
}

// What depends on the value is then checked in the same pass, here and by the coordinator.
TEST(ReadSpec, AMisspelledValueIsReadAsItsSuggestion) {
  const Reading reading = ReadSpec(
      "apiVersion: muster/v1\nkind: Job\nmodel: {family: gpt2, size: tinny}\nprecision: {compute: bf61, reduce: "
      "float16}\n"
      "optimizer: {lr_schedule: {kind: cosin, min_lr: 0.1}}\nstrategy: zerro\nsteps: 1e3\nseed: \"7\"\n"
      "deterministic: yes\n",
      "job.yaml", {});
  EXPECT_EQ(reading.problems.size(), 8u) << Text(reading.problems);
  const v1::Train& train = reading.spec.train();
  EXPECT_EQ(train.model().gpt2().size(), v1::GPT2_SIZE_TINY);
  EXPECT_EQ(train.precision().compute(), v1::DTYPE_BF16);
  EXPECT_EQ(train.precision().reduce(), v1::DTYPE_FP16);
  EXPECT_EQ(train.optimizer().lr_schedule().cosine().min_lr(), 0.1);
  EXPECT_TRUE(train.strategy().has_zero());
  EXPECT_EQ(train.steps(), 1000u);
  EXPECT_EQ(train.seed(), 7u);
  EXPECT_TRUE(train.deterministic());
  // Nothing is like these.
  const Reading unlike =
      ReadSpec("apiVersion: muster/v1\nkind: Job\nmodel: {family: gpt2, size: huge}\nprecision: {compute: int4}\n",
               "job.yaml", {});
  EXPECT_EQ(unlike.problems.size(), 2u) << Text(unlike.problems);
  EXPECT_FALSE(unlike.spec.train().model().gpt2().has_size());
  EXPECT_FALSE(unlike.spec.train().precision().has_compute());
}

TEST(ReadSpec, FieldsOfAnotherMemberNameTheirOwner) {
  EXPECT_EQ(Problems("strategy: {kind: ddp, stage: 1}\n"),
            "job.yaml:3:23: strategy.stage: belongs to kind: zero, but kind is ddp\n");
  EXPECT_EQ(Problems("strategy: {stage: 1}\n"),
            "job.yaml:3:12: strategy.stage: belongs to kind: zero, but kind is single\n");
  EXPECT_EQ(Problems("optimizer: {lr_schedule: {min_lr: 1}}\n"),
            "job.yaml:3:27: optimizer.lr_schedule.min_lr: belongs to kind: linear or kind: cosine, "
            "but kind is constant\n");
  // The wrong member is the only error: the one that is suggested has the field.
  EXPECT_EQ(Problems("strategy: {kind: zerro, stage: 1}\n"),
            "job.yaml:3:18: strategy.kind: expected single, ddp, zero, fsdp or auto, "
            "got the string \"zerro\", did you mean zero?\n");
  // Nothing is like it: whose fields these are is not known.
  EXPECT_EQ(Problems("strategy: {kind: megatron, stage: 1, reshard: hybrid}\n"),
            "job.yaml:3:18: strategy.kind: expected single, ddp, zero, fsdp or auto, "
            "got the string \"megatron\"\n");
}

TEST(ReadSpec, AutoStandsInPlaceOfAMapThatHasIt) {
  const std::string head = "apiVersion: muster/v1\nkind: Job\nmodel: {family: gpt2}\n";
  const Reading word = ReadSpec(head + "parallel: auto\n", "job.yaml", {});
  EXPECT_EQ(Text(word.problems), "");
  EXPECT_TRUE(word.spec.train().parallel().auto_());
  const Reading map = ReadSpec(head + "parallel: {auto: true}\n", "job.yaml", {});
  EXPECT_EQ(map.spec.SerializeAsString(), word.spec.SerializeAsString());
  EXPECT_TRUE(absl::StrContains(Problems("parallel: 4\n"), "parallel: expected auto or a map, got the number 4"))
      << Problems("parallel: 4\n");
  EXPECT_TRUE(absl::StrContains(Problems("batch: auto\n"), "batch: expected a map"));
}

TEST(ReadSpec, AutoStandsForLeavingOutAListThatSaysSo) {
  const std::string head = "apiVersion: muster/v1\nkind: Job\n",
                    two = head + "pipeline: {chunks: 2, cut: [h.4, h.8]}\n";
  const std::string left_out = ReadSpec(head + "pipeline: {chunks: 2}\n", "job.yaml", {}).spec.SerializeAsString();
  const auto same = [&](const Reading& reading) {
    EXPECT_EQ(Text(reading.problems), "");
    EXPECT_EQ(reading.spec.SerializeAsString(), left_out);
  };
  same(ReadSpec(head + "pipeline: {chunks: 2, cut: auto}\n", "job.yaml", {}));
  same(ReadSpec(two, "job.yaml", {*ParseAssignment("pipeline.cut=auto")}));
  same(ReadSpecs({{two, "base.yaml"}, {"pipeline: {cut: auto}\n", "more.yaml"}}, {}));
  EXPECT_EQ(ReadSpec(two, "job.yaml", {}).spec.train().pipeline().cut_size(), 2);
  EXPECT_EQ(Problems("pipeline: {cut: auot}\n"),
            "job.yaml:3:17: pipeline.cut: expected auto or a list, got the string \"auot\", did you mean auto?\n");
  EXPECT_EQ(Problems("launchers: auto\nworkload: exec\n"),
            "job.yaml:3:12: launchers: expected a list, got the string \"auto\"\n");
}

TEST(ReadSpec, AWordIsShortForItsKind) {
  const std::string head = "apiVersion: muster/v1\nkind: Job\nmodel: {family: gpt2}\n";
  const auto same = [&](const std::string& word, const std::string& map) {
    const Reading a = ReadSpec(head + word, "job.yaml", {}), b = ReadSpec(head + map, "job.yaml", {});
    EXPECT_EQ(Text(a.problems), "");
    EXPECT_EQ(a.spec.SerializeAsString(), b.spec.SerializeAsString()) << word;
    EXPECT_NE(a.spec.SerializeAsString(), ReadSpec(head, "job.yaml", {}).spec.SerializeAsString());
  };
  same("strategy: ddp\n", "strategy: {kind: ddp}\n");
  same("communication: {compression: auto}\n", "communication: {compression: {kind: auto}}\n");
  EXPECT_TRUE(absl::StrContains(Problems("strategy: dpd\n"),
                                "strategy: expected single, ddp, zero, fsdp, auto or a map, got the string \"dpd\", "
                                "did you mean ddp?"));
}

TEST(ReadSpec, AnOldSpellingNamesTheNewOne) {
  EXPECT_EQ(Problems("strategy: {kind: pipeline}\n"),
            "job.yaml:3:18: strategy.kind: pipelines are now parallel: {pipeline: N} beside the strategy\n");
}

TEST(ReadSpec, RequiresWhatEveryFileStates) {
  EXPECT_EQ(Text(ReadSpec("name: a\n", "f", {}).problems),
            "f:1:1: apiVersion: is required: add `apiVersion: muster/v1`\n"
            "f:1:1: kind: is required: add `kind: Job`\n");
  EXPECT_EQ(Text(ReadSpec("apiVersion: muster/v2\nkind: job\n", "f", {}).problems),
            "f:1:13: apiVersion: expected muster/v1, got the string \"muster/v2\", "
            "did you mean muster/v1?\n"
            "f:2:7: kind: expected Job, got the string \"job\", did you mean Job?\n");
  EXPECT_EQ(Problems("model: {size: tiny}\n"),
            "job.yaml:3:1: model.family: is required: gpt2, llama, resnet or custom\n");
}

TEST(ReadSpec, WhatIsNoMapAtAll) {
  EXPECT_EQ(Text(ReadSpec("", "f", {}).problems), "f:1:1: is empty: expected a job spec\n");
  EXPECT_EQ(Text(ReadSpec("- a\n", "f", {}).problems), "f:1:1: expected a map, got a list\n");
  EXPECT_EQ(Text(ReadSpec("job\n", "f", {}).problems), "f:1:1: expected a map, got the string \"job\"\n");
  EXPECT_EQ(Text(ReadSpec("\x80", "f", {}).problems), "f:1:1: is not UTF-8: byte 0x80\n");
}

TEST(ReadSpec, AllErrorsAtOnceInTheOrderOfTheFile) {
  EXPECT_EQ(Problems("stepps: 1\nmodel: {family: gpt2, size: huge}\nseed: -1\nseed: 2\nbatch: 3\nnme: x\n"),
            "job.yaml:3:1: stepps: unknown field, did you mean steps?\n"
            "job.yaml:4:29: model.size: expected tiny, small, medium, large or xl, got the string \"huge\"\n"
            "job.yaml:5:7: seed: must not be negative, got the number -1\n"
            "job.yaml:6:1: seed: duplicate key, the first is in line 5\n"
            "job.yaml:7:8: batch: expected a map, got the number 3\n"
            "job.yaml:8:1: nme: unknown field, did you mean name?\n");
}

TEST(ReadSpec, UnderAWrongKindTheOtherErrorsShowToo) {
  EXPECT_EQ(
      Problems("model: {family: gtp2, layers: -3, heads: 4, widht: 8}\noptimizer: {kind: adam, lr: 1e-3, beta1: x}\n"),
      "job.yaml:3:17: model.family: expected gpt2, llama, resnet or custom, got the string \"gtp2\", did you mean "
      "gpt2?\n"
      "job.yaml:3:31: model.layers: must not be negative, got the number -3\n"
      "job.yaml:3:45: model.widht: unknown field, did you mean model.width?\n"
      "job.yaml:4:19: optimizer.kind: expected adamw, sgd, lion, muon or adafactor, got the string \"adam\", did "
      "you mean adamw?\n"
      "job.yaml:4:42: optimizer.beta1: expected a number, got the string \"x\"\n");
}

TEST(ReadSpec, AMisspelledKindIsReadAsTheOneThatIsSuggested) {
  const Reading reading = ReadSpec(
      "apiVersion: muster/v1\nkind: Job\nmodel: {family: gtp2, heads: 3}\n"
      "optimizer: {kind: adam, beta2: 1.5, lr_schedule: {kind: cos, min_lr: 9}}\nstrategy: fdsp\nparallel: atuo\n",
      "job.yaml", {});
  EXPECT_EQ(reading.problems.size(), 5u) << Text(reading.problems);
  const v1::Train& train = reading.spec.train();
  EXPECT_EQ(train.model().gpt2().heads(), 3u);
  EXPECT_EQ(train.optimizer().adamw().beta2(), 1.5);
  EXPECT_EQ(train.optimizer().lr_schedule().cosine().min_lr(), 9);
  EXPECT_TRUE(train.strategy().has_fsdp());
  EXPECT_TRUE(train.parallel().auto_());
  EXPECT_EQ(Problems("optimizer: {kind: adam, beta2: 1, momentum: 1}\n"),
            "job.yaml:3:19: optimizer.kind: expected adamw, sgd, lion, muon or adafactor, got the string \"adam\", did "
            "you mean adamw?\n"
            "job.yaml:3:35: optimizer.momentum: belongs to kind: sgd or kind: muon, but kind is adamw\n");
  // Without a suggestion no kind is assumed.
  const Reading open =
      ReadSpec("apiVersion: muster/v1\nkind: Job\noptimizer: {kind: shampoo, beta2: 1.5}\n", "job.yaml", {});
  EXPECT_EQ(Text(open.problems),
            "job.yaml:3:19: optimizer.kind: expected adamw, sgd, lion, muon or adafactor, got the string "
            "\"shampoo\"\n");
  EXPECT_EQ(open.spec.train().optimizer().kind_case(), v1::Optimizer::KIND_NOT_SET);
}

TEST(ReadSpec, ABrokenFileStillShowsItsOtherErrors) {
  EXPECT_EQ(Problems("stepps: 1\nname: @\n"),
            "job.yaml:3:1: stepps: unknown field, did you mean steps?\n"
            "job.yaml:4:7: bad syntax: unknown token\n");
  EXPECT_FALSE(ReadSpec("name: @\n", "job.yaml", {}).complete) << "what is missing may come after the error";
  EXPECT_TRUE(ReadSpec("nam: x\n", "job.yaml", {}).complete);
  EXPECT_FALSE(ReadSpec("- x\n", "job.yaml", {}).complete);
}

TEST(Set, OverridesAndAddsTypedByTheSameReader) {
  const Reading reading = ReadSpec(kWhole, "job.yaml",
                                   {*ParseAssignment("optimizer.lr=1e-3"), *ParseAssignment("validation.every_steps=5"),
                                    *ParseAssignment("strategy={kind: fsdp, reshard: hybrid}"),
                                    *ParseAssignment("name=123"), *ParseAssignment("data.tokens=a: b #c.bin")});
  EXPECT_EQ(Text(reading.problems), "");
  EXPECT_EQ(reading.spec.train().optimizer().lr(), 1e-3);
  EXPECT_EQ(reading.spec.train().validation().every_steps(), 5u);
  EXPECT_EQ(reading.spec.train().strategy().fsdp().reshard(), v1::RESHARD_HYBRID);
  EXPECT_EQ(reading.spec.name(), "123");  // a command line has no quotes
  EXPECT_EQ(reading.spec.train().data().tokens(), "a: b #c.bin");
}

TEST(Set, ErrorsNameTheFlag) {
  const auto problems = [](const char* assignment) {
    return Text(ReadSpec(kWhole, "job.yaml", {*ParseAssignment(assignment)}).problems);
  };
  EXPECT_EQ(problems("optimizer.lr=abc"), "--set optimizer.lr: expected a number, got the string \"abc\"\n");
  EXPECT_EQ(problems("optimizer.lrr=1"), "--set optimizer.lrr: unknown field, did you mean optimizer.lr?\n");
  EXPECT_EQ(problems("steps=1e6"), "--set steps: expected an integer, got the number 1e6, did you mean 1000000?\n");
  EXPECT_EQ(problems("name="), "--set name: is empty: give it a value or leave the key out\n");
  EXPECT_EQ(problems("steps.x=1"), "--set steps.x: cannot be set: steps is the number 1000\n");
  EXPECT_EQ(problems("strategy.kind=ddp"), "job.yaml:6:24: strategy.stage: belongs to kind: zero, but kind is ddp\n");
  EXPECT_EQ(problems("data={tokens: 1"), "--set data: this { is not closed\n");
  EXPECT_EQ(problems("steps=[1,2"), "--set steps: this [ is not closed\n") << "and nothing of its type";
  for (const char* bad : {"", "=1", "a", "a..b=1", ".a=1", "a b=1"}) EXPECT_FALSE(ParseAssignment(bad).ok()) << bad;
}

TEST(Flags, MakeAWholeSpec) {
  const Reading reading = ReadFlags({{"--model", "model.family", "gpt2"},
                                     {"--model", "model.size", "tiny"},
                                     {"--strategy", "strategy.kind", "zero"},
                                     {"--strategy", "strategy.stage", "3"},
                                     {"--lr", "optimizer.lr", "x"}});
  EXPECT_EQ(Text(reading.problems), "--lr: expected a number, got the string \"x\"\n");
  EXPECT_EQ(reading.spec.api_version(), kApiVersion);
  EXPECT_EQ(reading.spec.train().strategy().zero().stage(), 3u);
}

TEST(Locate, FindsTheFieldOrItsNearestParent) {
  const Reading reading = ReadSpec(kWhole, "job.yaml", {{"--lr", "optimizer.lr", "-1"}});
  v1::SpecErrors errors;
  const auto add = [&](const char* path) {
    v1::SpecError& error = *errors.add_errors();
    error.set_path(path);
    error.set_message("is wrong");
  };
  add("optimizer.lr");
  add("batch.sequences");
  add("optimizer.clip_norm");
  add("validation.every_steps");
  add("strategy.kind");
  EXPECT_EQ(Text(Locate(errors, reading.sources)),
            "job.yaml:1:1: validation.every_steps: is wrong\n"
            "job.yaml:6:18: strategy.kind: is wrong\n"
            "job.yaml:8:20: batch.sequences: is wrong\n"
            "job.yaml:10:1: optimizer.clip_norm: is wrong\n"
            "--lr: is wrong\n");
}

TEST(Locate, FindsAnEntryOfAList) {
  const Reading reading = ReadSpec(R"(apiVersion: muster/v1
kind: Job
env:
  - {name: NCCL_DEBUG, value: INFO}
  - name: LD_PRELOAD
)",
                                   "job.yaml", {});
  ASSERT_EQ(Text(reading.problems), "");
  ASSERT_EQ(reading.spec.env_size(), 2);
  EXPECT_EQ(reading.spec.env(0).value(), "INFO");
  v1::SpecErrors errors;
  for (const char* path : {"env", "env[0].value", "env[1].name", "env[1].value"}) {
    v1::SpecError& error = *errors.add_errors();
    error.set_path(path);
    error.set_message("is wrong");
  }
  EXPECT_EQ(Text(Locate(errors, reading.sources)),
            "job.yaml:3:1: env: is wrong\n"
            "job.yaml:4:31: env[0].value: is wrong\n"
            "job.yaml:5:5: env[1].value: is wrong\n"
            "job.yaml:5:11: env[1].name: is wrong\n");
}

TEST(Merge, LaterFilesAddToMapsAndReplaceTheRest) {
  const SpecText more = {"optimizer: {lr: 1, lr_schedule: {warmup_steps: 3}}\nsteps: 7\ndata: {order: sequential}\n",
                         "more.yaml"};
  const Reading reading = ReadSpecs({{kWhole, "job.yaml"}, more}, {{"--set steps", "steps", "8"}});
  EXPECT_EQ(Text(reading.problems), "");
  const v1::Train& train = reading.spec.train();
  EXPECT_EQ(train.optimizer().lr(), 1);
  EXPECT_EQ(train.optimizer().sgd().momentum(), 0.9);
  EXPECT_EQ(train.optimizer().lr_schedule().warmup_steps(), 3u);
  EXPECT_TRUE(train.optimizer().lr_schedule().has_cosine());
  EXPECT_EQ(train.data().tokens(), "train.bin");
  EXPECT_EQ(train.data().order(), v1::DATA_ORDER_SEQUENTIAL);
  EXPECT_EQ(train.steps(), 8u);
  EXPECT_EQ(reading.spec.name(), "gpt2-tiny");
}

TEST(Merge, ErrorsNameTheFileThatIsWrong) {
  const auto merged = [](const std::string& second) {
    return Text(
        ReadSpecs({{"apiVersion: muster/v1\nkind: Job\nsteps: x\n", "z.yaml"}, {second, "a.yaml"}}, {}).problems);
  };
  EXPECT_EQ(merged("seed: y\nstepz: 1\n"),
            "z.yaml:3:8: steps: expected an integer, got the string \"x\"\n"
            "a.yaml:1:7: seed: expected an integer, got the string \"y\"\n"
            "a.yaml:2:1: stepz: unknown field, did you mean steps?\n");
  EXPECT_EQ(merged("steps: 5\n"), "");
  EXPECT_EQ(merged("- a\n"), "a.yaml:1:1: expected a map, got a list\n");
  EXPECT_EQ(merged(""), "a.yaml:1:1: is empty: expected a job spec\n");
  EXPECT_EQ(merged("steps: 1\nsteps: 2\n").find("a.yaml:2:1: steps: "), 0u);
}

// What a job gets that is merged over a template.
TEST(Merge, OfATemplateAndAJob) {
  const std::string head = "apiVersion: muster/v1\nkind: Job\nname: a\n";
  const auto merged = [&](const std::string& of_template, const std::string& of_job) {
    const Reading reading = ReadSpecs({{of_template, "template base"}, {head + of_job, "job.yaml"}}, {});
    if (!reading.problems.empty()) return Text(reading.problems);
    std::string yaml = WriteSpec(reading.spec);
    for (const char* line : {"apiVersion: muster/v1\n", "kind: Job\n", "name: a\n"}) {
      yaml.erase(yaml.find(line), std::string(line).size());
    }
    return yaml;
  };
  const struct {
    const char *of_template, *of_job, *expected;
  } cases[] = {
      // Maps deeply, scalars and lists as a whole.
      {"model: {family: gpt2, size: tiny}\nsteps: 10\n", "steps: 20\nseed: 3\n",
       "model:\n  family: gpt2\n  size: tiny\nsteps: 20\nseed: 3\n"},
      {"optimizer: {lr: 1, lr_schedule: {kind: cosine, min_lr: 2, warmup_steps: 3}}\n",
       "optimizer: {lr_schedule: {min_lr: 4}}\n",
       "optimizer:\n  kind: adamw\n  lr: 1\n  lr_schedule:\n    kind: cosine\n    min_lr: 4\n    warmup_steps: 3\n"},
      {"resources: {ranks: 2, node_selector: [a=b, c=d]}\n", "resources: {node_selector: [e=f]}\n",
       "resources:\n  ranks: 2\n  node_selector:\n    - \"e=f\"\nworkload: train\n"},
      {"resources: {node_selector: [a=b]}\n", "resources: {node_selector: []}\n", "resources: {}\nworkload: train\n"},
      {"labels: {team: nlp, stage: test}\n", "labels: {stage: prod}\n",
       "labels:\n  - \"team=nlp\"\n  - \"stage=prod\"\nworkload: train\n"},
      {"labels: {team: nlp}\n", "labels: [stage=prod]\n", "labels:\n  - \"stage=prod\"\nworkload: train\n"},
      {"env: [{name: A, value: a}]\n", "env: [{name: B, value: b}]\n",
       "env:\n  - name: B\n    value: b\nworkload: train\n"},
      // Another kind drops the fields of the old one, also those of the same name; what every kind has stays.
      {"optimizer: {kind: sgd, lr: 1, momentum: 0.5}\n", "optimizer: {kind: muon}\n",
       "optimizer:\n  kind: muon\n  lr: 1\n"},
      {"model: {family: gpt2, size: tiny, from: /w}\n", "model: {family: llama, layers: 2}\n",
       "model:\n  family: llama\n  layers: 2\n  from: /w\n"},
      {"optimizer: {kind: sgd, momentum: 0.5}\n", "optimizer: {kind: sgd, nesterov: true}\n",
       "optimizer:\n  kind: sgd\n  momentum: 0.5\n  nesterov: true\n"},
      {"steps: 5\noptimizer: {lr: 1}\npriority: 1\n", "workload: exec\ncommand: [ls]\n",
       "priority: 1\nworkload: exec\ncommand:\n  - ls\n"},
      // A template that says no kind serves all that have its fields.
      {"strategy: {reshard: hybrid, stage: 2}\n", "strategy: {kind: fsdp}\n",
       "strategy:\n  kind: fsdp\n  reshard: hybrid\n"},
      {"strategy: {reshard: hybrid, stage: 2}\n", "strategy: zero\n", "strategy:\n  kind: zero\n  stage: 2\n"},
      // A kind alone is a map with that kind.
      {"strategy: {kind: fsdp, reshard: hybrid}\n", "strategy: fsdp\n", "strategy:\n  kind: fsdp\n  reshard: hybrid\n"},
      {"strategy: {kind: fsdp, reshard: hybrid}\n", "strategy: ddp\n", "strategy:\n  kind: ddp\n"},
      {"strategy: zero\n", "strategy: {stage: 2}\n", "strategy:\n  kind: zero\n  stage: 2\n"},
      {"parallel: {pipeline: 2}\n", "parallel: auto\n", "parallel: auto\n"},
      {"parallel: auto\n", "parallel: {pipeline: 2}\n", "parallel:\n  pipeline: 2\n"},
      // An error is in the line that it is in.
      {"steps: 1\noptimizer: {lrr: 1}\n", "seed: x\n",
       "template base:2:13: optimizer.lrr: unknown field, did you mean optimizer.lr?\n"
       "job.yaml:4:7: seed: expected an integer, got the string \"x\"\n"},
      {"strategy: {kind: fsdp, reshard: hybrid}\n", "strategy: {kind: fsdpp}\n",
       "job.yaml:4:18: strategy.kind: expected single, ddp, zero, fsdp or auto, got the string \"fsdpp\", did you mean "
       "fsdp?\n"},
      // What the template says of another kind goes, as it would without the mistake.
      {"optimizer: {kind: sgd, momentum: 0.5}\n", "optimizer: {kind: adam}\n",
       "job.yaml:4:19: optimizer.kind: expected adamw, sgd, lion, muon or adafactor, got the string \"adam\", did you "
       "mean adamw?\n"},
      {"strategy: {reshard: hybrid}\n", "",
       "template base:1:12: strategy.reshard: belongs to kind: fsdp, but kind is single\n"},
      {"workload: exec\n", "steps: 1\n", "job.yaml:4:1: steps: belongs to workload: train, but workload is exec\n"},
      {"model: {size: tiny}\n", "model: {layers: 1}\n",
       "job.yaml:4:1: model.family: is required: gpt2, llama, resnet or custom\n"},
  };
  for (const auto& c : cases) EXPECT_EQ(merged(c.of_template, c.of_job), c.expected) << c.of_template << c.of_job;
}

TEST(Merge, WhatIsMissingIsMissingInTheJob) {
  EXPECT_EQ(Text(ReadSpecs({{"steps: 1\n", "template base"}, {"name: a\n", "job.yaml"}}, {}).problems),
            "job.yaml:1:1: apiVersion: is required: add `apiVersion: muster/v1`\n"
            "job.yaml:1:1: kind: is required: add `kind: Job`\n");
  const Reading reading = ReadSpecs({{"model: {size: tiny}\n", "template base"}, {"model: {family: gpt2}\n", "j"}}, {});
  EXPECT_EQ(reading.sources.Find("model.layers").ToString(), "j:1:1");
  EXPECT_EQ(reading.sources.Find("model.size").ToString(), "template base:1:15");
  EXPECT_EQ(Text(ReadSpecs({{"- a\n", "template base"}, {"name: a\n", "job.yaml"}}, {}).problems),
            "template base:1:1: expected a map, got a list\n");
  EXPECT_EQ(
      Text(ReadSpecs({{"a: [\n", "template base"}, {"name: a\n", "job.yaml"}}, {}).problems).find("template base:"),
      0u);
}

TEST(Merge, FlagsAreMergedAsAFileAndSetsAreSet) {
  const SpecText base{"optimizer: {kind: sgd, momentum: 0.5, lr: 1}\nsteps: 5\n", "template base"};
  const Reading reading = ReadFlags({{"--optimizer", "optimizer.kind", "muon"}}, {{"--set steps", "steps", "7"}}, base);
  EXPECT_EQ(Text(reading.problems), "");
  EXPECT_EQ(reading.spec.train().optimizer().lr(), 1);
  EXPECT_TRUE(reading.spec.train().optimizer().has_muon());
  EXPECT_EQ(reading.spec.train().steps(), 7u);
  EXPECT_EQ(reading.spec.kind(), "Job");
  // One --set sets one field.
  EXPECT_EQ(Text(ReadFlags({}, {{"--set optimizer.kind", "optimizer.kind", "adamw"}}, base).problems),
            "template base:1:24: optimizer.momentum: belongs to kind: sgd or kind: muon, but kind is adamw\n");
  EXPECT_EQ(Text(ReadFlags({}, {}, SpecText{"a", "template base"}).problems),
            "template base:1:1: expected a map, got the string \"a\"\n");
}

TEST(Template, IsCheckedAsAPartOfAJobFile) {
  const auto problems = [](const std::string& text) { return Text(TemplateProblems({text, "base.yaml"})); };
  for (const char* good :
       {"steps: 5\n", "apiVersion: muster/v1\nkind: Job\nsteps: 5\n", "model: {size: tiny}\n", "model: {size: 8b}\n",
        "command: [ls]\n", "strategy: {reshard: hybrid, stage: 2}\n", "strategy: fsdp\n", "parallel: auto\n",
        "optimizer: {lr: 1, momentum: 0.5, lr_schedule: {min_lr: 1}}\n", "labels: {a: b}\n", "{}\n"}) {
    EXPECT_EQ(problems(good), "") << good;
  }
  const std::pair<const char*, const char*> bad[] = {
      {"stepz: 5\n", "base.yaml:1:1: stepz: unknown field, did you mean steps?\n"},
      {"steps: x\nseed: y\n",
       "base.yaml:1:8: steps: expected an integer, got the string \"x\"\n"
       "base.yaml:2:7: seed: expected an integer, got the string \"y\"\n"},
      {"optimizer: {lrr: 1}\n", "base.yaml:1:13: optimizer.lrr: unknown field, did you mean optimizer.lr?\n"},
      {"optimizer: {momentum: x}\n", "base.yaml:1:23: optimizer.momentum: expected a number, got the string \"x\"\n"},
      {"optimizer: {kind: adamw, momentum: 1}\n",
       "base.yaml:1:26: optimizer.momentum: belongs to kind: sgd or kind: muon, but kind is adamw\n"},
      {"optimizer:\n", "base.yaml:1:1: optimizer: is empty: give it a value or leave the key out\n"},
      {"apiVersion: muster/v2\n",
       "base.yaml:1:13: apiVersion: expected muster/v1, got the string \"muster/v2\", did you mean "
       "muster/v1?\n"},
      {"template: other\n", "base.yaml:1:11: template: a template is not merged over another one\n"},
      {"- a\n", "base.yaml:1:1: expected a map, got a list\n"},
      {"# nothing\n", "base.yaml:1:1: is empty: expected a job spec\n"},
      {"steps: 1\nsteps: 2\n", "base.yaml:2:1: steps: duplicate key, the first is in line 1\n"},
  };
  for (const auto& [text, expected] : bad) EXPECT_EQ(problems(text), expected) << text;
}

TEST(Paths, OfSeveralFilesAreRelativeToTheirOwn) {
  Reading reading = ReadSpecs({{kWhole, "a/job.yaml"}, {"data: {validation: v.bin}\n", "b/more.yaml"}}, {});
  MakePathsAbsolute([](const std::string& file) { return "/" + file.substr(0, 1); }, "/here", reading);
  EXPECT_EQ(reading.spec.train().data().tokens(), "/a/train.bin");
  EXPECT_EQ(reading.spec.train().data().validation(), "/b/v.bin");
}

TEST(Paths, AreRelativeToWhereTheyWereWritten) {
  Reading reading = ReadSpec(kWhole, "job.yaml", {{"--data", "data.tokens", "./x/../y.bin"}});
  MakePathsAbsolute([](const std::string&) { return "/jobs"; }, "/here", reading);
  EXPECT_EQ(reading.spec.train().data().tokens(), "/here/x/../y.bin");
  EXPECT_EQ(reading.spec.train().data().validation(), "/data/val.bin");
  EXPECT_EQ(reading.spec.train().checkpoint().path(), "/jobs/runs/gpt2-tiny");
  EXPECT_EQ(AbsolutePath(".", "/jobs"), "/jobs");
  EXPECT_EQ(AbsolutePath("a", "/"), "/a");
}

TEST(Paths, WithoutOneEachJobHasAFolderOfItsOwn) {
  const auto path = [](const std::string& checkpoint) {
    Reading reading = ReadSpec("apiVersion: muster/v1\nkind: Job\nname: a\n" + checkpoint, "job.yaml", {});
    MakePathsAbsolute([](const std::string&) { return "/jobs"; }, "/here", reading);
    AddDefaultPath("/jobs", reading);
    EXPECT_EQ(Text(reading.problems), "");
    EXPECT_TRUE(reading.spec.train().checkpoint().has_path());
    return reading.spec.train().checkpoint().path();
  };
  EXPECT_EQ(path(""), "/jobs/runs/{job}");
  EXPECT_EQ(path("checkpoint: {keep: 3}\n"), "/jobs/runs/{job}");
  EXPECT_EQ(path("checkpoint: {path: \"\"}\n"), "") << "no checkpoints";
  EXPECT_EQ(path("checkpoint:\n  path: out/{name}\n"), "/jobs/out/{name}");
}

TEST(Paths, RefuseAFolderThatIsNotUtf8) {
  const auto made = [](const std::string& more) {
    Reading reading = ReadSpec("apiVersion: muster/v1\nkind: Job\n" + more, "f", {});
    MakePathsAbsolute([](const std::string&) { return "/\xff"; }, "/here", reading);
    AddDefaultPath("/\xff", reading);
    EXPECT_FALSE(absl::StrContains(reading.spec.DebugString(), "\\377")) << "nothing of it is sent";
    return Text(reading.problems);
  };
  constexpr char kWhy[] = "the name of the folder /\xff is not UTF-8: rename it, or write an absolute path\n";
  EXPECT_EQ(made("data: {tokens: a.bin}\n"),
            absl::StrCat("f:3:16: data.tokens: ", kWhy, "f:1:1: checkpoint.path: ", kWhy));
  EXPECT_EQ(made("workload: exec\ncommand: [ls]\n"), absl::StrCat("f:1:1: workdir: ", kWhy));
  EXPECT_EQ(made("data: {tokens: /a.bin}\ncheckpoint: {path: /c}\n"), "");
}

TEST(Paths, RefuseTheTilde) {
  Reading reading = ReadSpec("apiVersion: muster/v1\nkind: Job\ndata: {tokens: ~/a.bin}\n", "f", {});
  MakePathsAbsolute([](const std::string&) { return "/jobs"; }, "/here", reading);
  EXPECT_EQ(Text(reading.problems), "f:3:16: data.tokens: ~ is not expanded here: write the absolute path\n");
}

}  // namespace
}  // namespace muster::cli
