#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/failpoint.h"
#include "common/file/beneath.h"
#include "common/file/durable_file.h"
#include "common/file/lock.h"
#include "common/file/private_folder.h"
#include "common/file/read_file.h"
#include "common/file/reliable_folder.h"
#include "testing/small_disk.h"
#include "testing/sync_watch.h"
#include "testing/temporary_folder.h"

namespace muster {
namespace {

namespace fs = std::filesystem;
using absl::StatusCode;

constexpr const char* kSteps[] = {"create", "write", "sync", "rename", "folder"};

// As another program sees it.
std::string Slurp(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<std::string> NamesIn(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename());
  return names;
}

unsigned ModeOf(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0 ? info.st_mode & 07777 : 0;
}

class Umask {
 public:
  explicit Umask(mode_t mask) : before_(umask(mask)) {}
  ~Umask() { umask(before_); }

 private:
  const mode_t before_;
};

class DurableFileTest : public ::testing::Test {
 protected:
  void TearDown() override { ASSERT_TRUE(failpoint::Arm("").ok()); }

  const TemporaryFolder folder_;
  const std::string path_ = folder_.path() + "/file";
};

TEST_F(DurableFileTest, NothingIsNamedBeforeItIsSynced) {
  const SyncWatch watch(folder_.path());
  for (const char* content : {"old", "new"}) {
    ASSERT_TRUE(WriteDurably(path_, content).ok());
    EXPECT_EQ(watch.Unsynced(), std::vector<std::string>{});
  }
  ASSERT_TRUE(WriteDurably(folder_.path() + "/other", "x", {.existing = FileOptions::kRefuse}).ok());
  EXPECT_EQ(watch.Unsynced(), std::vector<std::string>{});
  EXPECT_EQ(watch.RenamedUnsynced(), std::vector<std::string>{});
  EXPECT_EQ(Slurp(path_), "new");
}

TEST_F(DurableFileTest, WhereTheDiskFailsTheOldContentIsLeftAndNothingElse) {
  ASSERT_TRUE(WriteDurably(path_, "old").ok());
  for (const std::string step : {"create", "write", "sync", "rename"}) {
    ASSERT_TRUE(failpoint::Arm(absl::StrCat("file.file.", step, "=ENOSPC")).ok());
    const absl::Status status = WriteDurably(path_, "new");
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << step << status;
    EXPECT_TRUE(absl::StrContains(status.message(), path_)) << step << status;
    EXPECT_EQ(Slurp(path_), "old") << step;
    EXPECT_EQ(NamesIn(folder_.path()), std::vector<std::string>{"file"}) << step;
  }
  // The new content is there, but the caller must not rely on it.
  ASSERT_TRUE(failpoint::Arm("file.file.folder=EIO").ok());
  EXPECT_EQ(WriteDurably(path_, "new").code(), StatusCode::kDataLoss);
}

TEST_F(DurableFileTest, KilledAtAnyStepLeavesTheOldContentOrTheNew) {
  for (const std::string step : kSteps) {
    ASSERT_TRUE(WriteDurably(path_, "old").ok());
    const pid_t child = fork();
    if (child == 0) {
      if (!failpoint::Arm(absl::StrCat("file.file.", step, "=kill")).ok()) _exit(1);
      _exit(WriteDurably(path_, "new").ok() ? 2 : 3);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status)) << step << " was not passed";
    EXPECT_EQ(Slurp(path_), step == "folder" ? "new" : "old") << step;
  }
}

TEST_F(DurableFileTest, HasItsModeWhateverTheUmask) {
  {
    const Umask open(0);
    ASSERT_TRUE(WriteDurably(path_, "secret").ok());
    EXPECT_EQ(ModeOf(path_), 0600u);
    ASSERT_TRUE(WriteDurably(path_, "public", {.mode = 0644}).ok());
    EXPECT_EQ(ModeOf(path_), 0644u);
    ASSERT_TRUE(WriteDurably(path_, "ours", {}).ok());
    EXPECT_EQ(ModeOf(path_), 0666u);
  }
  const Umask closed(077);
  ASSERT_TRUE(WriteDurably(path_, "public", {.mode = 0644}).ok());
  EXPECT_EQ(ModeOf(path_), 0644u);
  ASSERT_TRUE(WriteDurably(path_, "ours", {}).ok());
  EXPECT_EQ(ModeOf(path_), 0600u);
}

TEST_F(DurableFileTest, RefusesWhatIsThere) {
  const FileOptions refuse{.existing = FileOptions::kRefuse};
  ASSERT_TRUE(WriteDurably(path_, "old", refuse).ok());
  EXPECT_EQ(WriteDurably(path_, "new", refuse).code(), StatusCode::kAlreadyExists);
  fs::create_directory(folder_.path() + "/sub");
  EXPECT_EQ(WriteDurably(folder_.path() + "/sub", "x").code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(WriteDurably(folder_.path() + "/no/folder", "x").code(), StatusCode::kNotFound);

  // It appeared while the file was written.
  const std::string late = folder_.path() + "/late";
  absl::StatusOr<DurableFile> file = DurableFile::Create(late, refuse);
  ASSERT_TRUE(file.ok() && file->Write("mine").ok());
  ASSERT_TRUE(WriteDurably(late, "theirs").ok());
  EXPECT_EQ(file->Commit().code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(Slurp(late), "theirs");
  EXPECT_EQ(Slurp(path_), "old");
}

TEST_F(DurableFileTest, IsReadBackOverwrittenAndCut) {
  {
    absl::StatusOr<DurableFile> file = DurableFile::Create(path_);
    ASSERT_TRUE(file.ok() && file->Write("0123456789").ok());
    char back[3];
    ASSERT_TRUE(file->ReadBack(4, 3, back).ok());
    EXPECT_EQ(std::string(back, 3), "456");
    EXPECT_EQ(file->ReadBack(9, 3, back).code(), StatusCode::kDataLoss);
    ASSERT_TRUE(file->Overwrite(2, "ab").ok());
    ASSERT_TRUE(file->Truncate(5).ok());
    ASSERT_TRUE(file->Write("!").ok());
    EXPECT_EQ(file->size(), 6u);
    EXPECT_FALSE(fs::exists(path_));
    ASSERT_TRUE(file->Commit().ok());
  }
  EXPECT_EQ(Slurp(path_), "01ab4!");
  { ASSERT_TRUE(DurableFile::Create(folder_.path() + "/never").ok()); }
  EXPECT_EQ(NamesIn(folder_.path()), std::vector<std::string>{"file"});
}

TEST_F(DurableFileTest, AFailedWriteCannotBeCommitted) {
  absl::StatusOr<DurableFile> file = DurableFile::Create(path_, {.points = "part"});
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE(failpoint::Arm("part.write=EIO@1").ok());
  EXPECT_EQ(file->Write("x").code(), StatusCode::kDataLoss);
  EXPECT_TRUE(file->Write("y").ok());
  EXPECT_EQ(file->Commit().code(), StatusCode::kFailedPrecondition);
  EXPECT_FALSE(fs::exists(path_));
}

TEST_F(DurableFileTest, AFolderGetsItsNameWhole) {
  const SyncWatch watch(folder_.path());
  const std::string staging = folder_.path() + "/staging", name = folder_.path() + "/step";
  ASSERT_TRUE(MakeFolder(staging).ok());
  ASSERT_TRUE(WriteInPlace(staging + "/a", "1", {}).ok());
  EXPECT_EQ(WriteInPlace(staging + "/a", "2", {}).code(), StatusCode::kAlreadyExists);
  ASSERT_TRUE(SyncFolder(staging).ok());
  ASSERT_TRUE(failpoint::Arm("step.rename=EIO@1").ok());
  EXPECT_EQ(Rename(staging, name, "step.rename").code(), StatusCode::kDataLoss);
  ASSERT_TRUE(Rename(staging, name, "step.rename").ok());
  ASSERT_TRUE(SyncFolder(folder_.path()).ok());
  EXPECT_EQ(watch.Unsynced(), std::vector<std::string>{});
  EXPECT_EQ(watch.RenamedUnsynced(), std::vector<std::string>{});
  EXPECT_EQ(Slurp(name + "/a"), "1");
}

TEST_F(DurableFileTest, NamesTheFileThatItWasAskedForAndWhyItCannotBe) {
  const auto says = [](const std::string& path) {
    const absl::StatusOr<DurableFile> file = DurableFile::Create(path);
    return file.ok() ? "created" : std::string(file.status().message());
  };
  const std::string nowhere = folder_.path() + "/nowhere", file = folder_.Write("file", "");
  EXPECT_EQ(says(nowhere + "/x"), absl::StrCat("cannot create ", nowhere, "/x: there is no folder ", nowhere));
  EXPECT_EQ(says(file + "/x"), absl::StrCat("cannot create ", file, "/x: ", file, " is not a folder"));
  EXPECT_EQ(says("/proc/x"), "cannot create /proc/x: nothing can be created in /proc, which the kernel provides");
}

TEST_F(DurableFileTest, AnEmptyNameIsRefused) {
  for (const absl::Status& status : {WriteDurably("", "x"), WriteInPlace("", "x", {})}) {
    EXPECT_EQ(status, absl::InvalidArgumentError("the name of the file to write is empty: name a file"));
  }
}

TEST_F(DurableFileTest, AFailedRenameNamesTheFileAndNotItsTemporaryName) {
  const std::string path = folder_.path() + "/data";
  absl::StatusOr<DurableFile> file = DurableFile::Create(path, {});
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_EQ(mkdir(path.c_str(), 0700), 0);
  const absl::Status status = file->Commit();
  EXPECT_EQ(status.message(), absl::StrCat("cannot create ", path, ": Is a directory"));
}

TEST(MakeConfinedFolders, SayWhichCannotBeCreated) {
  EXPECT_EQ(MakeConfinedFolders("/proc/x/y").message(),
            "cannot create /proc/x: nothing can be created in /proc, which the kernel provides");
}

// mkdir says that it exists, as if another attempt could find it there.
TEST(MakeConfinedFolders, ABrokenLinkIsInTheWay) {
  const TemporaryFolder folder;
  const std::string link = folder.path() + "/link", loop = folder.path() + "/loop";
  std::filesystem::create_symlink("nowhere/x", link);
  std::filesystem::create_symlink("loop", loop);
  for (const char* below : {"", "/", "/a/b"}) {
    const absl::Status status = MakeConfinedFolders(link + below);
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition) << status;
    EXPECT_EQ(status.message(),
              absl::StrCat(link, " is a broken symbolic link (to nowhere/x): create what it names, or remove it"));
    const absl::Status looped = MakeConfinedFolders(loop + below);
    EXPECT_EQ(looped.code(), StatusCode::kFailedPrecondition) << looped;
    EXPECT_EQ(looped.message(), absl::StrCat(loop,
                                             " is part of a loop of symbolic links (to loop): let one of them name "
                                             "what is there, or remove them"));
  }
  std::filesystem::create_directories(folder.path() + "/nowhere/x");
  EXPECT_TRUE(MakeConfinedFolders(link + "/a/b").ok());
}

TEST(SyncFile, WhatSomeoneElseWrote) {
  const TemporaryFolder folder;
  const SyncWatch watch(folder.path());
  const std::string path = folder.path() + "/file";
  const int descriptor = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_EQ(write(descriptor, "x", 1), 1);
  close(descriptor);
  EXPECT_EQ(watch.Unsynced(), (std::vector<std::string>{folder.path(), path}));
  EXPECT_TRUE(SyncFile(path).ok());
  EXPECT_EQ(watch.Unsynced(), std::vector<std::string>{folder.path()});
  EXPECT_TRUE(SyncFolder(folder.path()).ok());
  EXPECT_EQ(watch.Unsynced(), std::vector<std::string>{});
  EXPECT_EQ(SyncFile(folder.path() + "/none").code(), StatusCode::kNotFound);
}

TEST(ParentFolder, OfAPath) {
  EXPECT_EQ(ParentFolder("/a/b/c"), "/a/b");
  EXPECT_EQ(ParentFolder("/c"), "/");
  EXPECT_EQ(ParentFolder("c"), ".");
}

TEST(ReadFile, WholeFromAnOffsetAndAtMostSoMuch) {
  const TemporaryFolder folder;
  const std::string path = folder.Write("file", "0123456789");
  EXPECT_EQ(ReadWhole(path).value(), "0123456789");
  EXPECT_EQ(ReadWhole(path, 10).value(), "0123456789");
  const absl::Status large = ReadWhole(path, 9).status();
  EXPECT_EQ(large.code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::StrContains(large.message(), "more than 9 B")) << large;
  EXPECT_EQ(ReadFrom(path, 7).value(), "789");
  EXPECT_EQ(ReadFrom(path, 100).value(), "");
  EXPECT_EQ(ReadWhole(folder.path() + "/none").status().code(), StatusCode::kNotFound);
  EXPECT_FALSE(ReadWhole("/proc/self/stat").value().empty());
}

TEST(ReadFile, ASecretMustBeOurs) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/secret";
  ASSERT_TRUE(WriteDurably(path, "two").ok());
  EXPECT_EQ(ReadPrivateFile(path).value(), "two");
  chmod(path.c_str(), 0640);
  const absl::Status status = ReadPrivateFile(path).status();
  EXPECT_EQ(status.code(), StatusCode::kPermissionDenied);
  EXPECT_TRUE(absl::StrContains(status.message(), "chmod 600")) << status;
  EXPECT_EQ(ReadPrivateFile(folder.path() + "/none").status().code(), StatusCode::kNotFound);
}

TEST(FileLock, NamesItsHolderAndGoesWithIt) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/lock";
  const auto take = [&] { return FileLock::Take(path, "muster-worker", "/state", "stop it first"); };
  {
    const absl::StatusOr<FileLock> held = take();
    ASSERT_TRUE(held.ok()) << held.status();
    const absl::Status refused = take().status();
    EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition);
    EXPECT_EQ(refused.message(),
              absl::StrCat("another muster-worker (process ", getpid(), ") has /state; stop it first"));
    ASSERT_EQ(truncate(path.c_str(), 0), 0);
    EXPECT_TRUE(absl::StrContains(take().status().message(), "(process unknown)"));
  }
  EXPECT_TRUE(take().ok());
  EXPECT_TRUE(fs::exists(path));
}

