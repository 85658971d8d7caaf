#include "cli/spec/sample_job.h"

#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "cli/spec/reader.h"
#include "common/message/fields.h"

namespace muster::cli {
namespace {

std::string SampleProblems(const std::string& text) {
  const Reading reading = ReadSpec(text, "job.yaml", {});
  return absl::StrJoin(reading.problems, "\n",
                       [](std::string* out, const Problem& problem) { absl::StrAppend(out, problem.ToString()); });
}

// "  # keep: 2" to "  keep: 2": comments that show a field, not prose.
std::string Uncommented(const std::string& text) {
  std::vector<std::string> lines = absl::StrSplit(text, '\n');
  for (std::string& line : lines) {
    const size_t mark = line.find("# ");
    if (mark == std::string::npos || line.find_first_not_of(' ') != mark) continue;
    const std::string rest = line.substr(mark + 2);
    const size_t word = rest.find_first_not_of("abcdefghijklmnopqrstuvwxyz_0123456789");
    if (word != std::string::npos && word > 0 && rest.substr(word, 2) == ": ") line = line.substr(0, mark) + rest;
  }
  return absl::StrJoin(lines, "\n");
}

TEST(SampleJob, IsASpecAsItIs) {
  const std::string text = WriteSampleJob({});
  EXPECT_EQ(SampleProblems(text), "");
  const v1::JobSpec spec = ReadSpec(text, "job.yaml", {}).spec;
  EXPECT_EQ(spec.name(), "gpt2-tiny");
  EXPECT_EQ(spec.train().model().gpt2().size(), v1::GPT2_SIZE_TINY);
  EXPECT_EQ(spec.train().data().tokens(), "train.bin");
  EXPECT_EQ(spec.train().data().validation(), "");
  EXPECT_EQ(spec.train().checkpoint().path(), "runs/{job}");
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(text, '\n'))) EXPECT_LE(line.size(), 120u);
}

TEST(SampleJob, EveryFieldThatIsCommentedOutMayBeUncommented) {
  const std::string text = Uncommented(WriteSampleJob({}));
  EXPECT_EQ(SampleProblems(text), "");
  const v1::JobSpec spec = ReadSpec(text, "job.yaml", {}).spec;
  EXPECT_EQ(spec.priority(), 0);
  EXPECT_TRUE(spec.has_priority());
  EXPECT_EQ(spec.train().optimizer().adamw().beta2(), 0.999);
  EXPECT_EQ(spec.train().model().gpt2().layers(), 4u);
  EXPECT_EQ(spec.train().data().validation(), "val.bin");
  EXPECT_EQ(spec.train().validation().sequences(), 64u);
}

TEST(SampleJob, NamesEveryScheduleOfAPipeline) {
  const std::string text = WriteSampleJob({});
  const size_t at = text.find("# pipeline: {schedule: ");
  ASSERT_NE(at, std::string::npos);
  const std::string line = text.substr(at, text.find('\n', at) - at);
  const auto& schedules = *v1::PipelineSchedule_descriptor();
  EXPECT_GE(schedules.value_count(), 5);
  for (int i = 1; i < schedules.value_count(); ++i) {
    const std::string name = EnumText(*schedules.value(i));
    EXPECT_TRUE(absl::StrContains(line, name)) << name << " is not in: " << line;
  }
  for (const char* options : {"schedule: gpipe", "schedule: 1f1b", "schedule: interleaved, chunks: 2",
                              "schedule: zero_bubble, chunks: 1", "schedule: zero_bubble, chunks: 2"}) {
    EXPECT_EQ(SampleProblems(absl::StrCat(text, "parallel: {pipeline: 2}\npipeline: {", options, "}\n")), "")
        << options;
  }
}

TEST(SampleJob, TakesWhatItIsGiven) {
  const std::string text = WriteSampleJob({"a", "gpt2:small", "my data: #1.bin", "v.bin"});
  EXPECT_EQ(SampleProblems(text), "");
  const v1::JobSpec spec = ReadSpec(text, "job.yaml", {}).spec;
  EXPECT_EQ(spec.train().model().gpt2().size(), v1::GPT2_SIZE_SMALL);
  EXPECT_EQ(spec.train().data().tokens(), "my data: #1.bin");
  EXPECT_EQ(spec.train().data().validation(), "v.bin");
  EXPECT_TRUE(absl::StrContains(SampleProblems(WriteSampleJob({"a", "gpt9"})), "expected gpt2"));
}

}  // namespace
}  // namespace muster::cli
