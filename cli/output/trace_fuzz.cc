// Feeds arbitrary bytes as a rank's trace, as a worker sends it: if they parse, a viewer's file and a table must come
// out, whatever the times, names and lanes are.
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "cli/output/screen.h"
#include "cli/output/trace.h"
#include "testing/fuzz.h"

namespace muster::fuzz {
namespace {

void Add(v1::StepTrace& step, uint32_t name, v1::Lane lane, uint64_t begin, uint64_t nanoseconds) {
  v1::Span& span = *step.add_spans();
  span.set_name(name);
  span.set_lane(lane);
  span.set_begin(begin);
  span.set_nanoseconds(nanoseconds);
}

v1::RankTrace Sample(int steps) {
  v1::RankTrace rank;
  rank.set_rank(3);
  rank.set_node("node-1");
  for (int i = 0; i < steps; ++i) {
    v1::StepTrace& step = *rank.add_steps();
    step.set_step(static_cast<uint64_t>(i) + 7);
    step.mutable_begin()->set_seconds(1'700'000'000 + i);
    step.mutable_begin()->set_nanos(5);
    step.set_nanoseconds(40'000'000);
    for (const char* name : {"Forward h.0 m0", "Backward h.0 m0 after Gather", "Wait", "Gather h.0", "data"}) {
      step.add_names(name);
    }
    Add(step, 4, v1::LANE_HOST, 0, 1'000);
    Add(step, 0, v1::LANE_COMPUTE, 1'000, 9'000'000);
    Add(step, 2, v1::LANE_COMPUTE, 9'001'000, 500);
    Add(step, 1, v1::LANE_COMPUTE, 9'002'000, 20'000'000);
    Add(step, 3, v1::LANE_GATHER, 100, 8'000'000);
    Add(step, 3, v1::LANE_REDUCE, 20'000'000, 12'000'000);
    Add(step, 2, v1::LANE_EXCHANGE, 10'000'000, 3'000'000);
  }
  return rank;
}

}  // namespace

std::vector<std::string> Seeds() {
  v1::RankTrace odd = Sample(1);
  v1::StepTrace& step = *odd.mutable_steps(0);
  step.mutable_begin()->set_seconds(INT64_MIN);
  step.set_nanoseconds(UINT64_MAX);
  Add(step, 99, static_cast<v1::Lane>(77), UINT64_MAX, UINT64_MAX);
  return {Sample(2).SerializeAsString(), Sample(1).SerializeAsString(), odd.SerializeAsString(),
          v1::RankTrace().SerializeAsString()};
}

std::vector<std::string> Words() {
  return {"\x1A\x02", "\x08\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x01", "Forward", " after ", "\x32\x08", " "};
}

}  // namespace muster::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace muster;  // NOLINT: a function of its own
  v1::RankTrace rank;
  if (!rank.ParseFromArray(data, static_cast<int>(size))) return 0;
  const nlohmann::ordered_json events = cli::ChromeTrace({rank, rank});
  size_t spans = 0;
  for (const v1::StepTrace& step : rank.steps()) spans += 1 + static_cast<size_t>(step.spans_size());
  // Beside what names the rank, its steps and its lanes.
  if (events["traceEvents"].size() < 2 * (spans + 2) || events.dump().empty()) {
    std::fprintf(stderr, "a span is missing in the viewer's file\n");
    std::abort();
  }
  if (rank.steps().empty()) return 0;
  for (const cli::TraceRows by : {cli::TraceRows::kKind, cli::TraceRows::kUnit, cli::TraceRows::kOp}) {
    const cli::StepProfile profile = cli::Profile(rank, by);
    if (profile.rows.empty() || cli::ProfileTable(profile).Render(cli::Screen()).empty()) {
      std::fprintf(stderr, "no table\n");
      std::abort();
    }
  }
  return 0;
}
