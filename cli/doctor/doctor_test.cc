#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "cli/doctor/checks.h"

namespace muster::cli {
namespace {

TEST(JudgeRankUsers, SaysWhatItMeansIfRanksCannotRunAsTheirOwners) {
  const Finding plain = JudgeRankUsers(1000, {"CAP_SETUID"});
  EXPECT_EQ(plain.severity, Severity::kNote);
  EXPECT_TRUE(absl::StrContains(plain.text, "(1000) runs every rank as itself")) << plain.text;
  EXPECT_TRUE(absl::StrContains(plain.text, "can read and remove each other's checkpoints")) << plain.text;
  EXPECT_TRUE(absl::StrContains(plain.remedy, "--run-as-owner")) << plain.remedy;
  const Finding root = JudgeRankUsers(0, {});
  EXPECT_EQ(root.severity, Severity::kNote);
  EXPECT_TRUE(absl::StrContains(root.text, "without --run-as-owner every rank is root")) << root.text;
  EXPECT_EQ(JudgeRankUsers(990, {}).severity, Severity::kOk);
}

TEST(JudgeCpu, SaysHowBf16IsComputed) {
  const auto judge = [](InstructionSet cpu, const char* onednn) {
    return JudgeCpu("EPYC", LimitInstructions(cpu, onednn, ""));
  };
  Finding finding = judge(InstructionSet::kAvx512Bf16, "");
  EXPECT_EQ(finding.severity, Severity::kOk);
  EXPECT_EQ(finding.text, "EPYC, AVX-512 BF16: bf16 is computed natively");
  EXPECT_EQ(finding.remedy, "");
  finding = judge(InstructionSet::kAvx2, "");
  EXPECT_EQ(finding.severity, Severity::kNote);
  EXPECT_EQ(finding.text, "EPYC, AVX2: bf16 is computed through fp32, at about its speed");
  finding = judge(InstructionSet::kAvx512Bf16, "AVX2");
  EXPECT_EQ(finding.severity, Severity::kNote);
  EXPECT_EQ(
      finding.text,
      "EPYC, AVX2 (ONEDNN_MAX_CPU_ISA=AVX2 hides AVX-512 BF16): bf16 is computed through fp32, at about its speed");
  EXPECT_EQ(finding.remedy, "unset the variable for faster bf16");
}

}  // namespace
}  // namespace muster::cli
