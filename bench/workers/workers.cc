// What many workers and many readers cost the coordinator, against the limits of docs/internals/reliability.md:
//
//     bazel run //bench/workers
//
//   register    --workers workers connect to a coordinator that has --jobs jobs
//   steady      each rank reports a step every second while a job waits in the queue: the coordinator's share of a core
//   reconnect   the coordinator is killed and restarted: all workers call at once, and none counts as lost
//   planning    the largest plans that a spec may ask for, and one that fits nothing: latency of Jobs.Get meanwhile
//   readers     watches that never read: memory, and the latency of a submission meanwhile
//   crowd       submits beside ranks that work, then also beside idle connections, then also beside hostile ones; for
//               each phase also who used the cores, since the load is made on the machine that is measured
//
// Prints one line for each and exits with 1 if one exceeds its limit. The herd is a separate process (this program
// again).
#include <arpa/inet.h>
#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "bench/workers/coordinator.h"
#include "bench/workers/herd.h"
#include "common/rpc/rpc.h"
#include "common/timeouts.h"
#include "common/version.h"
#include "proto/jobs_service.grpc.pb.h"
#include "testing/wait.h"

namespace muster::bench {
namespace {

struct Flags {
  int workers = 5000;
  int jobs = 1000;
  int readers = 100;
  int submissions = 500;
  std::string folder = "/tmp";  // where the store's folder is made
  std::string coordinator = "coordinator/muster-coordinator";
  std::string detection = "10s";  // from which the coordinator derives its other time-outs
  double register_seconds = 15;
  double steady_cores = 1;
  double serve_seconds = 3;
  double reconnect_seconds = 10;
  double readers_mib = 64;
  double submit_ms = 50;
  double get_ms = 100;
  double plan_seconds = 5;
  double plan_mib = 256;
  bool medians = false;  // limit these instead of the slowest calls
  bool only_planning = false;
  int idle = 10'000, hostile = 2'000;  // connections
  int port = 0;                        // where the coordinator listens for the hostile ones
  double crowd_submit_ms = 100;
  bool only_crowd = false;
  int load_nice = 0;     // of the herd and the crowd
  std::string herd_of;   // address; if set, this process is the herd
  std::string crowd_of;  // likewise, the crowd
};

constexpr absl::Duration kSteady = absl::Seconds(10);

bool failed = false;

void Report(const std::string& what, double value, const char* unit, double limit) {
  const bool over = value > limit;
  failed |= over;
  std::printf("%s: %.3g %s (limit %.3g %s)%s\n", what.c_str(), value, unit, limit, unit, over ? "  OVER" : "");
  std::fflush(stdout);
}

// `took`: milliseconds, sorted. What a pause of the machine moves is only printed if the medians are limited.
void ReportCalls(const Flags& flags, const std::string& what, const std::vector<double>& took, double percentile,
                 double limit) {
  const double median = took[took.size() / 2];
  const double slow =
      took[std::min(took.size() - 1, static_cast<size_t>(static_cast<double>(took.size()) * percentile))];
  const std::string name = percentile < 1 ? absl::StrCat("p", percentile * 100) : "slowest";
  std::printf("%s: %zu calls, median %.3g ms, %s %.3g ms\n", what.c_str(), took.size(), median, name.c_str(), slow);
  Report(absl::StrCat(what, ", ", flags.medians ? "median" : name), flags.medians ? median : slow, "ms", limit);
}

[[noreturn]] void Die(const std::string& why) {
  std::fprintf(stderr, "workers: %s\n", why.c_str());
  exit(1);
}

// The herd process: prints "contact" each time that all are connected, and ends with its standard input.
int BeTheHerd(const Flags& flags) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
  }
  Herd herd(flags.herd_of, flags.workers);
  bool all = false;
  pollfd input{0, POLLIN, 0};
  while (poll(&input, 1, 10) == 0) {
    const bool now = herd.in_contact() >= flags.workers;
    if (now != all) std::printf(now ? "contact\n" : "lost\n");
    std::fflush(stdout);
    all = now;
  }
  _exit(0);  // skips closing thousands of streams
}

