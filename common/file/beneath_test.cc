#include "common/file/beneath.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "common/failpoint.h"
#include "testing/temporary_folder.h"

namespace muster {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

// With the system call, and as on a kernel without it.
class Beneath : public testing::TestWithParam<bool> {
 protected:
  Beneath() {
    EXPECT_TRUE(failpoint::Arm(GetParam() ? "" : "file.openat2=EACCES@*").ok());
    fs::create_directories(At("root/inner"));
    fs::create_directories(At("elsewhere/inner"));
    std::ofstream(At("root/inner/file")) << "inside";
    std::ofstream(At("elsewhere/inner/file")) << "outside";
  }
  ~Beneath() override { EXPECT_TRUE(failpoint::Arm("").ok()); }
  std::string At(const std::string& name) const { return folder_.path() + "/" + name; }
  // What is read, or the message of the error.
  std::string Read(const std::string& path) const {
    const absl::StatusOr<int> fd = OpenBeneath({At("none"), At("root")}, path, O_RDONLY | O_CLOEXEC);
    if (!fd.ok()) {
      EXPECT_TRUE(absl::IsPermissionDenied(fd.status()) || absl::IsNotFound(fd.status())) << fd.status();
      return std::string(fd.status().message());
    }
    char text[16];
    const ssize_t got = read(*fd, text, sizeof text);
    close(*fd);
    return std::string(text, got < 0 ? 0 : got);
  }
  absl::Status Check(const std::string& path) const { return CheckBeneath({At("root")}, path); }