// The lock is the process's: SIGKILL frees it too.
TEST(FileLock, AKilledHolderFreesIt) {
  const TemporaryFolder folder;
  const auto take = [&] { return FileLock::Take(folder.path() + "/lock", "a", "b", "c"); };
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    const absl::StatusOr<FileLock> held = take();
    if (write(ready[1], held.ok() ? "y" : "n", 1) != 1) _exit(1);
    while (true) pause();
  }
  char answer = 0;
  ASSERT_EQ(read(ready[0], &answer, 1), 1);
  EXPECT_EQ(answer, 'y');
  EXPECT_TRUE(absl::StrContains(take().status().message(), absl::StrCat("(process ", child, ")")));
  kill(child, SIGKILL);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(take().ok());
  close(ready[0]);
  close(ready[1]);
}

TEST(PrivateFolder, RefusesWhatOthersMayEnter) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/a/b";
  EXPECT_EQ(CheckPrivateFolder(path).code(), StatusCode::kNotFound);
  {
    const Umask open(0);
    EXPECT_TRUE(MakePrivateFolder(path + "/").ok());
  }
  EXPECT_EQ(ModeOf(path), 0700u);
  EXPECT_TRUE(MakePrivateFolder(path).ok());
  chmod(path.c_str(), 0750);
  for (const absl::Status& status : {MakePrivateFolder(path), CheckPrivateFolder(path)}) {
    EXPECT_EQ(status.code(), StatusCode::kPermissionDenied);
    EXPECT_TRUE(absl::StrContains(status.message(), absl::StrCat("(mode 750)"))) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), absl::StrCat("chmod 700 ", path))) << status;
  }
  folder.Write("file", "");
  EXPECT_EQ(MakePrivateFolder(folder.path() + "/file").code(), StatusCode::kPermissionDenied);
  EXPECT_EQ(MakePrivateFolder(folder.path() + "/file/x").code(), StatusCode::kFailedPrecondition);
}

