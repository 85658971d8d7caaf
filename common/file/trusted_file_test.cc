#include "common/file/trusted_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "testing/temporary_folder.h"

namespace muster {
namespace {

class TrustedFileTest : public ::testing::Test {
 protected:
  TrustedFileTest() {
    for (const char* folder : {"/roots/inner", "/roots-2", "/other"}) {
      std::filesystem::create_directories(folder_.path() + folder);
    }
    for (const char* file : {"roots/inner/a.so", "roots/b.so", "roots-2/c.so", "other/d.so"}) Write(file);
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_.path())) {
      chmod(entry.path().c_str(), entry.is_directory() ? 0755 : 0644);
    }
  }
  std::string At(const std::string& name) const { return folder_.path() + "/" + name; }
  void Write(const std::string& name) const { std::ofstream(At(name)) << name; }
  absl::Status Try(const std::string& name) const { return TrustedFile::Open(At(name), {At("roots")}).status(); }
  void ExpectRefused(const std::string& name, const std::string& what) const {
    const absl::Status status = Try(name);
    EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << name << ": " << status;
    EXPECT_TRUE(absl::StrContains(status.message(), what)) << status;
  }
  const TemporaryFolder folder_;
};

TEST_F(TrustedFileTest, OnlyBelowARoot) {
  EXPECT_TRUE(Try("roots/inner/a.so").ok()) << Try("roots/inner/a.so");
  EXPECT_TRUE(Try("roots/b.so").ok());
  EXPECT_TRUE(TrustedFile::Open(At("roots-2/c.so"), {At("roots"), At("roots-2")}).ok());
  ExpectRefused("roots-2/c.so", "below none of the worker's --plugin-roots");
  ExpectRefused("other/d.so", "below none");
  ExpectRefused("roots/../other/d.so", "below none");
  const absl::Status none = TrustedFile::Open(At("roots/b.so"), {}).status();
  EXPECT_TRUE(absl::IsPermissionDenied(none) && absl::StrContains(none.message(), "start it with --plugin-roots"));
  EXPECT_TRUE(absl::IsPermissionDenied(TrustedFile::Open(At("roots/b.so"), {At("nowhere")}).status()));
  EXPECT_TRUE(absl::IsNotFound(Try("roots/x.so")));
}

TEST_F(TrustedFileTest, LinksCountByWhereTheyLead) {
  std::filesystem::create_symlink(At("other/d.so"), At("roots/out.so"));
  ExpectRefused("roots/out.so", At("other/d.so"));
  std::filesystem::create_symlink(At("roots/b.so"), At("other/in.so"));
  EXPECT_TRUE(Try("other/in.so").ok()) << "the file itself is below the root";
  std::filesystem::create_directory_symlink(At("roots"), At("link"));
  EXPECT_TRUE(TrustedFile::Open(At("roots/b.so"), {At("link")}).ok()) << "a root may be a link";
}

TEST_F(TrustedFileTest, NoOneElseMayWriteIt) {
  for (const mode_t mode : {0664, 0646}) {
    chmod(At("roots/inner/a.so").c_str(), mode);
    ExpectRefused("roots/inner/a.so", "chmod go-w " + At("roots/inner/a.so"));
  }
  chmod(At("roots/inner/a.so").c_str(), 0644);
  for (const char* folder : {"roots/inner", "roots"}) {
    chmod(At(folder).c_str(), 0777);
    ExpectRefused("roots/inner/a.so", absl::StrCat("chmod go-w ", At(folder)));
    chmod(At(folder).c_str(), 0755);
  }
  EXPECT_TRUE(Try("roots/inner/a.so").ok());
}

TEST_F(TrustedFileTest, TheOwnerIsRootOrThisUser) {
  struct stat info {};
  info.st_mode = S_IFREG | 0644;
  info.st_uid = 1000;
  EXPECT_TRUE(JudgeTrusted("/f", info, 1000).ok());
  EXPECT_TRUE(absl::IsPermissionDenied(JudgeTrusted("/f", info, 0)));
  EXPECT_TRUE(absl::IsPermissionDenied(JudgeTrusted("/f", info, 1001)));
  info.st_uid = 0;
  EXPECT_TRUE(JudgeTrusted("/f", info, 1001).ok());
}

TEST_F(TrustedFileTest, OnlyRegularFilesAndWithoutWaiting) {
  ASSERT_EQ(mkfifo(At("roots/pipe").c_str(), 0600), 0);
  EXPECT_TRUE(absl::IsInvalidArgument(Try("roots/pipe")));
  EXPECT_TRUE(absl::IsInvalidArgument(Try("roots/inner")));
  EXPECT_TRUE(absl::IsInvalidArgument(TrustedFile::OpenNamed("/dev/null").status()));
}

TEST_F(TrustedFileTest, TheDescriptorIsTheCheckedFile) {
  const absl::StatusOr<TrustedFile> file = TrustedFile::Open(At("roots/b.so"), {At("roots")});
  ASSERT_TRUE(file.ok());
  std::filesystem::remove(At("roots/b.so"));
  Write("roots/b.so");
  std::ofstream(At("roots/b.so")) << "another";
  char text[32] = {};
  EXPECT_EQ(pread(file->fd(), text, sizeof text, 0), 10);
  EXPECT_STREQ(text, "roots/b.so");
}

TEST_F(TrustedFileTest, RootsAreAbsoluteFolders) {
  EXPECT_TRUE(CheckRoots({At("roots"), At("other")}).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(CheckRoots({"roots"})));
  EXPECT_TRUE(absl::IsInvalidArgument(CheckRoots({At("roots/b.so")})));
  EXPECT_TRUE(absl::IsInvalidArgument(CheckRoots({""})));
}

}  // namespace
}  // namespace muster
