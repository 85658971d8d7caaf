#include "worker/agent/preflight.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/failpoint.h"
#include "common/node/not_ready.h"
#include "testing/temporary_folder.h"
#include "testing/wait.h"

namespace muster::agent {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

class PreflightTest : public testing::Test {
 protected:
  PreflightTest() {
    options_.kind = PreflightKind::kFull;
    options_.state_dir = Folder("state");
    options_.run_dir = Folder("run");
    options_.host = "127.0.0.1";
  }
  std::string Folder(const std::string& name) {
    std::filesystem::create_directories(dir_.path() + "/" + name);
    return dir_.path() + "/" + name;
  }
  // A trainer that prints the given lines, as the shell's printf takes them, and then does more.
  void Trainer(const std::string& lines, const std::string& more = "") {
    options_.trainer = dir_.Write("trainer", absl::StrCat("#!/bin/sh\nprintf '", lines, "'\n", more, "\n"), true);
  }
  static Slot Gpu(uint32_t index, const std::string& model = "H100") {
    Slot slot;
    slot.set_index(index);
    slot.set_device(DEVICE_CUDA);
    slot.set_device_uuid(absl::StrCat("GPU-", index));
    slot.set_model(model);
    return slot;
  }
  static Slot Cpu() {
    Slot slot;
    slot.set_device(DEVICE_CPU);
    return slot;
  }
  static bool Has(const Preflight& preflight, const std::string& name) {
    return std::any_of(preflight.checks().begin(), preflight.checks().end(),
                       [&](const PreflightCheck& check) { return check.name() == name; });
  }
  static std::string Problem(const Preflight& preflight, const std::string& name) {
    for (const PreflightCheck& check : preflight.checks()) {
      if (check.name() == name) return check.problem();
    }
    return "there is no such check";
  }
  // With more patience each time, until the trainer has begun that check: a busy machine may take long to start it.
  Preflight CheckUntilBegun(const std::string& name, const std::vector<Slot>& free,
                            FolderChecks* unanswered = nullptr) {
    Preflight found;
    options_.patience = absl::Milliseconds(300);
    while (true) {
      found = CheckMachine(options_, free, -1, unanswered);
      if (Has(found, name) || options_.patience > absl::Seconds(15)) return found;
      options_.patience *= 4;
    }
  }
  std::string NoAnswer() const { return absl::StrCat("no answer within ", absl::FormatDuration(options_.patience)); }