TEST(PrivateFolder, FollowsALinkOfOursAlone) {
  const TemporaryFolder folder;
  const std::string target = folder.path() + "/target", link = folder.path() + "/link";
  ASSERT_TRUE(MakePrivateFolder(target).ok());
  fs::create_symlink(target, link);
  EXPECT_TRUE(CheckPrivateFolder(link).ok());
  chmod(target.c_str(), 0755);
  EXPECT_EQ(CheckPrivateFolder(link).code(), StatusCode::kPermissionDenied);
  fs::remove(target);
  EXPECT_EQ(CheckPrivateFolder(link).code(), StatusCode::kPermissionDenied) << "someone else may create the target";
}

TEST(PrivateFolder, RefusesWhatBelongsToOthers) {
  constexpr uid_t kUser = 1000, kOther = 1001;
  const auto judge = [](std::optional<uid_t> link_owner, uid_t owner, mode_t mode) {
    struct stat info {};
    info.st_uid = owner;
    info.st_mode = mode;
    return JudgePrivateFolder("/tmp/m", link_owner, info, kUser);
  };
  const mode_t folder = S_IFDIR | 0700;
  EXPECT_TRUE(judge({}, kUser, folder).ok());
  EXPECT_TRUE(judge(kUser, kUser, folder).ok());
  EXPECT_TRUE(judge(0, kUser, folder).ok());
  for (const auto& [status, words] : {
           std::pair(judge({}, kOther, folder), "/tmp/m belongs to user 1001, this process runs as user 1000"),
           std::pair(judge({}, 0, folder), "/tmp/m belongs to user 0"),
           std::pair(judge(0, kOther, folder), "/tmp/m belongs to user 1001"),
           std::pair(judge(kOther, kUser, folder), "/tmp/m is a symbolic link of user 1001"),
           std::pair(judge(kOther, kUser, 0), "/tmp/m is a symbolic link of user 1001"),
           std::pair(judge(kUser, 0, 0), "/tmp/m is not a folder"),
           std::pair(judge({}, kUser, S_IFREG | 0600), "/tmp/m is not a folder"),
           std::pair(judge({}, kUser, S_IFDIR | 0701), "chmod 700 /tmp/m"),
       }) {
    EXPECT_EQ(status.code(), StatusCode::kPermissionDenied) << words;
    EXPECT_TRUE(absl::StrContains(status.message(), words)) << status;
  }
}