  TemporaryFolder folder_;
};

TEST_P(Beneath, WhatLiesBelowIsOpenedByAnyNameThatStaysThere) {
  EXPECT_EQ(Read(At("root/inner/file")), "inside");
  EXPECT_EQ(Read(At("root/inner/../inner/./file")), "inside");
  fs::create_symlink("inner/file", At("root/relative"));
  fs::create_symlink(At("root/inner"), At("root/absolute"));
  fs::create_directory_symlink(At("root"), At("elsewhere/back"));
  EXPECT_EQ(Read(At("root/relative")), "inside");
  EXPECT_EQ(Read(At("root/absolute/file")), "inside");
  EXPECT_EQ(Read(At("elsewhere/back/inner/file")), "inside");
  EXPECT_THAT(Read(At("root/inner/none")), HasSubstr("No such file"));
  const absl::StatusOr<int> root = OpenBeneath({At("root")}, At("root") + "/", O_PATH | O_CLOEXEC);
  ASSERT_TRUE(root.ok()) << root.status();
  close(*root);
}

TEST_P(Beneath, NoOtherWayLeadsOut) {
  fs::create_symlink("../elsewhere/inner/file", At("root/relative"));
  fs::create_symlink(At("elsewhere/inner"), At("root/absolute"));
  fs::create_symlink("/proc/self/root" + At("elsewhere/inner"), At("root/magic"));
  fs::create_symlink("/proc/self/cwd", At("root/here"));
  for (const char* name : {"root/../elsewhere/inner/file", "root/relative", "root/absolute/file", "root/magic/file",
                           "root/here", "elsewhere/inner/file", "root-of-others"}) {
    EXPECT_THAT(Read(At(name)), HasSubstr(" is not below ")) << name;
    EXPECT_TRUE(absl::IsPermissionDenied(Check(At(name)))) << name;
  }
  EXPECT_THAT(Read("/proc/self/root" + At("elsewhere/inner/file")), HasSubstr(" is not below "));
}

TEST_P(Beneath, FilesAreCreatedThereAndNowhereElse) {
  const auto create = [&](const std::string& path) {
    const absl::StatusOr<int> fd = OpenBeneath({At("root")}, path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd.ok()) close(*fd);
    return fd.status();
  };
  EXPECT_TRUE(create(At("root/inner/new")).ok());
  EXPECT_TRUE(fs::exists(At("root/inner/new")));
  fs::create_symlink(At("elsewhere"), At("root/out"));
  EXPECT_TRUE(absl::IsPermissionDenied(create(At("root/out/new"))));
  EXPECT_FALSE(fs::exists(At("elsewhere/new")));
}

TEST_P(Beneath, WhatIsNotThereYetIsJudgedByWhatIs) {
  EXPECT_TRUE(Check(At("root/a/b/c")).ok());
  EXPECT_TRUE(CheckBeneath({At("not-yet")}, At("not-yet/a")).ok()) << "nor need the root be there";
  EXPECT_TRUE(absl::IsPermissionDenied(Check(At("root/a/../../elsewhere/a"))));
  fs::create_symlink(At("elsewhere"), At("root/out"));
  EXPECT_TRUE(absl::IsPermissionDenied(Check(At("root/out/a/b"))));
  fs::create_symlink(At("elsewhere/nothing"), At("root/dangling"));
  EXPECT_THAT(std::string(Check(At("root/dangling/a")).message()),
              HasSubstr("dangling is a symbolic link to something"));
}

TEST_P(Beneath, FoldersAreMadeThereAndNowhereElse) {
  const auto make = [&](const std::string& path) { return MakeFoldersBeneath({At("none"), At("root")}, path); };
  EXPECT_TRUE(make(At("root/a/b/c")).ok());
  EXPECT_TRUE(make(At("root/a/b/c/")).ok()) << "it is there";
  EXPECT_TRUE(fs::is_directory(At("root/a/b/c")));
  EXPECT_TRUE(make(At("none/a")).ok()) << "the root itself is made, too";
  EXPECT_TRUE(fs::is_directory(At("none/a")));
  fs::create_directory_symlink("inner", At("root/stays"));
  EXPECT_TRUE(make(At("root/stays/x/y")).ok());
  EXPECT_TRUE(fs::is_directory(At("root/inner/x/y")));
  fs::create_directory_symlink(At("elsewhere"), At("root/out"));
  EXPECT_THAT(std::string(make(At("root/out/x")).message()), HasSubstr(" is not below "));
  EXPECT_TRUE(absl::IsPermissionDenied(make(At("root/../elsewhere/x"))));
  EXPECT_THAT(std::string(make(At("root/inner/file/x")).message()), HasSubstr("Not a directory"));
  EXPECT_FALSE(fs::exists(At("elsewhere/x")));
}

// A colleague exchanges a folder and a link that leads out, again and again.
TEST_P(Beneath, ALinkThatChangesMeanwhileLeadsNowhereElse) {
  fs::create_directory_symlink(At("elsewhere/inner"), At("root/link"));
  std::atomic<bool> over = false;
  std::thread colleague([&] {
    while (!over) {
      std::error_code ignored;
      fs::rename(At("root/inner"), At("root/aside"), ignored);
      fs::rename(At("root/link"), At("root/inner"), ignored);
      fs::rename(At("root/inner"), At("root/link"), ignored);
      fs::rename(At("root/aside"), At("root/inner"), ignored);
    }
  });
  int inside = 0, outside = 0;
  for (int i = 0; i < 20'000; ++i) {
    const std::string read = Read(At("root/inner/file"));
    inside += read == "inside";
    outside += read == "outside";
  }
  over = true;
  colleague.join();
  EXPECT_GT(inside, 0);
  EXPECT_EQ(outside, 0);
}

TEST_P(Beneath, AFolderThatBecomesALinkMeanwhileIsNotFollowed) {
  std::atomic<bool> over = false;
  std::thread colleague([&] {
    while (!over) {
      std::error_code ignored;
      fs::remove_all(At("root/a"), ignored);
      fs::create_directory_symlink(At("elsewhere"), At("root/a"), ignored);
    }
  });
  int made = 0;
  for (int i = 0; i < 5'000; ++i) made += MakeFoldersBeneath({At("root")}, At("root/a/b/c")).ok();
  over = true;
  colleague.join();
  EXPECT_GT(made, 0);
  EXPECT_FALSE(fs::exists(At("elsewhere/b")));
}

INSTANTIATE_TEST_SUITE_P(Kernels, Beneath, testing::Bool(),
                         [](const auto& info) { return info.param ? "Openat2" : "Older"; });

// The whole process is confined, so in a process of its own.
TEST(PlaceOf, FollowsLinksToWhatIsNotThereYet) {
  const TemporaryFolder folder;
  const std::string root = fs::canonical(std::string(folder.path())).native();
  const auto at = [&](const std::string& name) { return root + "/" + name; };
  fs::create_directories(at("there"));
  fs::create_symlink("there", at("link"));
  fs::create_symlink(at("missing/folder"), at("absolute"));
  fs::create_symlink("absolute/below", at("relative"));
  fs::create_symlink("loop", at("loop"));
  EXPECT_EQ(PlaceOf(at("there/a/../b/")), at("there/b"));
  EXPECT_EQ(PlaceOf(at("link/new")), at("there/new"));
  EXPECT_EQ(PlaceOf(at("absolute")), at("missing/folder"));
  EXPECT_EQ(PlaceOf(at("relative/x")), at("missing/folder/below/x"));
  EXPECT_EQ(PlaceOf(at("loop/x")), at("loop/x")) << "leads nowhere, and the search ends";
}

TEST(Confined, OnlyWhereItWasSaid) {
  const TemporaryFolder folder;
  const std::string inside = folder.path() + "/in/file", outside = folder.path() + "/out/file";
  fs::create_directories(folder.path() + "/in");
  fs::create_directories(folder.path() + "/out");
  std::ofstream(inside) << "x";
  std::ofstream(outside) << "x";
  const auto opens = [](FileUse use, const std::string& path) {
    const absl::StatusOr<int> fd = OpenConfined(use, path, O_RDONLY | O_CLOEXEC);
    if (fd.ok()) close(*fd);
    return fd.ok();
  };
  for (const FileUse use : {FileUse::kData, FileUse::kRead, FileUse::kWrite}) EXPECT_TRUE(opens(use, outside));
  EXPECT_TRUE(CheckConfined(outside).ok());
  EXPECT_EXIT(
      {
        Confine({.data = {folder.path() + "/in"}, .read = {}, .write = {folder.path() + "/in"}});
        const bool right = opens(FileUse::kData, inside) && !opens(FileUse::kData, outside) &&
                           opens(FileUse::kRead, outside) && !opens(FileUse::kWrite, outside) &&
                           CheckConfined(inside).ok() && !CheckConfined(outside).ok();
        _exit(right ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace muster
