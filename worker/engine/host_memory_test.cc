#include "worker/engine/host_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "worker/engine/failed.h"

namespace muster::engine {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

// Of this process, in memory: pages of files, or all.
int64_t ResidentBytes(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (!line.starts_with(field)) continue;
    std::istringstream words(line.substr(field.size()));
    int64_t kib = 0;
    words >> kib;
    return kib << 10;
  }
  return -1;
}

std::string Folder() {
  std::string folder = testing::TempDir() + "/offload-XXXXXX";
  EXPECT_NE(mkdtemp(folder.data()), nullptr);
  return folder;
}

absl::Status WhyNot(HostMemory& memory, int64_t elements) {
  try {
    memory.Zeros(elements, at::kFloat);
    return absl::OkStatus();
  } catch (const Failed& failed) {
    return failed.status;
  }
}

TEST(HostMemory, IsZeroAndCounted) {
  HostMemory memory("", false);
  const at::Tensor a = memory.Zeros(1001, at::kFloat), b = memory.Zeros(3, at::kBFloat16),
                   none = memory.Zeros(0, at::kFloat);
  EXPECT_EQ(memory.bytes(), 4 * 1001 + 2 * 3u);
  EXPECT_EQ(a.numel() + b.numel() + none.numel(), 1004);
  EXPECT_EQ(a.abs().sum().item<double>() + b.abs().sum().item<double>(), 0);
  EXPECT_FALSE(memory.is_file());
}

// A pass over a file, a part at a time, needs no more memory than parts; and what was written stays.
TEST(HostMemory, AFileLeavesMemoryPartByPart) {
  const std::string folder = Folder();
  HostMemory memory(folder, false);
  constexpr int64_t kParts = 16, kPart = kMiB;  // of 4 MiB
  at::Tensor all = memory.Zeros(kParts * kPart, at::kFloat);
  EXPECT_TRUE(std::filesystem::is_empty(folder)) << "the file is unlinked, so it leaves no entry in the folder";
  const int64_t before = ResidentBytes("VmRSS:");
  int64_t most = 0;
  for (int64_t part = 0; part < kParts; ++part) {
    const at::Tensor its = all.narrow(0, part * kPart, kPart);
    its.fill_(static_cast<double>(part + 1));
    most = std::max(most, ResidentBytes("VmRSS:") - before);
    memory.Evict(its);
  }
  EXPECT_LE(most, 3 * 4 * kMiB) << "of " << kParts * 4 << " MiB";
  for (int64_t part = 0; part < kParts; ++part) {
    EXPECT_EQ(all[part * kPart + kPart - 1].item<double>(), static_cast<double>(part + 1));
  }
}

// Space is reserved when the job begins: a full disk is an error then, and no signal later.
TEST(HostMemory, AFullDiskIsAnErrorAtOnce) {
  const std::string folder = Folder();
  HostMemory memory(folder, false);
  signal(SIGXFSZ, SIG_IGN);
  rlimit old{}, small{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  small = {static_cast<rlim_t>(kMiB), old.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const absl::Status status = WhyNot(memory, kMiB);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old), 0);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("offload.to: no room for 4 MiB in " + folder));
  EXPECT_EQ(WhyNot(memory, kMiB), absl::OkStatus());
}

TEST(HostMemory, AFolderThatIsNotThereIsNamed) {
  HostMemory memory("/nowhere/at/all", false);
  EXPECT_EQ(WhyNot(memory, 1).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(WhyNot(memory, 1).message()), testing::HasSubstr("/nowhere/at/all: No such file"));
}

}  // namespace
}  // namespace muster::engine