  TemporaryFolder dir_;
  PreflightOptions options_;
};

TEST_F(PreflightTest, PassesWhatTheTrainerPasses) {
  Trainer(
      "begin\\tcpu\\npass\\tcpu\\t0.1 TFLOP/s in "
      "fp32\\t1e11\\nbegin\\tcollective\\npass\\tcollective\\tall-reduce\\t0\\n");
  const Preflight found = CheckMachine(options_, {Cpu()});
  EXPECT_TRUE(found.has_time());
  for (const PreflightCheck& check : found.checks()) EXPECT_THAT(check.problem(), IsEmpty()) << check.name();
  ASSERT_EQ(found.checks_size(), 4);
  EXPECT_EQ(found.checks(3).result(), "0.1 TFLOP/s in fp32");
}

TEST_F(PreflightTest, NamesTheDeviceThatDoesNotAnswer) {
  Trainer("begin\\tdevice 0\\npass\\tdevice 0\\tfast\\t5e13\\nbegin\\tdevice 1\\n", "sleep 1000");
  const Preflight found = CheckUntilBegun("device 1", {Gpu(0), Gpu(1)});
  EXPECT_THAT(Problem(found, "device 0"), IsEmpty());
  EXPECT_EQ(Problem(found, "device 1"), NoAnswer());
}

// The wall clock is an hour later each time that it is read, as when NTP corrects it while the machine starts.
TEST_F(PreflightTest, AStepOfTheWallClockFailsNoCheck) {
  class SteppedClock final : public Clock {
   public:
    Now Read() const override {
      Now now = real_.Read();
      now.wall += absl::Hours(++reads_);
      return now;
    }

   private:
    RealClock real_;
    mutable std::atomic<int> reads_ = 0;
  };
  options_.clock = std::make_shared<SteppedClock>();
  Trainer("begin\\tcpu\\n", "sleep 0.2; printf 'pass\\tcpu\\tfine\\t1e11\\n'");
  EXPECT_THAT(Problem(CheckMachine(options_, {Cpu()}), "cpu"), IsEmpty());
}

TEST_F(PreflightTest, NamesTheDeviceAtWhichTheProcessDies) {
  Trainer("begin\\tdevice 3\\n", "kill -11 $$");
  EXPECT_EQ(Problem(CheckMachine(options_, {Gpu(3)}), "device 3"),
            "the process that checks it was killed by signal 11");
  Trainer("begin\\tdevice 3\\nfail\\tdevice 3\\tCUDA error: uncorrectable ECC error encountered\\n");
  EXPECT_EQ(Problem(CheckMachine(options_, {Gpu(3)}), "device 3"), "CUDA error: uncorrectable ECC error encountered");
}

TEST_F(PreflightTest, ATrainerThatCannotStartIsAProblem) {
  options_.trainer = "/nonexistent/trainer";
  EXPECT_THAT(Problem(CheckMachine(options_, {Cpu()}), "trainer"), HasSubstr("/nonexistent/trainer"));
  // A library is missing; the second is what glibc's loader prints.
  Trainer("", "exit 127");
  EXPECT_EQ(Problem(CheckMachine(options_, {Cpu()}), "trainer"),
            "muster-trainer does not load: its process ended with code 127");
  Trainer("",
          "echo '/opt/muster-trainer: error while loading shared libraries: libtorch.so: cannot open shared object "
          "file: Permission denied' >&2; exit 127");
  const Preflight unloadable = CheckMachine(options_, {Cpu()});
  EXPECT_EQ(Problem(unloadable, "trainer"),
            "muster-trainer does not load: libtorch.so: cannot open shared object file: Permission denied");
  EXPECT_EQ(ProblemsOf(unloadable),
            "muster-trainer does not load: libtorch.so: cannot open shared object file: Permission denied");
}

TEST_F(PreflightTest, SaysWhatAProcessThatFailedPrintedLast) {
  Trainer("begin\\tcpu\\n", "echo 'first' >&2; echo 'no room for the test matrix' >&2; echo >&2; exit 1");
  EXPECT_EQ(Problem(CheckMachine(options_, {Cpu()}), "cpu"),
            "the process that checks it ended with code 1: no room for the test matrix");
  // One that only writes to standard error does not keep the check going.
  Trainer("begin\\tcpu\\n", "while :; do echo more >&2; done");
  const Preflight found = CheckUntilBegun("cpu", {Cpu()});
  EXPECT_EQ(Problem(found, "cpu"), NoAnswer());
}

TEST_F(PreflightTest, TheProcessSeesTheDevicesOfTheFreeSlots) {
  Trainer("", "printf 'pass\\tdevice 1\\t%s\\t1e13\\n' \"$CUDA_VISIBLE_DEVICES $*\"");
  const Preflight found = CheckMachine(options_, {Gpu(1), Gpu(3)});
  EXPECT_EQ(found.checks(2).result(), "GPU-1,GPU-3 preflight --host 127.0.0.1 --cuda 1,3");
}

TEST_F(PreflightTest, WithoutAFreeSlotNoDeviceIsTouched) {
  Trainer("begin\\tcpu\\nfail\\tcpu\\twrong\\n");
  EXPECT_EQ(CheckMachine(options_, {}).checks_size(), 2);
  options_.kind = PreflightKind::kFolders;
  EXPECT_EQ(CheckMachine(options_, {Cpu()}).checks_size(), 2);
}

TEST_F(PreflightTest, AGpuThatIsSlowerThanItsEqualsIsAProblem) {
  Trainer(
      "pass\\tdevice 0\\t50 TFLOP/s\\t5e13\\npass\\tdevice 1\\t20 TFLOP/s\\t2e13\\npass\\tdevice 2\\t51 "
      "TFLOP/s\\t5.1e13\\n");
  const Preflight found = CheckMachine(options_, {Gpu(0), Gpu(1), Gpu(2)});
  EXPECT_THAT(Problem(found, "device 0"), IsEmpty());
  EXPECT_EQ(Problem(found, "device 1"), "20 TFLOP/s, less than half of the 50 that equal devices here reach");
  // Another model may be slower.
  EXPECT_THAT(Problem(CheckMachine(options_, {Gpu(0), Gpu(1, "T4"), Gpu(2)}), "device 1"), IsEmpty());
}

TEST_F(PreflightTest, AGpuThatIsSlowerThanItWasIsAProblem) {
  Trainer("pass\\tdevice 0\\t50 TFLOP/s\\t5e13\\n");
  EXPECT_THAT(Problem(CheckMachine(options_, {Gpu(0)}), "device 0"), IsEmpty());
  Trainer("pass\\tdevice 0\\t24 TFLOP/s\\t2.4e13\\n");
  EXPECT_EQ(Problem(CheckMachine(options_, {Gpu(0)}), "device 0"),
            "24 TFLOP/s, less than half of the 50 that it has reached before");
  Trainer("pass\\tdevice 0\\t26 TFLOP/s\\t2.6e13\\n");
  EXPECT_THAT(Problem(CheckMachine(options_, {Gpu(0)}), "device 0"), IsEmpty());
}

TEST_F(PreflightTest, AFullOrMissingFolderIsAProblem) {
  Trainer("pass\\tcpu\\tfine\\t1e11\\n");
  ASSERT_EQ(mount("none", options_.run_dir.c_str(), "tmpfs", 0, "size=4m"), 0);
  options_.data_roots = {dir_.path() + "/unmounted"};
  const Preflight found = CheckMachine(options_, {Cpu()});
  umount(options_.run_dir.c_str());
  EXPECT_THAT(Problem(found, "state folder"), IsEmpty());
  EXPECT_EQ(Problem(found, "run folder"), absl::StrCat("4 MiB free in ", options_.run_dir, ", less than 64 MiB"));
  EXPECT_THAT(Problem(found, "data root"), HasSubstr("unmounted: No such file or directory"));
}

// As a disk that the kernel has set to read-only after an error.
TEST_F(PreflightTest, AFolderThatCannotBeWrittenIsAProblem) {
  Trainer("pass\\tcpu\\tfine\\t1e11\\n");
  ASSERT_EQ(mount("none", options_.run_dir.c_str(), "tmpfs", MS_RDONLY, "size=128m"), 0);
  const Preflight found = CheckMachine(options_, {Cpu()});
  umount(options_.run_dir.c_str());
  EXPECT_THAT(Problem(found, "state folder"), IsEmpty());
  EXPECT_THAT(Problem(found, "run folder"), HasSubstr("cannot write: "));
}

// As a root on a hard-mounted NFS whose server is down.
TEST_F(PreflightTest, AFolderThatDoesNotAnswerIsNamed) {
  ASSERT_TRUE(failpoint::Arm("preflight.data root=sleep:600000@*").ok());
  Trainer("pass\\tcpu\\tfine\\t1e11\\n");
  options_.data_roots = {Folder("data")};
  FolderChecks unanswered;
  for (int times = 0; times < 3; ++times) {
    const Preflight found = CheckUntilBegun("cpu", {Cpu()}, &unanswered);
    EXPECT_EQ(Problem(found, "data root"), absl::StrCat(options_.data_roots[0], ": ", NoAnswer()));
    EXPECT_THAT(Problem(found, "state folder"), IsEmpty());
    EXPECT_THAT(Problem(found, "cpu"), IsEmpty());
  }
  EXPECT_EQ(failpoint::Passed()["preflight.data root"], 1u) << "no thread more for the same folder";
  ASSERT_TRUE(failpoint::Arm("").ok());
}

// The daemon's end does not wait for it either.
TEST_F(PreflightTest, AFolderThatDoesNotAnswerKeepsNoOwner) {
  ASSERT_TRUE(failpoint::Arm("preflight.data root=sleep:600000").ok());
  Trainer("pass\\tcpu\\tfine\\t1e11\\n");
  options_.data_roots = {Folder("data")};
  static const RealClock clock;
  const auto loop = std::make_shared<EventLoop>(&clock);
  const SteadyTime begun = clock.Read().steady;
  {
    Preflights preflights(options_, loop.get(), [](const Preflight&) {});
    preflights.Start(1, {Cpu()});
    ASSERT_TRUE(Eventually([] { return failpoint::Passed()["preflight.data root"] == 1; }));
  }
  EXPECT_LT(clock.Read().steady - begun, kTestPatience);
  ASSERT_TRUE(failpoint::Arm("").ok());
}

TEST_F(PreflightTest, EndsEarlyWithItsOwner) {
  Trainer("begin\\tcpu\\n", "sleep 1000");
  static const RealClock clock;
  const auto loop = std::make_shared<EventLoop>(&clock);
  bool called = false;
  {
    Preflights preflights(options_, loop.get(), [&](const Preflight&) { called = true; });
    preflights.Start(1, {Cpu()});
  }
  loop->RunPending();
  EXPECT_FALSE(called);
}

}  // namespace
}  // namespace muster::agent
