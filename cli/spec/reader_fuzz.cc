// libFuzzer's entry: any bytes are a job file. Aborts when a spec that was read does not survive being written and read
// again, or an error has no place.
#include <google/protobuf/util/message_differencer.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "cli/spec/paths.h"
#include "cli/spec/reader.h"
#include "cli/spec/writer.h"

namespace {

[[noreturn]] void Fail(const char* what, const std::string& detail) {
  std::fprintf(stderr, "%s\n%s\n", what, detail.c_str());
  std::abort();
}

}  // namespace

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
  const std::string yaml = WriteSpec(reading.spec);
  const Reading again = ReadSpec(yaml, "written.yaml", {});
  if (!again.problems.empty()) Fail("what was written does not read", yaml + again.problems[0].ToString());
  if (!google::protobuf::util::MessageDifferencer::Equals(again.spec, reading.spec)) {
    Fail("what was written reads as something else", yaml);
  }
  MakePathsAbsolute([](const std::string&) { return "/folder"; }, "/here", reading);
  return 0;
}
