// The real binary: kill -9 at any instant, SIGTERM, a second daemon, a full disk.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
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
#include "coordinator/daemon/testing.h"
#include "testing/fake_worker.h"
#include "testing/memory_folder.h"
#include "testing/temporary_folder.h"
#include "testing/wait.h"

extern char** environ;

namespace muster::server {
namespace {

std::string Binary() { return std::filesystem::absolute("coordinator/muster-coordinator").string(); }

// One muster-coordinator. Killed in the destructor if it still runs.
class Daemon {
 public:
  Daemon(const std::string& folder, std::vector<std::string> more = {})
      : output_(folder + "/stdout"), errors_(folder + "/stderr") {
    std::vector<std::string> words = {Binary(), "--state-dir", folder + "/state", "--listen",
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
  // Returns a status as waitpid does.
  int Wait() {
    int status = 0;
    const pid_t pid = std::exchange(pid_, 0);
    EXPECT_EQ(waitpid(pid, &status, 0), pid);
    return status;
  }
  bool Serves() const { return absl::StrContains(Text(output_), "listening on "); }
  bool WaitUntilServing() {
    return Eventually([&] { return Serves(); });
  }
  // The process can still be waited for.
  bool HasEnded() const {
    siginfo_t info{};
    return waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == pid_;
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

// Clients that submit jobs and repeat each request with the same id until they get a reply.
class SubmitLoad {
 public:
  explicit SubmitLoad(const std::string& address) : address_(address) {
    for (int s = 0; s < kSubmitters; ++s) submitters_.emplace_back([this, s] { Submit(s); });
  }
  ~SubmitLoad() { Stop(); }

  void Stop() {
    done_ = true;
    for (std::thread& submitter : submitters_) submitter.join();
    submitters_.clear();
  }
  size_t accepted() const {
    absl::MutexLock lock(&mutex_);
    return accepted_.size();
  }

  // After Stop: each accepted request is one job, with one sequence number and one event.
  void ExpectNoneLostOrDoubled(Client& client) const {
    ListJobsRequest all;
    all.set_all(true);
    all.set_limit(1'000'000);
    ListJobsReply list;
    ASSERT_TRUE(client.jobs().List(client.Context().get(), all, &list).ok());
    std::map<std::string, std::string> stored;
    std::set<uint64_t> sequences;
    for (const JobSummary& summary : list.jobs()) {
      EXPECT_TRUE(sequences.insert(summary.job().sequence()).second);
      if (!absl::StartsWith(summary.job().request_id(), "load-")) continue;
      EXPECT_TRUE(stored.emplace(summary.job().request_id(), summary.job().id()).second) << "twice";
    }
    absl::MutexLock lock(&mutex_);
    for (const auto& [request, job] : accepted_) EXPECT_EQ(stored[request], job) << request;
    EXPECT_LE(stored.size(), accepted_.size() + kSubmitters);  // one each may have been accepted without a reply
    std::vector<WatchItem> items;
    WatchRequest request;
    request.set_events(true);
    ASSERT_TRUE(client.Watch(request, &items).ok());
    std::set<std::string> cursors;
    std::map<std::string, int> submitted;
    for (const WatchItem& item : items) {
      EXPECT_TRUE(cursors.insert(item.cursor()).second);
      submitted[item.job()] += item.event().kind() == "job.queued";
    }
    for (const auto& [request_id, job] : stored) EXPECT_EQ(submitted[job], 1) << job;
  }

 private:
  static constexpr int kSubmitters = 4;

  void Submit(int submitter) {
    auto client = std::make_unique<Client>(address_);
    for (int number = 0; !done_; ++number) {
      const std::string request = absl::StrCat("load-", submitter, "-", number);
      SubmitReply reply;
      while (!done_ && !client->Submit(request, SmallSpec(absl::StrCat("job", submitter)), &reply).ok()) {
        absl::SleepFor(absl::Milliseconds(10));
        client = std::make_unique<Client>(address_);  // a new connection has no backoff
      }
      if (done_) return;
      {
        absl::MutexLock lock(&mutex_);
        EXPECT_TRUE(accepted_.emplace(request, reply.job().id()).second);
      }
      absl::SleepFor(absl::Milliseconds(10));  // keeps the queue short enough for a test
    }
  }

  const std::string address_;
  std::atomic<bool> done_ = false;
  mutable absl::Mutex mutex_;
  std::map<std::string, std::string> accepted_;  // request id to job
  std::vector<std::thread> submitters_;
};

// A node with one rank, which reports one step after the other while coordinators come and go.
class SteadyNode {
 public:
  explicit SteadyNode(const std::string& address) : address_(address) {}

  // To a coordinator that has just started to serve: the rank's state, and all records that may not be stored.
  void Connect() {
    worker_ = std::make_unique<FakeWorker>(address_, FakeWorker::Options{.node = "steady", .running = running_});
    if (running_.empty()) {
      RankKey key;
      if (!worker_->WaitForRun(&key)) return;
      running_ = {key};
      records_ = {RunningRecord(1)};
      worker_->SendObserved(key, RANK_STATE_RUNNING);
    }
    worker_->SendRecords(running_[0], records_);
  }
  void Disconnect() { worker_.reset(); }
  void ReportStep() {
    if (running_.empty()) return;
    const uint64_t sequence = records_.size() + 1;
    records_.push_back(MetricRecord(sequence, sequence - 1, 1));
    worker_->SendRecords(running_[0], {records_.back()});
  }
  // Every step is stored exactly once, in the first generation.
  void ExpectAllStored(Client& client) {
    ASSERT_FALSE(running_.empty());
    ASSERT_TRUE(worker_->WaitForRecordsAck(records_.size()));
    GetJobReply reply;
    ASSERT_TRUE(client.Get(running_[0].job(), &reply).ok());
    EXPECT_EQ(reply.job().state(), JOB_STATE_RUNNING);
    EXPECT_EQ(reply.job().generation(), 1u) << "its rank was restarted";
    WatchRequest request;
    request.set_job(running_[0].job());
    request.set_metrics(true);
    std::vector<WatchItem> items;
    ASSERT_TRUE(client.Watch(request, &items).ok());
    std::vector<uint64_t> steps, expected;
    for (const WatchItem& item : items) {
      EXPECT_FALSE(item.has_gap());
      if (item.has_metrics()) steps.push_back(item.metrics().step());
    }
    for (uint64_t step = 1; step < records_.size(); ++step) expected.push_back(step);
    EXPECT_EQ(steps, expected);
  }

 private:
  const std::string address_;
  std::unique_ptr<FakeWorker> worker_;
  std::vector<RankKey> running_;
  std::vector<Record> records_;
};

// The coordinator that is killed and restarted, and the clients and the node that continue meanwhile.
class Lives {
 public:
  Lives() : address_("unix:" + folder_.path() + "/run/c.sock"), load_(address_), node_(address_) {}

  // One run of the coordinator, ended by SIGKILL: at `failpoint` if given, else after `wait` under load.
  void Live(const std::string& failpoint, absl::Duration wait) {
    if (!failpoint.empty()) setenv("MUSTER_FAILPOINTS", failpoint.c_str(), 1);
    Daemon daemon(folder_.path());
    unsetenv("MUSTER_FAILPOINTS");
    const size_t before = load_.accepted();
    const absl::Time begin = absl::Now();
    const bool serves = Eventually([&] { return daemon.Serves() || daemon.HasEnded(); }) && daemon.Serves();
    if (serves) {
      starts_.push_back(absl::Now() - begin);
      node_.Connect();
    }
    const absl::Time end = absl::Now() + (failpoint.empty() ? wait : absl::Seconds(20));
    while (absl::Now() < end && !daemon.HasEnded()) {
      if (serves) node_.ReportStep();
      absl::SleepFor(absl::Milliseconds(5));  // the pace of the steps
    }
    if (failpoint.empty()) {
      ASSERT_TRUE(serves) << daemon.Errors();
      ASSERT_TRUE(Eventually([&] { return load_.accepted() > before; })) << "nothing was accepted in this life";
      daemon.Signal(SIGKILL);
    }
    const int status = daemon.Wait();
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << failpoint << " was not passed: " << status;
    node_.Disconnect();
  }

  void ExpectNothingLost() {
    Daemon daemon(folder_.path());
    ASSERT_TRUE(daemon.WaitUntilServing()) << daemon.Errors();
    node_.Connect();
    load_.Stop();
    Client client(address_);
    load_.ExpectNoneLostOrDoubled(client);
    node_.ExpectAllStored(client);
    // The median, since a single run may coincide with another test's build.
    std::sort(starts_.begin(), starts_.end());
    const absl::Duration median = starts_[starts_.size() / 2];
    std::printf("serving again: median %s, longest %s\n", absl::FormatDuration(median).c_str(),
                absl::FormatDuration(starts_.back()).c_str());
    EXPECT_LT(median, absl::Seconds(3));
  }

 private:
  const MemoryFolder folder_;
  const std::string address_;
  SubmitLoad load_;
  SteadyNode node_;
  std::vector<absl::Duration> starts_;
};

TEST(Daemon, KilledAtAnyInstantLosesAndDoublesNothing) {
  Lives lives;
  std::mt19937 random(20);
  for (int round = 0; round < 20; ++round) {
    lives.Live("", absl::Milliseconds(static_cast<int>(random() % 300)));
    if (testing::Test::HasFailure()) return;
  }
  lives.ExpectNothingLost();
}

// coordinator/store/failpoints_test covers the store alone, at every passing of each failpoint.
TEST(Daemon, KilledAtEveryFailpointLosesAndDoublesNothing) {
  Lives lives;
  std::mt19937 random(21);
  lives.Live("", absl::Milliseconds(100));  // creates the files
  for (const char* file : {"state", "history"}) {
    for (const char* point : {"create", "begin", "write", "sync", "commit", "committed", "journal.create",
                              "journal.write", "journal.sync"}) {
      const bool once = absl::EndsWith(point, "create");
      lives.Live(absl::StrCat("store.", file, ".", point, "=kill@", once ? 1 : 1 + random() % 20), {});
      if (testing::Test::HasFailure()) return;
    }
  }
  lives.ExpectNothingLost();
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
    const auto seen = [&](const auto&) {
      reading = true;
      return false;
    };
    status = client.Watch(request, &items, seen, absl::Minutes(10));
  });
  ASSERT_TRUE(Eventually([&] { return reading.load(); }));
  const absl::Time begin = absl::Now();
  daemon.Signal(SIGTERM);
  const int ended = daemon.Wait();
  EXPECT_TRUE(WIFEXITED(ended) && WEXITSTATUS(ended) == 0) << ended << daemon.Errors();
  EXPECT_LT(absl::Now() - begin, kTestPatience) << "not the ten minutes of the stream";
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

// The store cannot grow: the daemon ends with an error, and what it had accepted is there when there is space again.
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
    EXPECT_TRUE(absl::StrContains(daemon.Errors(), "action=\"the commit\"")) << daemon.Errors();
  }
  EXPECT_GT(accepted.size(), 5u);
  Daemon daemon(folder.path());
  ASSERT_TRUE(daemon.WaitUntilServing()) << daemon.Errors();
  Client client("unix:" + folder.path() + "/run/c.sock");
  for (const std::string& job : accepted) EXPECT_EQ(client.StateOf(job), JOB_STATE_QUEUED) << job;
}

// gRPC's own listener accepts nothing any more after this.
TEST(Daemon, ServesAgainAfterItWasOutOfDescriptors) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/run/c.sock";
  Daemon daemon(folder.path());
  ASSERT_TRUE(daemon.WaitUntilServing()) << daemon.Errors();
  Client early("unix:" + path);
  const std::string job = early.MustSubmit("early");
  const auto open_files = [&] {
    const std::filesystem::directory_iterator files(absl::StrCat("/proc/", daemon.pid(), "/fd")), end;
    return static_cast<rlim_t>(std::distance(begin(files), end));
  };
  const rlimit few{open_files() + 8, open_files() + 8};
  ASSERT_EQ(prlimit(daemon.pid(), RLIMIT_NOFILE, &few, nullptr), 0);
  std::vector<int> flood;
  sockaddr_un to{};
  to.sun_family = AF_UNIX;
  std::strncpy(to.sun_path, path.c_str(), sizeof to.sun_path - 1);
  for (int i = 0; i < 64; ++i) {
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ASSERT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to), 0) << i << std::strerror(errno);
    flood.push_back(fd);
  }
  ASSERT_TRUE(Eventually([&] { return absl::StrContains(daemon.Errors(), "out of file descriptors"); }));
  EXPECT_EQ(early.StateOf(job), JOB_STATE_QUEUED) << "who is in stays in";
  EXPECT_TRUE(Eventually([&] {
    return std::any_of(flood.begin(), flood.end(), [](int fd) {
      char bytes[64];
      return recv(fd, bytes, sizeof bytes, MSG_DONTWAIT | MSG_PEEK) == 0;
    });
  })) << "who is refused learns it, and does not wait for descriptors";
  for (const int fd : flood) close(fd);
  Client late("unix:" + path);
  GetJobReply reply;
  EXPECT_TRUE(Eventually([&] { return late.Get(job, &reply).ok(); }));
}