// The kernel's own word for these is "No such file or directory".
TEST(MakeFolder, SaysWhyItCannotBeMade) {
  EXPECT_EQ(MakePrivateFolder("/proc/x").message(),
            "cannot make the folder /proc/x: nothing can be created in /proc, which the kernel provides");
  EXPECT_EQ(MakePrivateFolder("/proc/x/y").message(),
            "cannot make the folder /proc/x/y: nothing can be created in /proc, which the kernel provides");
  const TemporaryFolder folder;
  EXPECT_EQ(MakeFolder(folder.path() + "/a/b").message(),
            absl::StrCat("cannot make the folder ", folder.path(), "/a/b: there is no folder ", folder.path(), "/a"));
}

TEST(MakeFolder, IsDurableInItsParent) {
  const TemporaryFolder folder;
  ASSERT_TRUE(MakeFolder(folder.path() + "/a").ok());
  EXPECT_EQ(ModeOf(folder.path() + "/a"), 0700u);
  EXPECT_TRUE(MakeFolder(folder.path() + "/a").ok());
  EXPECT_EQ(MakeFolder(folder.Write("file", "")).code(), StatusCode::kAlreadyExists);
  ASSERT_TRUE(failpoint::Arm("file.folder=EIO").ok());
  EXPECT_EQ(MakeFolder(folder.path() + "/b").code(), StatusCode::kDataLoss);
  ASSERT_TRUE(failpoint::Arm("").ok());
}

