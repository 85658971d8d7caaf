#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "cli/spec/paths.h"
#include "cli/spec/reader.h"
#include "coordinator/spec/resolve.h"
#include "docs/generate/pages.h"
#include "docs/generate/spec_fields.h"

namespace muster::docs {
namespace {

absl::StatusOr<std::string> ReadRunfile(const std::string& path) {
  std::ifstream in(path);
  if (!in) return absl::NotFoundError(path);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

TEST(Generated, PagesAreCurrent) {
  const auto pages = GeneratedPages(RunFromRunfiles, ReadRunfile);
  ASSERT_TRUE(pages.ok()) << pages.status();
  ASSERT_EQ(pages->size(), 4u);
  for (const Page& page : *pages) {
    EXPECT_EQ(ReadRunfile(page.path).value_or(""), page.text) << page.path << " is stale: bazel run //docs:update";
  }
}

TEST(Generated, EveryFlagSaysWhatItsValueIs) {
  const auto pages = GeneratedPages(RunFromRunfiles, ReadRunfile);
  ASSERT_TRUE(pages.ok()) << pages.status();
  const std::regex unnamed("(^|\n) +(-[a-z], )?--[a-z-]+ VALUE( |\n)");  // of a flag without a type_name
  for (const Page& page : *pages) {
    std::smatch found;
    EXPECT_FALSE(std::regex_search(page.text, found, unnamed)) << page.path << ": " << found.str();
  }
}

TEST(Generated, AProgramThatFailsIsAnError) {
  const auto broken = [](const std::string&, const std::string&) -> absl::StatusOr<std::string> {
    return absl::InternalError("no such program");
  };
  EXPECT_EQ(GeneratedPages(broken, ReadRunfile).status(), absl::InternalError("no such program"));
  const auto empty = [](const std::string&) -> absl::StatusOr<std::string> { return "# Configuration\n"; };
  EXPECT_EQ(GeneratedPages(RunFromRunfiles, empty).status().code(), absl::StatusCode::kFailedPrecondition);
}

std::map<std::string, SpecField> FieldsByPath() {
  std::map<std::string, SpecField> fields;
  for (const SpecSection& section : SpecSections()) {
    for (const SpecField& field : section.fields) fields.emplace(field.path, field);
  }
  return fields;
}

// What writes the example into a job. Entries of lists of maps have no path, so the list is set.
cli::Assignment Setting(const SpecField& field) {
  for (const std::string list : {"env", "model.options"}) {
    if (!absl::StartsWith(field.path, list + ".")) continue;
    return {"--set " + list, list, absl::StrCat("[{", field.key, ": ", field.example, "}]")};
  }
  return {"--set " + field.path, field.path, field.example};
}

// What a reader copies from the page must be read as that field.
TEST(SpecFields, EveryExampleIsReadAsItsField) {
  int tried = 0;
  for (const SpecSection& section : SpecSections()) {
    for (const SpecField& field : section.fields) {
      if (field.example.empty()) continue;
      std::vector<cli::Assignment> assignments = {Setting(field)};
      if (!section.choice.empty()) {
        const size_t colon = section.choice.find(": ");
        const std::string path =
            absl::StrCat(section.path, section.path.empty() ? "" : ".", section.choice.substr(0, colon));
        assignments.push_back({"--set " + path, path, section.choice.substr(colon + 2)});
      } else if (absl::StartsWith(field.path, "model.rope_scaling.")) {
        assignments.push_back({"--set model.family", "model.family", "llama"});
      } else if (absl::StartsWith(field.path, "model.options.")) {
        assignments.push_back({"--set model.family", "model.family", "custom"});
      } else if (absl::StartsWith(field.path, "model.") && field.path != "model.family") {
        assignments.push_back({"--set model.family", "model.family", "gpt2"});
      }
      const bool trains = std::none_of(assignments.begin(), assignments.end(),
                                       [](const cli::Assignment& a) { return a.path == "workload"; });
      const std::string job =
          absl::StrCat("apiVersion: muster/v1\nkind: Job\n", trains ? "model: {family: gpt2}\n" : "");
      const cli::Reading reading = cli::ReadSpec(job, "job.yaml", assignments);
      for (const cli::Problem& problem : reading.problems) {
        ADD_FAILURE() << field.path << ": " << field.example << ": " << problem.ToString();
      }
      ++tried;
    }
  }
  EXPECT_GT(tried, 150);
}

// A job that resolves, in which examples are tried; that of `workload: exec`, too.
constexpr char kTrain[] =
    "apiVersion: muster/v1\nkind: Job\nname: a\nsteps: 1000\ndata: {tokens: /data/train.bin, validation: "
    "/data/val.bin}\n"
    "model: {family: gpt2, size: tiny}\n";
constexpr char kExec[] = "apiVersion: muster/v1\nkind: Job\nname: a\nworkload: exec\ncommand: [python3, train.py]\n";

// What must be set beside an example: the first entry that is its path, or with a dot at its end begins it.
struct Beside {
  std::string path;
  std::vector<std::pair<std::string, std::string>> settings;
};

const std::vector<Beside>& AllBeside() {
  using Settings = std::vector<std::pair<std::string, std::string>>;
  const Settings images = {{"model", "{family: resnet, depth: 20}"},
                           {"data", "{images: /data/train.bin, validation: /data/val.bin}"}};
  const auto scaled = [](const std::string& kind) {
    return Settings{{"model", absl::StrCat("{family: llama, size: tiny, head_width: 4, rope_scaling: {", kind, "}}")}};
  };
  const std::string longer = ", factor: 8, original_context: 64";
  static const auto& all = *new std::vector<Beside>{
      {"label_smoothing", images},
      {"data.images", {images[0], {"data", "{validation: /data/val.bin}"}}},
      {"data.mean", images},
      {"data.standard_deviation", images},
      {"data.augmentation", images},
      {"data.augmentation.", images},
      {"resources.min_ranks", {{"resources.ranks", "4"}}},
      {"model.family", {{"model", "{family: custom}"}}},
      {"model.task", {{"model", "{family: custom, library: /opt/libmine.so}"}}},
      {"model.units",
       {{"model",
         "{family: custom, library: /opt/libmine.so, task: {name: tensors, targets_per_sample: 1, tensors: [{name: "
         "user, "
         "type: float, shape: [8], input: true}]}}"},
        {"data", "{tensors: \"/data/*.safetensors\"}"}}},
      {"model.options.", {{"model", "{family: custom, library: /opt/libmine.so}"}}},
      {"model.full_layers", {{"model", "{family: llama, size: 1b, window: 64}"}}},
      {"model.rope_scaling.kind", scaled("kind: linear, factor: 8")},
      {"model.rope_scaling.factor", scaled("kind: linear")},
      {"model.rope_scaling.original_context", scaled("kind: llama3, factor: 8")},
      {"model.rope_scaling.low_frequency_factor", scaled("kind: llama3" + longer)},
      {"model.rope_scaling.high_frequency_factor", scaled("kind: llama3" + longer)},
      {"model.rope_scaling.short_factors", scaled("kind: longrope, long_factors: [1, 2.5]" + longer)},
      {"model.rope_scaling.long_factors", scaled("kind: longrope, short_factors: [1, 1.05]" + longer)},
      {"model.rope_scaling.", scaled("kind: yarn" + longer)},
      {"strategy.shares", {{"strategy.placement", "ragged"}}},
      {"strategy.shard_ranks", {{"strategy.reshard", "hybrid"}, {"resources.ranks", "16"}}},
      {"precision.params", {{"precision.compute", "bf16"}}},
      {"precision.loss_scaling", {{"precision.compute", "fp16"}}},
      {"precision.loss_scaling.", {{"precision.compute", "fp16"}}},
      {"offload.activations", {{"activation_checkpointing", "true"}}},
      {"offload.to", {{"offload.optimizer", "true"}}},
      {"parallel.sequence_parallel", {{"resources.ranks", "4"}, {"parallel.tensor", "2"}}},
      {"parallel", {{"resources.ranks", "4"}}},
      {"parallel.", {{"resources.ranks", "4"}}},
      {"pipeline.chunks", {{"resources.ranks", "2"}, {"parallel.pipeline", "2"}, {"pipeline.schedule", "interleaved"}}},
      {"pipeline.cut", {{"model.size", "small"}, {"resources.ranks", "3"}, {"parallel.pipeline", "3"}}},
      {"pipeline", {{"resources.ranks", "4"}, {"parallel.pipeline", "2"}}},
      {"pipeline.", {{"resources.ranks", "4"}, {"parallel.pipeline", "2"}}},
      {"communication", {{"resources.ranks", "2"}, {"strategy", "ddp"}}},
      {"communication.compression", {{"resources.ranks", "2"}, {"strategy", "ddp"}}},
      {"communication.compression.momentum_correction",
       {{"resources.ranks", "2"}, {"strategy", "ddp"}, {"optimizer", "{kind: sgd, momentum: 0.9}"}}},
      {"communication.compression.", {{"resources.ranks", "2"}, {"strategy", "ddp"}}},
      {"sync.mix", {{"sync.delay", "5"}}},
      {"bench.", {{"resources.ranks", "2"}, {"bench", "{collectives: [all_reduce], modes: [flat], bytes: [1024]}"}}},
  };
  return all;
}

// What refuses the example in a job that has what it needs, a line each. Errors about other fields do not count.
std::string ErrorsAbout(const SpecSection& section, const SpecField& field) {
  std::vector<cli::Assignment> assignments;
  const auto set = [&](const std::string& path, const std::string& value) {
    assignments.push_back({"--set " + path, path, value});
  };
  bool exec = field.path == "workload";
  if (!section.choice.empty()) {
    const size_t colon = section.choice.find(": ");
    const std::string path =
        absl::StrCat(section.path, section.path.empty() ? "" : ".", section.choice.substr(0, colon));
    const std::string kind = section.choice.substr(colon + 2);
    exec |= path == "workload" && kind == "exec";
    if (path == "model.family") {
      set("model", kind == "gpt2"     ? "{family: gpt2, size: tiny}"
                   : kind == "llama"  ? "{family: llama, size: tiny}"
                   : kind == "resnet" ? "{family: resnet, depth: 20}"
                                      : absl::StrCat("{family: ", kind, "}"));
      if (kind == "resnet") set("data", "{images: /data/train.bin, validation: /data/val.bin}");
    } else {
      set(path, kind);
    }
  }
  for (const Beside& beside : AllBeside()) {
    const bool within = beside.path.back() == '.' && absl::StartsWith(field.path, beside.path);
    if (field.path != beside.path && !within) continue;
    for (const auto& [path, value] : beside.settings) set(path, value);
    break;
  }
  assignments.push_back(Setting(field));
  cli::Reading reading = cli::ReadSpec(exec ? kExec : kTrain, "job.yaml", assignments);
  cli::MakePathsAbsolute([](const std::string&) { return std::string("/jobs"); }, "/jobs", reading);
  cli::AddDefaultPath("/jobs", reading);
  std::string errors;
  for (const cli::Problem& problem : reading.problems) absl::StrAppend(&errors, problem.ToString(), "\n");
  for (const SpecError& error : spec::Resolve({}, reading.spec)) {
    const bool about = absl::StrReplaceAll(error.path(), {{"[0]", ""}}) == field.path ||
                       absl::StartsWith(error.path(), field.path + "[") ||
                       absl::StartsWith(field.path, error.path() + ".");
    if (about) absl::StrAppend(&errors, error.path(), ": ", error.message(), "\n");
  }
  return errors;
}

// What a reader copies from the page is not refused, where what it needs is there too.
TEST(SpecFields, EveryExampleIsValid) {
  int tried = 0;
  for (const SpecSection& section : SpecSections()) {
    for (const SpecField& field : section.fields) {
      if (field.example.empty() || field.path == "data.tensors") continue;  // that needs a custom model
      EXPECT_EQ(ErrorsAbout(section, field), "") << field.path << ": " << field.example;
      ++tried;
    }
  }
  EXPECT_GT(tried, 150);
}

TEST(SpecFields, AWrongExampleWouldBeFound) {
  SpecField field;
  field.path = "time_limit";
  field.example = "text";
  EXPECT_EQ(ErrorsAbout({}, field), "time_limit: must be a duration such as 90m or 48h, got \"text\"\n");
  field.path = "model.options.value", field.key = "value", field.example = "64";
  EXPECT_TRUE(absl::StrContains(ErrorsAbout({}, field), "expected a string, got the number 64"));
  field.path = "env.name", field.key = "name", field.example = "LD_PRELOAD";
  EXPECT_TRUE(absl::StartsWith(ErrorsAbout({}, field), "env[0].name: "));
}

TEST(SpecFields, WhatOnlyTheCoordinatorSetsHasNoExample) {
  const auto fields = FieldsByPath();
  EXPECT_EQ(fields.at("sync.run").example, "");
  EXPECT_EQ(fields.at("sync.replica").example, "");
}

TEST(SpecFields, EveryFieldSaysWhatItMeans) {
  for (const auto& [path, field] : FieldsByPath()) {
    EXPECT_TRUE(!field.meaning.empty() || !field.link.empty() || absl::StartsWith(field.type, "map"))
        << path << ": proto/spec.proto has no comment on this field";
  }
}

// Of all sections: several choices have a field of the same path, such as model.layers.
TEST(SpecFields, EveryFieldHasADefaultAndAnExample) {
  for (const SpecSection& section : SpecSections()) {
    for (const SpecField& field : section.fields) {
      const std::string where = absl::StrCat(field.path, " ", section.choice);
      EXPECT_NE(field.fallback, "") << where;
      const bool of_coordinator = field.path == "sync.run" || field.path == "sync.replica";
      EXPECT_EQ(field.example.empty(), of_coordinator) << where;
    }
  }
}

// As a reader of the page sees it: | field | type | unit | default | example | meaning |.
TEST(SpecFields, NoRowOfThePageHasAnEmptyExample) {
  const auto pages = GeneratedPages(RunFromRunfiles, ReadRunfile);
  ASSERT_TRUE(pages.ok()) << pages.status();
  int rows = 0;
  for (const Page& page : *pages) {
    if (page.path != "docs/job-spec.md") continue;
    for (const absl::string_view line : absl::StrSplit(page.text, '\n')) {
      if (!absl::StartsWith(line, "| `") && !absl::StartsWith(line, "| [`")) continue;
      const std::vector<absl::string_view> cells = absl::StrSplit(line, " | ");
      ASSERT_GE(cells.size(), 6u) << line;
      EXPECT_NE(absl::StripAsciiWhitespace(cells[4]), "") << line;
      ++rows;
    }
  }
  EXPECT_GT(rows, 150);
}

TEST(SpecFields, NoneAndFalseAreNotSaidOfFieldsWhoseCommentStatesAnotherDefault) {
  const std::regex stated(R"([Dd]efault:? ([^ .,;:]+))");
  for (const auto& [path, field] : FieldsByPath()) {
    std::smatch found;
    if (field.fallback != "none" && field.fallback != "false") continue;
    if (std::regex_search(field.meaning, found, stated)) {
      EXPECT_EQ(found[1], field.fallback) << path << ": " << field.meaning;
    }
  }
}

// A comment that states a default as a number or a word agrees with what the resolver fills in.
TEST(SpecFields, DefaultsInCommentsAreTheResolvers) {
  const std::regex stated(R"([Dd]efault:? (-?[0-9][0-9.e+-]*[0-9]|[0-9]|true|false|[a-z][a-z0-9_]*)(?=$|[;.,)]( |$)))");
  const std::set<std::string> words = {"required", "none", "depends", "of the service", "of its fields"};
  int compared = 0;
  for (const auto& [path, field] : FieldsByPath()) {
    std::smatch found;
    if (words.contains(field.fallback) || field.fallback[0] == '[' || !std::regex_search(field.meaning, found, stated))
      continue;
    const std::string text = found[1];
    const bool number = std::isdigit(static_cast<unsigned char>(text.back())) != 0 && text.find('_') == text.npos &&
                        (std::isdigit(static_cast<unsigned char>(text[0])) != 0 || text[0] == '-');
    const bool value = number || text == "true" || text == "false" ||
                       absl::StrContains(absl::StrCat(" ", field.type, ","), absl::StrCat(" ", text, ",")) ||
                       absl::StrContains(field.type, text + " or ") || absl::StrContains(field.type, " or " + text);
    if (!value) continue;
    if (number) {
      EXPECT_NEAR(std::stod(text), std::stod(field.fallback), 1e-6 * std::abs(std::stod(text)))
          << path << ": " << field.meaning;
    } else {
      EXPECT_EQ(text, field.fallback) << path << ": " << field.meaning;
    }
    ++compared;
  }
  EXPECT_GT(compared, 60);
}

TEST(SpecFields, ADefaultThatFollowsFromOtherFieldsSaysHow) {
  const auto fields = FieldsByPath();
  for (const char* path :
       {"strategy.kind", "strategy.bucket_mib", "sync.mix", "sync.outer.nesterov", "lora.alpha", "optimizer.lr",
        "optimizer.weight_decay", "optimizer.clip_norm", "precision.loss_scaling.minimum", "model.image"}) {
    EXPECT_EQ(fields.at(path).fallback, "depends") << path;
  }
  for (const SpecSection& section : SpecSections()) {
    for (const SpecField& field : section.fields) {
      if (field.path == "strategy.placement") {
        EXPECT_EQ(field.fallback, section.choice == "kind: fsdp" ? "depends" : "whole");
      }
      if (field.fallback != "depends") continue;
      EXPECT_TRUE(std::regex_search(field.meaning, std::regex("[Dd]efault|as with ddp")))
          << field.path << " " << section.choice << ": " << field.meaning;
    }
  }
}

// Also where only some jobs need them, which the meaning then names.
TEST(SpecFields, RequiredIsWhatTheResolverCallsMissing) {
  const auto fields = FieldsByPath();
  for (const char* path :
       {"env.name", "env.value", "model.options.name", "model.rope_scaling.kind", "model.rope_scaling.factor"}) {
    EXPECT_EQ(fields.at(path).fallback, "required") << path;
  }
  for (const char* path : {"data.tokens", "data.images", "data.tensors", "model.rope_scaling.original_context"}) {
    EXPECT_EQ(fields.at(path).fallback, "required") << path;
    EXPECT_TRUE(absl::StrContains(fields.at(path).meaning, "equired ")) << fields.at(path).meaning;
  }
  EXPECT_EQ(fields.at("data.validation").fallback, "none");
}

TEST(SpecFields, TheResolverDecides) {
  const auto fields = FieldsByPath();
  EXPECT_EQ(fields.at("optimizer.beta2").fallback, "0.999");
  EXPECT_EQ(fields.at("pipeline.schedule").fallback, "1f1b");
  EXPECT_EQ(fields.at("data.mean").fallback, "[0.5, 0.5, 0.5]");
  EXPECT_EQ(fields.at("precision.loss_scaling.initial").fallback, "65536");
  EXPECT_EQ(fields.at("batch.microbatch").fallback, "depends");
  EXPECT_EQ(fields.at("steps").fallback, "required");
  EXPECT_EQ(fields.at("steps").unit, "steps");
  EXPECT_EQ(fields.at("pipeline.chunks").unit, "chunks");
  EXPECT_EQ(fields.at("sync.fragments").unit, "parts");
  EXPECT_EQ(fields.at("pipeline.cut").type, "list of: string, or the word auto");
  EXPECT_EQ(fields.at("pipeline.cut").fallback, "auto");
}

}  // namespace
}  // namespace muster::docs
