// muster-exec, where the run folder's disk fills while the program runs.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "testing/small_disk.h"
#include "testing/temporary_folder.h"
#include "testing/wait.h"
#include "worker/rundir/outbox.h"
#include "worker/trainer/fake_trainer_server.h"

namespace muster::exec {
namespace {

// About 22 KiB of records, more than a full disk leaves for metrics, and then small ones, until not even such a one
// fits.
constexpr int kLargeLines = 20, kLines = kLargeLines + 60;

// Has room for its reports, says that it is ready, waits for the full disk, and reports metrics and then a checkpoint.
constexpr char kProgram[] = R"(
fallocate -n -l 65536 "$MUSTER_REPORT_FILE" && touch ready || exit 3
while [ ! -e go ]; do sleep 0.02; done
cat metrics >> "$MUSTER_REPORT_FILE" || exit 4
echo '{"checkpoint": "runs/step-80", "step": 80}' >> "$MUSTER_REPORT_FILE" || exit 5
)";

TEST(ExecOnAFullDisk, TheProgramRunsToItsEndAndItsCheckpointIsReported) {
  const TemporaryFolder folder;
  const SmallDisk disk(folder.path() + "/rank", 1);
  ASSERT_TRUE(disk.ok());
  std::string lines;
  for (int step = 1; step <= kLines; ++step) {
    absl::StrAppend(&lines, "{\"step\": ", step);
    for (int i = 0; step <= kLargeLines && i < 64; ++i) absl::StrAppend(&lines, ",\"m", i, "\":1");
    lines += "}\n";
  }
  folder.Write("metrics", lines, /*executable=*/false);

  trainer::FakeTrainerServer worker(folder.path() + "/w.sock");
  Assignment assignment;
  assignment.mutable_key()->set_job("script-x7f2");
  assignment.mutable_key()->set_generation(1);
  assignment.set_world(1);
  assignment.set_cores(1);
  assignment.set_host("127.0.0.1");
  Exec& exec = *assignment.mutable_spec()->mutable_exec();
  for (const char* word : {"/bin/sh", "-c", kProgram}) exec.add_command(word);
  exec.set_workdir(folder.path());
  worker.Assign(assignment);
  trainer::Process process({"worker/exec/muster-exec", "run", "--socket", worker.socket(), "--rank-dir", disk.path(),
                            "--job", assignment.key().job(), "--generation", "1", "--rank", "0"},
                           folder.path() + "/log");
  ASSERT_TRUE(Eventually([&] { return std::filesystem::exists(folder.path() + "/ready"); })) << process.Log();
  disk.Fill();
  folder.Write("go", "", /*executable=*/false);
  EXPECT_EQ(process.Wait(), 0) << process.Log();

  const absl::StatusOr<std::vector<Record>> records = rundir::OutboxReader(disk.path()).Read(0, 1000);
  ASSERT_TRUE(records.ok()) << records.status();
  ASSERT_GE(records->size(), 3u);
  EXPECT_TRUE(records->front().has_running());
  EXPECT_LT(records->size(), 3u + kLines) << "the disk was not full";
  EXPECT_EQ(records->at(records->size() - 2).checkpoint().directory(), "runs/step-80");
  EXPECT_TRUE(records->back().has_finished());
}

}  // namespace
}  // namespace muster::exec