TEST(ReliableFolder, RefusesNetworkFileSystemsUnlessTheyAreAccepted) {
  // linux/magic.h: NFS_SUPER_MAGIC, CIFS, FUSE, V9FS, CEPH; then ext4, xfs, btrfs, tmpfs, overlayfs.
  for (const long type : {0x6969L, 0xFF534D42L, 0x65735546L, 0x01021997L, 0x00c36400L}) {
    EXPECT_NE(NetworkFileSystem(type), nullptr) << type;
  }
  for (const long type : {0xEF53L, 0x58465342L, 0x9123683EL, 0x01021994L, 0x794c7630L, 0L}) {
    EXPECT_EQ(NetworkFileSystem(type), nullptr) << type;
  }
  EXPECT_EQ(std::string(NetworkFileSystem(static_cast<int>(0xFF534D42))), "SMB") << "where the type has 32 bits";
  const TemporaryFolder folder;
  EXPECT_TRUE(CheckReliable(folder.path(), false, FileSystemType(folder.path())).ok());
  const absl::Status refused = CheckReliable(folder.path(), false, 0x6969);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(refused.message().find("is on NFS"), absl::string_view::npos) << refused;
  EXPECT_NE(refused.message().find("--allow-network-filesystem"), absl::string_view::npos) << refused;
  EXPECT_TRUE(CheckReliable(folder.path(), true, 0x6969).ok()) << "its locks and fsync work";
  EXPECT_FALSE(CheckReliable(folder.path() + "/nowhere", true, 0).ok());
  EXPECT_TRUE(std::filesystem::is_empty(folder.path())) << "nothing is left";
}

TEST(ReliableFolder, AFullDiskIsReliable) {
  const TemporaryFolder folder;
  const SmallDisk disk(folder.path() + "/disk", 1);
  ASSERT_TRUE(disk.ok());
  disk.Fill();
  EXPECT_TRUE(CheckReliable(disk.path(), false, FileSystemType(disk.path())).ok());
}

}  // namespace
}  // namespace muster
