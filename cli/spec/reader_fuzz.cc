// libFuzzer's entry: reads arbitrary bytes as a job file. Aborts if a parsed spec does not survive being written and
// read again, or if an error has no location.
#include <google/protobuf/util/message_differencer.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "cli/spec/paths.h"
#include "cli/spec/reader.h"
#include "cli/spec/writer.h"
#include "testing/fuzz.h"

namespace {

[[noreturn]] void Fail(const char* what, const std::string& detail) {
  std::fprintf(stderr, "%s\n%s\n", what, detail.c_str());
  std::abort();
}

}  // namespace

namespace muster::fuzz {

std::vector<std::string> Seeds() {
  return {
      "apiVersion: muster/v1\nkind: Job\nname: gpt2-tiny\nmodel: {family: gpt2, size: tiny}\n"
      "data: {tokens: train.bin, validation: val.bin, order: sequential}\nstrategy: {kind: fsdp, reshard: full_shard}\n"
      "resources: {ranks: 2, device: auto}\nbatch: {sequences: 64, microbatch: 8}\n"
      "precision: {compute: bf16, reduce: fp32}\noptimizer: {kind: adamw, lr: 3e-4, weight_decay: 0.1, clip_norm: "
      "1.0}\n"
      "steps: 1000\nseed: 1\ncheckpoint: {path: runs/gpt2-tiny, every_steps: 100, keep: 2}\nmax_restarts: 3\n",
      "apiVersion: muster/v1\nkind: Job\noptimizer:\n  kind: sgd\n  momentum: .9\n  nesterov: true\n  lr_schedule:\n"
      "    kind: cosine\n    min_lr: 1e-5\n    warmup_steps: 0x10\nmodel:\n  family: gpt2\n  layers: 2\n",
      "apiVersion: \"muster/v1\"\nkind: 'Job'\nname: |\n  a\n  b\ndata:\n  tokens: >-\n    x\n    y\n",
      "%YAML 1.2\n---\napiVersion: muster/v1\nkind: Job\n...\n",
      "{apiVersion: muster/v1, kind: Job, name: \"\\u00e4\\x41\\n\"}",
      "a: &x [1, {b: *x}]\n<<: !!map {}\n? [k]\n: v\n",
  };
}

std::vector<std::string> Words() {
  return {"\n",
          "\n  ",
          ": ",
          "- ",
          "{",
          "}",
          "[",
          "]",
          ",",
          "\"",
          "'",
          "\\",
          "#",
          "&a ",
          "*a",
          "!!",
          "!<",
          "|\n",
          ">\n",
          "? ",
          "<<: ",
          "---\n",
          "...\n",
          "%TAG ! !\n",
          "\t",
          "\r",
          "\r\n",
          "~",
          "null",
          ".nan",
          "1e99",
          "-",
          "kind: ",
          "zero",
          "stage",
          "\xEF\xBB\xBF",
          "\xFF",
          "\x04",
          std::string(1, '\0'),
          "0o7",
          "99999999999999999999",
          "optimizer:",
          "\\u2028",
          "\\x00",
          "\xC2\x85",
          "@",
          "`"};
}

}  // namespace muster::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace muster::cli;  // NOLINT: a function of its own
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  Reading reading = ReadSpec(text, "job.yaml", {});
  for (const Problem& problem : reading.problems) {
    if (problem.where.line < 1 || problem.where.column < 1 || problem.message.empty()) {
      Fail("a problem without a place", problem.ToString());
    }
  }
  if (!reading.problems.empty()) return 0;
  const SpecText file{std::string(text), "job.yaml"};
  if (!google::protobuf::util::MessageDifferencer::Equals(ReadSpecs({file, file}, {}).spec, reading.spec)) {
    Fail("a file that is merged over itself becomes another", file.text);
  }
  const std::vector<Problem> of_template = TemplateProblems(file);
  if (!of_template.empty() && of_template[0].path != "template") {
    Fail("a whole file is no template", of_template[0].ToString());
  }
  reading.spec.clear_template_();
  const std::string yaml = WriteSpec(reading.spec);
  const Reading again = ReadSpec(yaml, "written.yaml", {});
  if (!again.problems.empty()) Fail("what was written does not read", yaml + again.problems[0].ToString());
  if (!google::protobuf::util::MessageDifferencer::Equals(again.spec, reading.spec)) {
    Fail("what was written reads as something else", yaml);
  }
  MakePathsAbsolute([](const std::string&) { return "/folder"; }, "/here", reading);
  return 0;
}