// A connection; -1: it was refused.
template <typename Address>
int Connected(const Address& to, int family) {
  const int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) Die(absl::StrCat("socket: ", std::strerror(errno)));
  if (connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0) return fd;
  close(fd);
  return -1;
}

sockaddr_un SocketAt(const std::string& address) {
  sockaddr_un to{};
  to.sun_family = AF_UNIX;
  std::strncpy(to.sun_path, address.substr(std::string("unix:").size()).c_str(), sizeof to.sun_path - 1);
  return to;
}

sockaddr_in LoopbackAt(int port) {
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(port));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return to;
}

int FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in at = LoopbackAt(0);
  socklen_t length = sizeof at;
  if (bind(fd, reinterpret_cast<sockaddr*>(&at), length) != 0) Die("no free port");
  getsockname(fd, reinterpret_cast<sockaddr*>(&at), &length);
  close(fd);
  return ntohs(at.sin_port);
}

// The crowd process: idle connections of this user to the Unix socket, which speak HTTP/2 and ask nothing, and hostile
// ones over TCP without a token, of which each in turn says nothing, sends what is no HTTP/2, begins a message of 8 MiB
// and stops, or opens a thousand streams; those that are closed come again, once a second. Prints "contact" when all
// have been there.
int BeTheCrowd(const Flags& flags) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
  }
  const std::string hello("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", 33);
  // HEADERS of stream 1 with END_HEADERS: POST, http, the path of Submit as a literal, te: trailers, application/grpc.
  const std::string path = "/muster.v1.Jobs/Submit";
  std::string headers("\x83\x86\x04", 3);
  headers += static_cast<char>(path.size());
  headers += path;
  headers += std::string("\x0f\x10\x10", 3) + "application/grpc";
  const auto frame = [](char type, char flag, uint32_t stream, const std::string& body) {
    std::string bytes;
    for (const int shift : {16, 8, 0}) bytes += static_cast<char>(body.size() >> shift);
    bytes += type, bytes += flag;
    for (const int shift : {24, 16, 8, 0}) bytes += static_cast<char>(stream >> shift);
    return bytes + body;
  };
  const std::string half =
      hello + frame(1, 4, 1, headers) + frame(0, 0, 1, std::string("\0\0\x80\0\0", 5) + std::string(10'000, 'x'));
  std::string streams = hello;
  for (uint32_t stream = 1; stream < 2'000; stream += 2) streams += frame(1, 4, stream, headers);
  const std::string attacks[] = {"", "GET / HTTP/1.1\r\n\r\n", half, streams};
  std::vector<int> idle;
  for (int i = 0; i < flags.idle; ++i) {
    const int fd = Connected(SocketAt(flags.crowd_of), AF_UNIX);
    if (fd < 0 || send(fd, hello.data(), hello.size(), MSG_NOSIGNAL) < 0) Die("an idle connection was refused");
    idle.push_back(fd);
  }
  std::vector<int> hostile(static_cast<size_t>(flags.hostile), -1);
  bool all = false;
  pollfd input{0, POLLIN, 0};
  do {
    for (size_t i = 0; i < hostile.size(); ++i) {
      char bytes[4096];
      int& fd = hostile[i];
      if (fd >= 0) {
        ssize_t n = 0;
        while ((n = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT)) > 0) {
        }
        if (n < 0 && errno == EAGAIN) continue;
        close(fd);
      }
      fd = Connected(LoopbackAt(flags.port), AF_INET);
      const std::string& attack = attacks[i % std::size(attacks)];
      if (fd >= 0 && send(fd, attack.data(), attack.size(), MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
        close(std::exchange(fd, -1));
    }
    if (!std::exchange(all, true)) std::printf("contact\n");
    std::fflush(stdout);
  } while (poll(&input, 1, 1000) == 0);
  _exit(0);
}

class HerdProcess {
 public:
  // `role`: --be-herd-of or --be-crowd-of.
  HerdProcess(const Flags& flags, const std::string& address, const std::string& role = "--be-herd-of") {
    int in[2], out[2];
    if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0) Die("no pipe");
    std::string program = std::filesystem::read_symlink("/proc/self/exe");
    std::vector<std::string> words = {program,
                                      role,
                                      address,
                                      "--workers",
                                      absl::StrCat(flags.workers),
                                      "--idle",
                                      absl::StrCat(flags.idle),
                                      "--hostile",
                                      absl::StrCat(flags.hostile),
                                      "--port",
                                      absl::StrCat(flags.port)};
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_adddup2(&files, in[0], 0);
    posix_spawn_file_actions_adddup2(&files, out[1], 1);
    if (posix_spawn(&pid_, program.c_str(), &files, nullptr, argv.data(), environ) != 0) Die("cannot start the herd");
    posix_spawn_file_actions_destroy(&files);
    if (flags.load_nice != 0) setpriority(PRIO_PROCESS, static_cast<id_t>(pid_), flags.load_nice);
    close(in[0]);
    close(out[1]);
    input_ = in[1];
    output_ = fdopen(out[0], "r");
  }
  ~HerdProcess() {
    close(input_);
    waitpid(pid_, nullptr, 0);
    fclose(output_);
  }

  pid_t pid() const { return pid_; }

  // The herd's next line; dies if none comes.
  void MustSay(const std::string& expected) {
    char line[64] = "";
    pollfd readable{fileno(output_), POLLIN, 0};
    if (poll(&readable, 1, 180'000) != 1 || fgets(line, sizeof(line), output_) == nullptr || line != expected + "\n") {
      Die(absl::StrCat("the herd says \"", line, "\", not \"", expected, "\""));
    }
  }

 private:
  pid_t pid_ = -1;
  int input_ = -1;
  FILE* output_ = nullptr;
};

std::unique_ptr<grpc::ClientContext> Context(bool with_deadline = true) {
  auto context = std::make_unique<grpc::ClientContext>();
  rpc::AddCallMetadata("", *context);
  context->set_wait_for_ready(true);
  if (with_deadline) context->set_deadline(absl::ToChronoTime(absl::Now() + absl::Minutes(1)));
  return context;
}

class Service {
 public:
  explicit Service(const std::string& address)
      : channel_(rpc::Dial(address)), jobs_(Jobs::NewStub(channel_)), nodes_(Nodes::NewStub(channel_)) {}

  Jobs::Stub& jobs() { return *jobs_; }

  // Returns the job's id.
  std::string Submit(const std::string& request_id, Device device = DEVICE_CPU) {
    SubmitRequest request;
    request.set_request_id(request_id);
    JobSpec& spec = *request.mutable_spec();
    spec.set_api_version("muster/v1");
    spec.set_kind("Job");
    spec.set_name("small");
    spec.mutable_train()->mutable_model()->mutable_gpt2()->set_size(GPT2_SIZE_TINY);
    spec.mutable_train()->mutable_data()->set_tokens("/train.bin");
    spec.mutable_train()->set_steps(1'000'000);
    spec.mutable_resources()->set_device(device);
    SubmitReply reply;
    const grpc::Status status = jobs_->Submit(Context().get(), request, &reply);
    if (!status.ok()) Die("submit: " + status.error_message());
    return reply.job().id();
  }
  void Cancel(const std::string& job) {
    CancelRequest request;
    request.set_job(job);
    CancelReply reply;
    if (const auto status = jobs_->Cancel(Context().get(), request, &reply); !status.ok()) Die(status.error_message());
  }
  // The number of jobs of that kind.
  int Count(const std::function<bool(const Job&)>& kind) {
    ListJobsRequest request;
    request.set_all(true);
    request.set_limit(1'000'000);
    int count = 0;
    do {
      ListJobsReply reply;
      if (const auto status = jobs_->List(Context().get(), request, &reply); !status.ok()) Die(status.error_message());
      for (const JobSummary& summary : reply.jobs()) count += kind(summary.job());
      request.set_page(reply.next_page());
    } while (!request.page().empty());
    return count;
  }
  int CountNodes(NodeState state) {
    ListNodesReply reply;
    if (const auto status = nodes_->List(Context().get(), {}, &reply); !status.ok()) Die(status.error_message());
    int count = 0;
    for (const Node& node : reply.nodes()) count += node.state() == state;
    return count;
  }
  // Of all jobs and nodes, since the store was made.
  int CountEvents(const std::string& kind) {
    WatchRequest request;
    request.set_events(true);
    const auto context = Context();
    const auto stream = jobs_->Watch(context.get(), request);
    int count = 0;
    for (WatchItem item; stream->Read(&item);) count += item.event().kind() == kind;
    if (const auto status = stream->Finish(); !status.ok()) Die("watch: " + status.error_message());
    return count;
  }

 private:
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<Jobs::Stub> jobs_;
  const std::unique_ptr<Nodes::Stub> nodes_;
};

void SubmitMany(const std::string& address, const std::string& name, int count) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      Service service(address);
      for (int i = t; i < count; i += 8) service.Submit(absl::StrCat(name, "-", i));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

bool RunsInItsFirstGeneration(const Job& job) { return job.state() == JOB_STATE_RUNNING && job.generation() == 1; }

// A pause of the machine may make a worker count as away for a while, but not as lost.
void ReportLost(Service& service, int workers, int jobs) {
  Eventually(
      [&] { return service.CountNodes(NODE_STATE_LIVE) == workers && service.Count(RunsInItsFirstGeneration) == jobs; },
      absl::Minutes(1), absl::Milliseconds(200));
  Report("jobs that do not run as before", jobs - service.Count(RunsInItsFirstGeneration), "", 0);
  Report("workers that are not connected", workers - service.CountNodes(NODE_STATE_LIVE), "", 0);
  Report("times that a worker counted as lost", service.CountEvents("node.lost"), "", 0);
}

void MeasureHerd(const Flags& flags, Coordinator& coordinator) {
  SubmitMany(coordinator.address(), "herd", flags.jobs);
  Service service(coordinator.address());
  absl::Time begin = absl::Now();
  HerdProcess herd(flags, coordinator.address());
  herd.MustSay("contact");
  Report(absl::StrCat(flags.workers, " workers registered, ", flags.jobs, " jobs in the store"),
         absl::ToDoubleSeconds(absl::Now() - begin), "s", flags.register_seconds);
  const int expected = std::min(flags.jobs, flags.workers);
  if (!Eventually([&] { return service.Count(RunsInItsFirstGeneration) == expected; }, absl::Minutes(2),
                  absl::Milliseconds(200))) {
    Die(absl::StrCat("only ", service.Count(RunsInItsFirstGeneration), " jobs run"));
  }
  std::printf("coordinator: %zu MiB\n", coordinator.ResidentBytes() >> 20);

  service.Submit("waits", DEVICE_CUDA);  // no node has one
  const absl::Duration used = coordinator.CpuTime();
  begin = absl::Now();
  absl::SleepFor(kSteady);  // the interval that is measured
  const absl::Duration wall = absl::Now() - begin;
  Report(absl::StrCat("beside ", expected, " ranks that report their steps, and a waiting job"),
         absl::FDivDuration(coordinator.CpuTime() - used, wall), "cores", flags.steady_cores);

  coordinator.Kill();
  herd.MustSay("lost");
  begin = absl::Now();
  if (!coordinator.Start()) Die("the coordinator did not restart");
  Report("serving again after SIGKILL", absl::ToDoubleSeconds(absl::Now() - begin), "s", flags.serve_seconds);
  begin = absl::Now();
  herd.MustSay("contact");
  Report("all workers are back", absl::ToDoubleSeconds(absl::Now() - begin), "s", flags.reconnect_seconds);
  Service again(coordinator.address());  // the old connection may not know yet that it is broken
  // A worker that the new coordinator does not recognize is lost after the startup grace.
  absl::Duration detection;
  if (!absl::ParseDuration(flags.detection, &detection)) Die("--detection is no duration");
  Eventually([&] { return again.CountNodes(NODE_STATE_LOST) > 0; }, Derive(detection).startup_grace + absl::Seconds(2),
             absl::Milliseconds(200));
  ReportLost(again, flags.workers, expected);
}

// Milliseconds of each submit, sorted. Prints the cores that the coordinator, the herd and the crowd used meanwhile.
std::vector<double> SubmitBeside(const std::string& what, const Flags& flags, Service& service,
                                 const Coordinator& coordinator, const HerdProcess& herd, const HerdProcess* crowd) {
  const auto used = [&] {
    return std::array{coordinator.CpuTime(), CpuTimeOf(herd.pid()),
                      crowd == nullptr ? absl::ZeroDuration() : CpuTimeOf(crowd->pid())};
  };
  const auto before = used();
  const absl::Time began = absl::Now();
  std::vector<double> took;
  std::vector<std::string> jobs;
  for (int i = 0; i < flags.submissions; ++i) {
    const absl::Time begin = absl::Now();
    jobs.push_back(service.Submit(absl::StrCat("beside ", what, " ", i)));
    took.push_back(absl::ToDoubleMilliseconds(absl::Now() - begin));
    absl::SleepFor(absl::Milliseconds(10));
  }
  const absl::Duration wall = absl::Now() - began;
  const auto after = used();
  std::sort(took.begin(), took.end());
  std::printf(
      "submit beside %s: median %.3g, p99 %.3g, most %.3g ms in %.0f s; cores: coordinator %.2f, ranks %.2f, "
      "crowd %.2f\n",
      what.c_str(), took[took.size() / 2], took[took.size() * 99 / 100], took.back(), absl::ToDoubleSeconds(wall),
      absl::FDivDuration(after[0] - before[0], wall), absl::FDivDuration(after[1] - before[1], wall),
      absl::FDivDuration(after[2] - before[2], wall));
  std::fflush(stdout);
  for (const std::string& job : jobs) service.Cancel(job);  // each phase begins with an empty queue
  return took;
}

// Submits beside idle and hostile connections, while ranks work.
void MeasureCrowd(const Flags& flags, Coordinator& coordinator) {
  Flags thousand = flags;
  thousand.workers = std::min(flags.workers, 1'000);
  HerdProcess herd(thousand, coordinator.address());
  herd.MustSay("contact");
  SubmitMany(coordinator.address(), "work", thousand.workers);
  Service service(coordinator.address());
  if (!Eventually([&] { return service.Count(RunsInItsFirstGeneration) == thousand.workers; }, absl::Minutes(2),
                  absl::Milliseconds(200))) {
    Die(absl::StrCat("only ", service.Count(RunsInItsFirstGeneration), " jobs run"));
  }
  std::printf("%d ranks, %d idle and %d hostile connections\n", thousand.workers, flags.idle, flags.hostile);
  SubmitBeside("ranks", flags, service, coordinator, herd, nullptr);
  const size_t before = coordinator.ResidentBytes();
  thousand.hostile = 0;
  {
    HerdProcess idle(thousand, coordinator.address(), "--be-crowd-of");
    idle.MustSay("contact");
    SubmitBeside("ranks and idle connections", flags, service, coordinator, herd, &idle);
  }
  thousand.hostile = flags.hostile;
  HerdProcess crowd(thousand, coordinator.address(), "--be-crowd-of");
  crowd.MustSay("contact");
  const std::vector<double> took = SubmitBeside("all", flags, service, coordinator, herd, &crowd);
  std::printf("memory of the coordinator: %zu MiB more than before the crowd\n",
              (coordinator.ResidentBytes() - std::min(before, coordinator.ResidentBytes())) >> 20);
  ReportCalls(flags, "submit beside all", took, 0.99, flags.crowd_submit_ms);
  ReportLost(service, thousand.workers, thousand.workers);
}

void MeasureReaders(const Flags& flags, Coordinator& coordinator) {
  Service service(coordinator.address());
  // So that each reader has more pending than a connection buffers.
  SubmitMany(coordinator.address(), "history", flags.jobs);
  const size_t before = coordinator.ResidentBytes();
  std::vector<std::pair<std::unique_ptr<grpc::ClientContext>, std::unique_ptr<grpc::ClientReader<WatchItem>>>> readers;
  for (int i = 0; i < flags.readers; ++i) {
    WatchRequest request;
    request.set_follow(true);
    auto context = Context(false);
    auto stream = service.jobs().Watch(context.get(), request);
    WatchItem item;
    if (!stream->Read(&item)) Die("a watch has nothing to read");
    readers.emplace_back(std::move(context), std::move(stream));
  }
  std::vector<double> took;
  for (int i = 0; i < flags.submissions; ++i) {
    const absl::Time begin = absl::Now();
    service.Submit(absl::StrCat("beside-", i));
    took.push_back(absl::ToDoubleMilliseconds(absl::Now() - begin));
  }
  std::sort(took.begin(), took.end());
  const size_t after = coordinator.ResidentBytes();
  Report(absl::StrCat(flags.readers, " readers that never read, memory"),
         static_cast<double>(after - std::min(before, after)) / (1 << 20), "MiB", flags.readers_mib);
  ReportCalls(flags, "submit beside them", took, 0.99, flags.submit_ms);
  for (auto& [context, stream] : readers) {
    context->TryCancel();
    stream->Finish();
  }
}

// 64 ranks x 1,000 layers x 200 microbatches; 4,096 layers; and 2^20 sequences, of which no slot holds a microbatch.
std::vector<JobSpec> LargePlans() {
  std::vector<JobSpec> specs;
  const auto add = [&](Gpt2Size size, uint32_t ranks, uint32_t layers, uint32_t sequences, uint32_t microbatch) {
    JobSpec& spec = specs.emplace_back();
    spec.set_api_version("muster/v1");
    spec.set_kind("Job");
    spec.set_name("large");
    spec.mutable_resources()->set_ranks(ranks);
    Train& train = *spec.mutable_train();
    train.mutable_model()->mutable_gpt2()->set_size(size);
    if (layers > 0) train.mutable_model()->mutable_gpt2()->set_layers(layers);
    train.mutable_data()->set_tokens("/train.bin");
    train.set_steps(1);
    train.mutable_batch()->set_sequences(sequences);
    if (microbatch > 0) train.mutable_batch()->set_microbatch(microbatch);
    train.mutable_strategy()->mutable_auto_();
    train.mutable_parallel()->set_pipeline(1);  // of strategies alone
  };
  add(GPT2_SIZE_TINY, 64, 1000, 64 * 200, 1);
  add(GPT2_SIZE_TINY, 64, 4096, 64 * 61, 1);
  add(GPT2_SIZE_XL, 1, 0, 1 << 20, 0);
  return specs;
}

void MeasurePlanning(const Flags& flags, Coordinator& coordinator) {
  Service service(coordinator.address());
  service.Submit("looked-at");
  ListJobsReply jobs;
  if (const auto status = service.jobs().List(Context().get(), {}, &jobs); !status.ok()) Die(status.error_message());
  GetJobRequest request;
  request.set_job(jobs.jobs(0).job().id());
  const size_t before = coordinator.ResidentBytes();
  std::atomic<bool> over = false;
  std::thread planner([&] {
    Service other(coordinator.address());
    for (const JobSpec& spec : LargePlans()) {
      PlanRequest plan;
      *plan.mutable_spec() = spec;
      plan.set_memory_bytes(1);
      PlanReply reply;
      const absl::Time begin = absl::Now();
      if (const auto status = other.jobs().Plan(Context(false).get(), plan, &reply); !status.ok()) {
        Die("plan: " + status.error_message());
      }
      Report(absl::StrCat("a plan of ", spec.resources().ranks(), " ranks, ", reply.microbatches(), " microbatches"),
             absl::ToDoubleSeconds(absl::Now() - begin), "s", flags.plan_seconds);
    }
    over = true;
  });
  std::vector<double> took;
  size_t most = before;
  while (!over) {
    const absl::Time begin = absl::Now();
    GetJobReply reply;
    if (const auto status = service.jobs().Get(Context().get(), request, &reply); !status.ok()) {
      Die("get: " + status.error_message());
    }
    took.push_back(absl::ToDoubleMilliseconds(absl::Now() - begin));
    most = std::max(most, coordinator.ResidentBytes());
    absl::SleepFor(absl::Milliseconds(1));  // else the calls themselves are the load
  }
  planner.join();
  std::sort(took.begin(), took.end());
  ReportCalls(flags, "get beside them", took, 1, flags.get_ms);
  Report("planning, memory", static_cast<double>(most - before) / (1 << 20), "MiB", flags.plan_mib);
}

int Measure(Flags flags) {
  std::printf("%u cores\n", std::thread::hardware_concurrency());
  for (const auto& measure : {MeasurePlanning, MeasureHerd, MeasureReaders, MeasureCrowd}) {
    if (flags.only_crowd && measure != MeasureCrowd) continue;
    std::string folder = flags.folder + "/muster-bench-XXXXXX";
    if (mkdtemp(folder.data()) == nullptr) Die("cannot make a folder in " + flags.folder);
    const std::string tokens = folder + "/tokens";
    std::ofstream(tokens) << "0123456789abcdef ann admin\n";
    chmod(tokens.c_str(), 0600);
    flags.port = FreePort();
    {
      Coordinator coordinator(
          flags.coordinator, folder,
          {"--listen", absl::StrCat("127.0.0.1:", flags.port), "--token-file", tokens, "--tensorboard", "off",
           "--detection", flags.detection, "--max-submits-of-user", "0", "--max-queued-jobs-of-user", "0"});
      if (!coordinator.Start()) Die("no coordinator");
      measure(flags, coordinator);
    }
    std::error_code ignored;
    std::filesystem::remove_all(folder, ignored);
    if (flags.only_planning) break;
  }
  return failed ? 1 : 0;
}

}  // namespace
}  // namespace muster::bench

int main(int argc, char** argv) {
  CLI::App app("Measures the coordinator beside many workers and many readers.", "workers");
  muster::bench::Flags flags;
  app.add_option("--workers", flags.workers)->check(CLI::Range(1, 20'000))->capture_default_str();
  app.add_option("--jobs", flags.jobs)->check(CLI::Range(1, 20'000))->capture_default_str();
  app.add_option("--readers", flags.readers)->check(CLI::Range(1, 1'000))->capture_default_str();
  app.add_option("--submissions", flags.submissions)->check(CLI::Range(100, 100'000))->capture_default_str();
  app.add_option("--folder", flags.folder, "where the store is made")->capture_default_str();
  app.add_option("--detection", flags.detection, "of the coordinator")->capture_default_str();
  app.add_option("--register-seconds,--register_seconds", flags.register_seconds, "limit")->capture_default_str();
  app.add_option("--steady-cores,--steady_cores", flags.steady_cores, "limit")->capture_default_str();
  app.add_option("--serve-seconds", flags.serve_seconds, "limit, after a kill of the coordinator")
      ->capture_default_str();
  app.add_option("--reconnect-seconds,--reconnect_seconds", flags.reconnect_seconds, "limit")->capture_default_str();
  app.add_option("--readers-mib,--readers_mib", flags.readers_mib, "limit")->capture_default_str();
  app.add_option("--submit-ms,--submit_ms", flags.submit_ms, "limit")->capture_default_str();
  app.add_option("--get-ms,--get_ms", flags.get_ms, "limit, beside planning")->capture_default_str();
  app.add_option("--plan-seconds,--plan_seconds", flags.plan_seconds, "limit")->capture_default_str();
  app.add_option("--plan-mib,--plan_mib", flags.plan_mib, "limit")->capture_default_str();
  app.add_flag("--medians", flags.medians, "limit the median instead of the slowest calls: for a busy machine");
  app.add_option("--idle", flags.idle, "connections that ask nothing")->capture_default_str();
  app.add_option("--hostile", flags.hostile, "connections that send what they should not")->capture_default_str();
  app.add_option("--crowd-submit-ms,--crowd_submit_ms", flags.crowd_submit_ms, "limit, beside these")
      ->capture_default_str();
  app.add_option("--load-nice,--load_nice", flags.load_nice, "of the processes that make the load")
      ->capture_default_str();
  app.add_flag("--crowd", flags.only_crowd, "measure nothing else than beside these");
  app.add_flag("--planning", flags.only_planning, "measure nothing else");
  app.add_option("--coordinator", flags.coordinator, "program; the default is right below `bazel run`")
      ->capture_default_str();
  app.add_option("--be-herd-of", flags.herd_of)->group("");
  app.add_option("--be-crowd-of", flags.crowd_of)->group("");
  app.add_option("--port", flags.port)->group("");
  CLI11_PARSE(app, argc, argv);
  signal(SIGPIPE, SIG_IGN);
  if (!flags.crowd_of.empty()) return muster::bench::BeTheCrowd(flags);
  return flags.herd_of.empty() ? muster::bench::Measure(flags) : muster::bench::BeTheHerd(flags);
}