TEST(Daemon, SilentReadersCostBoundedMemoryAndDelayNoOtherCall) {
  const TemporaryFolder folder;
  const std::string address = "unix:" + folder.path() + "/run/c.sock";
  Daemon daemon(folder.path());
  ASSERT_TRUE(daemon.WaitUntilServing()) << daemon.Errors();
  Client client(address);
  const std::string job = client.MustSubmit("a");
  FakeWorker worker(address, {});
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
    ASSERT_TRUE(readers.back().second->Read(&item));  // connected; reads no more from here
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
       {std::tuple("--detection", "soon", "duration"), std::tuple("--orphan-grace", "5s", "longer than detection"),
        std::tuple("--listen", "0.0.0.0:1", "TLS"), std::tuple("--token-file", "/no/such/file", "/no/such/file"),
        std::tuple("--log-level", "loud", "--log-level: \"loud\" is not one of debug, "),
        std::tuple("--detection", "0s", "muster-coordinator: --detection: invalid duration \"0s\"")}) {
    Daemon daemon(folder.path(), {flag, value});
    const int ended = daemon.Wait();
    EXPECT_TRUE(WIFEXITED(ended) && WEXITSTATUS(ended) != 0) << flag;
    EXPECT_TRUE(absl::StrContains(daemon.Errors(), message)) << daemon.Errors();
    const bool usage = std::string(flag) == "--log-level" || std::string(value) == "0s";
    EXPECT_TRUE(!usage || WEXITSTATUS(ended) == 2) << flag << ": " << WEXITSTATUS(ended);
  }
}

}  // namespace
}  // namespace muster::server
