// The real binary: kill -9 at any instant, SIGTERM, a second one, a full disk.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <sstream>
#include <thread>
#include <tuple>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "common/testing/temporary_folder.h"
#include "coordinator/server/testing.h"

extern char** environ;

namespace muster::server {
namespace {

std::string Binary() { return std::filesystem::absolute("coordinator/muster-coordinator").string(); }

// One muster-coordinator. Killed at the end if it still runs.
class Daemon {
 public:
  Daemon(const std::string& folder, std::vector<std::string> more = {})
      : output_(folder + "/stdout"), errors_(folder + "/stderr") {
    std::vector<std::string> words = {Binary(), "--state_dir", folder + "/state", "--listen",
                                      "unix:" + folder + "/run/c.sock"};
    words.insert(words.end(), more.begin(), more.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 1, output_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawn_file_actions_addopen(&files, 2, errors_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    EXPECT_EQ(posix_spawn(&pid_, argv[0], &files, nullptr, argv.data(), environ), 0);
    posix_spawn_file_actions_destroy(&files);
  }
  ~Daemon() {
    if (pid_ == 0) return;
    Signal(SIGKILL);
    Wait();
  }

  pid_t pid() const { return pid_; }
  void Signal(int number) { kill(pid_, number); }
  // As waitpid.
  int Wait() {
    int status = 0;
    const pid_t pid = std::exchange(pid_, 0);
    EXPECT_EQ(waitpid(pid, &status, 0), pid);
    return status;
  }
  bool WaitUntilServing() {
    return Eventually([&] { return absl::StrContains(Text(output_), "listening on "); });
  }
  std::string Output() const { return Text(output_); }
  std::string Errors() const { return Text(errors_); }

 private:
  static std::string Text(const std::string& path) {
    std::stringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  }
  const std::string output_, errors_;
  pid_t pid_ = 0;
};

TEST(Daemon, KilledAtAnyInstantLosesAndDoublesNoAcceptedJob) {
  const TemporaryFolder folder;
  const std::string address = "unix:" + folder.path() + "/run/c.sock";
  absl::Mutex mutex;
  std::map<std::string, std::string> accepted;  // request id to job
  std::atomic<bool> done = false;
  std::vector<std::thread> submitters;
  for (int s = 0; s < 4; ++s) {
    submitters.emplace_back([&, s] {
      auto client = std::make_unique<Client>(address);
      for (int number = 0; !done; ++number) {
        const std::string request = absl::StrCat("s", s, "-", number);
        SubmitReply reply;
        // Again with the same request id, until there is an answer.
        while (!done && !client->Submit(request, SmallSpec(absl::StrCat("job", s)), &reply).ok()) {
          absl::SleepFor(absl::Milliseconds(10));
          client = std::make_unique<Client>(address);  // a new connection has no back-off
        }
        if (done) return;
        absl::MutexLock lock(&mutex);
        EXPECT_TRUE(accepted.emplace(request, reply.job().id()).second);
      }
    });
  }
  std::mt19937 random(20);
  size_t before = 0;
  for (int round = 0; round < 15; ++round) {
    Daemon daemon(folder.path());
    ASSERT_TRUE(daemon.WaitUntilServing()) << daemon.Errors();
    // At least one more is accepted in each life, and then at a random instant of the load.
    ASSERT_TRUE(Eventually([&] {
      absl::MutexLock lock(&mutex);
      return accepted.size() > before;
    }));
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 60'000));
    daemon.Signal(SIGKILL);
    daemon.Wait();
    absl::MutexLock lock(&mutex);
    before = accepted.size();
  }
  Daemon daemon(folder.path());
  ASSERT_TRUE(daemon.WaitUntilServing()) << daemon.Errors();
  done = true;
  for (std::thread& submitter : submitters) submitter.join();

  Client client(address);
  ListJobsRequest all;
  all.set_all(true);
  all.set_limit(1'000'000);
  ListJobsReply list;
  ASSERT_TRUE(client.jobs().List(client.Context().get(), all, &list).ok());
  std::map<std::string, std::string> stored;
  std::set<uint64_t> sequences;
  for (const JobSummary& summary : list.jobs()) {
    EXPECT_TRUE(stored.emplace(summary.job().request_id(), summary.job().id()).second) << "twice";
    EXPECT_TRUE(sequences.insert(summary.job().sequence()).second);
  }
  ASSERT_GE(accepted.size(), 15u);
  for (const auto& [request, job] : accepted) EXPECT_EQ(stored[request], job) << request;
  EXPECT_LE(stored.size(), accepted.size() + submitters.size());  // one each may have been accepted without an answer
  std::vector<WatchItem> items;
  WatchRequest request;
  ASSERT_TRUE(client.Watch(request, &items).ok());
  std::set<std::string> cursors;
  std::map<std::string, int> submitted;
  for (const WatchItem& item : items) {
    EXPECT_TRUE(cursors.insert(item.cursor()).second);
    submitted[item.job()] += item.event().kind() == "job.queued";
  }
  for (const auto& [request_id, job] : stored) EXPECT_EQ(submitted[job], 1) << job;
}

TEST(Daemon, SigtermEndsItInOrderWhileStreamsAreOpen) {
  const TemporaryFolder folder;
  Daemon daemon(folder.path());
  ASSERT_TRUE(daemon.WaitUntilServing()) << daemon.Errors();
  EXPECT_EQ(daemon.Output(), absl::StrCat("listening on unix:", folder.path(), "/run/c.sock\n"));
  Client client("unix:" + folder.path() + "/run/c.sock");
  client.MustSubmit("a");
  std::atomic<bool> reading = false;
  grpc::Status status;
  std::thread watcher([&] {
    WatchRequest request;
    request.set_follow(true);
    std::vector<WatchItem> items;
    status = client.Watch(request, &items, [&](const auto&) {
      reading = true;
      return false;
    });
  });
  ASSERT_TRUE(Eventually([&] { return reading.load(); }));
  const absl::Time begin = absl::Now();
  daemon.Signal(SIGTERM);
  const int ended = daemon.Wait();
  EXPECT_TRUE(WIFEXITED(ended) && WEXITSTATUS(ended) == 0) << ended << daemon.Errors();
  EXPECT_LT(absl::Now() - begin, absl::Seconds(5));
  watcher.join();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE) << status.error_message();
  EXPECT_TRUE(absl::StrContains(status.error_message(), "shutting down")) << status.error_message();
  EXPECT_FALSE(std::filesystem::exists(folder.path() + "/run/c.sock"));
}

TEST(Daemon, SecondOneIsRefusedNamingTheFirst) {
  const TemporaryFolder folder;
  Daemon daemon(folder.path());
  ASSERT_TRUE(daemon.WaitUntilServing()) << daemon.Errors();
  std::filesystem::create_directory(folder.path() + "/second");
  std::filesystem::create_directory_symlink(folder.path() + "/state", folder.path() + "/second/state");
  Daemon second(folder.path() + "/second");
  const int ended = second.Wait();
  EXPECT_TRUE(WIFEXITED(ended) && WEXITSTATUS(ended) == 1) << ended;
  EXPECT_TRUE(absl::StrContains(second.Errors(), absl::StrCat("process ", daemon.pid(), ")"))) << second.Errors();
  EXPECT_TRUE(absl::StrContains(second.Errors(), folder.path() + "/second/state")) << second.Errors();
  Client client("unix:" + folder.path() + "/run/c.sock");
  EXPECT_FALSE(client.MustSubmit("still-served").empty());
}

// The store cannot grow: the daemon ends loudly, and what it had accepted is there when there is room again.
TEST(Daemon, FailedCommitEndsTheProcessAndLosesNothing) {
  const TemporaryFolder folder;
  std::vector<std::string> accepted;
  {
    Daemon daemon(folder.path());
    ASSERT_TRUE(daemon.WaitUntilServing()) << daemon.Errors();
    const rlimit small{96 * 1024, 96 * 1024};
    ASSERT_EQ(prlimit(daemon.pid(), RLIMIT_FSIZE, &small, nullptr), 0);
    Client client("unix:" + folder.path() + "/run/c.sock");
    SubmitReply reply;
    for (int i = 0; i < 2000 && client.Submit(absl::StrCat("r", i), SmallSpec("a"), &reply).ok(); ++i) {
      accepted.push_back(reply.job().id());
    }
    const int ended = daemon.Wait();
    EXPECT_TRUE(WIFSIGNALED(ended) && WTERMSIG(ended) == SIGABRT) << ended;
    EXPECT_TRUE(absl::StrContains(daemon.Errors(), "the commit failed")) << daemon.Errors();
  }
  EXPECT_GT(accepted.size(), 5u);
  Daemon daemon(folder.path());
  ASSERT_TRUE(daemon.WaitUntilServing()) << daemon.Errors();
  Client client("unix:" + folder.path() + "/run/c.sock");
  for (const std::string& job : accepted) EXPECT_EQ(client.StateOf(job), JOB_STATE_QUEUED) << job;
}

TEST(Daemon, SilentReadersCostBoundedMemoryAndDelayNobody) {
  const TemporaryFolder folder;
  const std::string address = "unix:" + folder.path() + "/run/c.sock";
  Daemon daemon(folder.path());
  ASSERT_TRUE(daemon.WaitUntilServing()) << daemon.Errors();
  Client client(address);
  const std::string job = client.MustSubmit("a");
  FakeWorker worker(address, "n1", "i1");
  RankKey key;
  ASSERT_TRUE(worker.WaitForRun(&key));
  worker.SendRecords(key, {RunningRecord(1)});
  uint64_t sequence = 1, offset = 0;
  for (int i = 0; i < 20; ++i) {
    std::vector<Record> records;
    for (int k = 0; k < 500; ++k, ++sequence) records.push_back(MetricRecord(sequence + 1, sequence, 1));
    worker.SendRecords(key, records);
    worker.SendLog(key, offset, std::string(50'000, 'x'));
    offset += 50'000;
  }
  ASSERT_TRUE(worker.WaitForRecordsAck(sequence));
  const auto resident = [&] {
    size_t pages = 0, resident = 0;
    std::ifstream(absl::StrCat("/proc/", daemon.pid(), "/statm")) >> pages >> resident;
    return resident * static_cast<size_t>(sysconf(_SC_PAGESIZE));
  };
  const size_t before = resident();
  std::vector<std::pair<std::unique_ptr<grpc::ClientContext>, std::unique_ptr<grpc::ClientReader<WatchItem>>>> readers;
  for (int i = 0; i < 100; ++i) {
    WatchRequest request;
    request.set_follow(true);
    auto context = client.Context();
    auto stream = client.jobs().Watch(context.get(), request);
    readers.emplace_back(std::move(context), std::move(stream));
    WatchItem item;
    ASSERT_TRUE(readers.back().second->Read(&item));  // it is there, and reads no more
  }
  for (int i = 0; i < 50; ++i) client.MustSubmit(absl::StrCat("busy", i));
  const size_t after = resident();
  std::printf("100 silent readers cost %zu KiB\n", (after - std::min(before, after)) >> 10);
  EXPECT_LT(after, before + (size_t{64} << 20));
  for (auto& [context, stream] : readers) {
    context->TryCancel();
    stream->Finish();
  }
}

TEST(Daemon, BadFlagsAreExplained) {
  const TemporaryFolder folder;
  for (const auto& [flag, value, message] :
       {std::tuple("--detection", "soon", "duration"), std::tuple("--orphan_grace", "5s", "longer than detection"),
        std::tuple("--listen", "0.0.0.0:1", "TLS"), std::tuple("--token_file", "/no/such/file", "/no/such/file"),
        std::tuple("--log_level", "loud", "log_level")}) {
    Daemon daemon(folder.path(), {flag, value});
    const int ended = daemon.Wait();
    EXPECT_TRUE(WIFEXITED(ended) && WEXITSTATUS(ended) != 0) << flag;
    EXPECT_TRUE(absl::StrContains(daemon.Errors(), message)) << daemon.Errors();
  }
}

}  // namespace
}  // namespace muster::server
