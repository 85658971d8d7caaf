#include "worker/exec/runner.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/clock.h"
#include "common/file_error.h"
#include "common/log/log.h"
#include "common/proto_time.h"
#include "common/utf8.h"
#include "common/version.h"
#include "worker/exec/activity.h"
#include "worker/exec/container.h"
#include "worker/exec/environment.h"
#include "worker/exec/event_watch.h"
#include "worker/exec/idle_watch.h"
#include "worker/exec/report_tail.h"
#include "worker/rundir/outbox.h"
#include "worker/rundir/process_table.h"
#include "worker/rundir/progress.h"
#include "worker/trainer/rendezvous.h"

namespace muster::exec {
namespace {

constexpr absl::Duration kLook = absl::Milliseconds(50);
constexpr absl::Duration kHeartbeat = absl::Milliseconds(250);
constexpr int kLastReads = 16;  // of what the program reported just before its end, a MiB each
constexpr size_t kMaxFailureBytes = 4096;
constexpr absl::Duration kLastEvents = absl::Seconds(10);  // for the folder of event files to answer
constexpr double kEventPointsPerSecond = 20, kMostEventPoints = 200;
constexpr int kNoContainer = 125;          // of podman and docker: the error is their own, not the program's
constexpr char kMaster[] = "exec/master";  // name in the rendezvous
constexpr auto kRelaxed = std::memory_order_relaxed;

// A port that no process listens on. Another may take it before the program does; then the program fails and the job
// restarts with another port, as under torchrun.
absl::StatusOr<uint16_t> FreePort() {
  for (const int family : {AF_INET6, AF_INET}) {
    const int descriptor = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (descriptor < 0) continue;
    sockaddr_storage address{};
    address.ss_family = static_cast<sa_family_t>(family);
    socklen_t length = family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
    const bool bound = bind(descriptor, reinterpret_cast<sockaddr*>(&address), length) == 0 &&
                       getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &length) == 0;
    close(descriptor);
    if (!bound) continue;
    return ntohs(family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&address)->sin6_port
                                    : reinterpret_cast<sockaddr_in*>(&address)->sin_port);
  }
  return absl::UnavailableError("no free port for MASTER_PORT");
}

uint32_t NumberIn(const std::vector<std::string>& environment, absl::string_view name, uint32_t otherwise) {
  for (absl::string_view entry : environment) {
    uint32_t number = 0;
    if (absl::ConsumePrefix(&entry, name) && absl::ConsumePrefix(&entry, "=") && absl::SimpleAtoi(entry, &number)) {
      return number;
    }
  }
  return otherwise;
}

class Runner {
 public:
  Runner(const RunOptions& options, Program program, const std::function<bool()>& terminated)
      : options_(options),
        program_(std::move(program)),
        terminated_(terminated),
        link_(options.link),
        tail_(options.rank_dir + "/report.jsonl") {}

  absl::StatusOr<Outcome> Run();

 private:
  bool WantsStop() const { return terminated_() || link_.Newest().stop.has_value(); }
  const Exec& exec() const { return assignment_.spec().exec(); }
  uint32_t rank() const { return options_.link.key.rank(); }

  absl::Status Begin();
  absl::Status Meet(Place& place);
  absl::Status StartProgram();
  Outcome Watch();
  void MakeStopFile();
  void CheckStop(Now now);
  void Beat(SteadyTime now);
  void TakeReports(Now now);
  void Take(Report report, Now now);
  void WatchEventFiles(const Program::Command& command);
  void TakeEvents(std::vector<MetricPoint> points, Now now);
  void LookForIdleness(Now now);
  absl::Status Append(Record record, bool durable);
  absl::Status Fail(const absl::Status& why, bool of_node);
  Outcome Conclude(int status);

  const RunOptions& options_;
  Program program_;
  const std::function<bool()>& terminated_;
  trainer::Link link_;
  ReportTail tail_;
  std::unique_ptr<EventWatch> events_;      // of rank 0
  double event_points_ = kMostEventPoints;  // that may be sent now
  SteadyTime events_at_;
  std::optional<IdleWatch> idle_;
  GpuLook gpus_{options_.inherited};
  const RealClock clock_;
  Assignment assignment_;
  std::unique_ptr<rundir::OutboxWriter> outbox_;
  std::unique_ptr<rundir::ProgressPage> page_;
  uint64_t step_ = 0;
  bool reported_ = false;   // a step
  SteadyTime reported_at_;  // the last one
  SteadyTime beaten_at_;
  bool stopping_ = false, signalled_ = false;
  bool has_stop_file_ = false, stop_file_warned_ = false;
  SteadyTime signal_at_;
};

absl::Status Runner::Append(Record record, bool durable) {
  const absl::StatusOr<uint64_t> sequence = outbox_->Append(std::move(record), durable);
  if (!sequence.ok()) return sequence.status();
  link_.Ring(*sequence, step_);
  return absl::OkStatus();
}

absl::Status Runner::Fail(const absl::Status& why, bool of_node) {
  Record record;
  record.mutable_failed()->set_message(std::string(why.message()));
  ShortenUtf8(kMaxFailureBytes, *record.mutable_failed()->mutable_message());
  record.mutable_failed()->set_refused(of_node);
  record.mutable_failed()->set_of_node(of_node);
  Append(std::move(record), /*durable=*/true).IgnoreError();
  return why;
}

absl::Status Runner::Begin() {
  auto outbox = rundir::OutboxWriter::Open(options_.rank_dir);
  if (!outbox.ok()) return outbox.status();
  outbox_ = *std::move(outbox);
  auto page = rundir::ProgressPage::Create(options_.rank_dir);
  if (!page.ok()) return page.status();
  page_ = *std::move(page);
  (*page_)->stage.store(rundir::kLoading, kRelaxed);
  beaten_at_ = clock_.Read().steady;
  return tail_.Create();
}

// Rank 0 chooses the port of MASTER_PORT, where its own process will listen; the others wait for it.
absl::Status Runner::Meet(Place& place) {
  trainer::Rendezvous rendezvous(options_.link.socket, options_.link.key, FromProto(assignment_.collective_deadline()),
                                 [this] { return WantsStop(); });
  if (rank() == 0) {
    const absl::StatusOr<uint16_t> port = FreePort();
    if (!port.ok()) return port.status();
    place.master_address = assignment_.host();
    place.master_port = *port;
    if (assignment_.world() == 1) return absl::OkStatus();
    return rendezvous.Set(kMaster, absl::StrCat(*port, " ", assignment_.host()));
  }
  const absl::StatusOr<std::string> master = rendezvous.Wait(kMaster, FromProto(assignment_.collective_deadline()));
  if (!master.ok()) return master.status();
  const std::pair<std::string, std::string> parts = absl::StrSplit(*master, absl::MaxSplits(' ', 1));
  uint32_t port = 0;
  if (!absl::SimpleAtoi(parts.first, &port) || port == 0 || port > UINT16_MAX) {
    return absl::InternalError(absl::StrCat("rank 0 published \"", *master, "\" for MASTER_PORT"));
  }
  place.master_port = static_cast<uint16_t>(port);
  place.master_address = parts.second;
  return absl::OkStatus();
}

absl::Status Runner::StartProgram() {
  Place place;
  place.local_rank = NumberIn(options_.inherited, "LOCAL_RANK", 0);
  place.local_world = NumberIn(options_.inherited, "LOCAL_WORLD_SIZE", 1);
  place.report_file = options_.rank_dir + "/report.jsonl";
  place.stop_file = options_.rank_dir + "/stop";
  place.error_file = options_.rank_dir + "/error.json";
  if (absl::Status status = Meet(place); !status.ok()) return status;
  Program::Command command;
  command.argv.assign(exec().command().begin(), exec().command().end());
  command.environment = ProgramEnvironment(options_.inherited, assignment_, place);
  command.folder = exec().workdir();
  if (command.folder.empty()) {
    command.folder = options_.rank_dir + "/work";
    mkdir(command.folder.c_str(), 0700);  // entering it says what is wrong
  }
  if (rank() == 0) WatchEventFiles(command);
  if (!exec().image().empty()) {
    Container container = {exec().image(), command.folder, options_.rank_dir, command.environment, {}};
    for (const EnvVar& variable : assignment_.spec().env()) container.of_job.insert(variable.name());
    command.argv = ContainerArguments(options_.container_command, container, command.argv);
    LogInfo("the program runs in an image", {{"image", exec().image()}, {"program", exec().command(0)}});
  }
  idle_.emplace(absl::Seconds(exec().progress_timeout_seconds()));
  if (absl::Status status = program_.Start(command); !status.ok()) return Fail(status, /*of_node=*/true);
  Record record;
  record.mutable_running();
  const absl::Status recorded = Append(std::move(record), /*durable=*/true);
  if (!absl::IsResourceExhausted(recorded)) return recorded;
  LogWarn("the start of the program is not recorded", {{"error", recorded}});  // later records show that it runs
  return absl::OkStatus();
}

void Runner::Take(Report report, Now now) {
  Record record;
  if (auto* written = std::get_if<CheckpointWritten>(&report)) {
    *written->mutable_time() = ToProto(now.wall);
    if (rank() == 0) *record.mutable_checkpoint() = std::move(*written);
  } else {
    MetricPoint& point = std::get<MetricPoint>(report);
    reported_ = true;
    events_.reset();  // what a script reports itself comes first
    reported_at_ = now.steady;
    step_ = std::max(step_, point.step());
    (*page_)->step.store(step_, kRelaxed);
    *point.mutable_time() = ToProto(now.wall);
    // The other ranks' reports only show that they make progress.
    if (rank() == 0) *record.mutable_metrics() = std::move(point);
  }
  if (record.body_case() == Record::BODY_NOT_SET) return;
  const bool durable = record.has_checkpoint();
  if (absl::Status status = Append(std::move(record), durable); !status.ok()) {
    LogWarn("a report of the script is lost", {{"error", status}});
  }
}

void Runner::TakeReports(Now now) {
  for (Report& report : tail_.Read(now.steady)) Take(std::move(report), now);
  if (const std::string warning = tail_.TakeWarning(); !warning.empty()) {
    LogWarn("reports of the script", {{"warning", warning}});
  }
}

// The folder that TENSORBOARD_LOGDIR of the job names is the script's own. Below the working folder and those that its
// arguments name (--output_dir) other jobs may write, too, so there only files of the program's own processes count.
void Runner::WatchEventFiles(const Program::Command& command) {
  std::vector<std::string> folders = FoldersIn(command.argv);
  folders.insert(folders.begin(), command.folder);
  std::function<std::set<pid_t>()> writers = [pid = program_.pid()] { return ProcessesOf(pid); };
  for (const EnvVar& variable : assignment_.spec().env()) {
    if (variable.name() != "TENSORBOARD_LOGDIR") continue;
    if (variable.value().empty()) return;
    folders = {variable.value()[0] == '/' ? variable.value() : absl::StrCat(command.folder, "/", variable.value())};
    writers = nullptr;
  }
  events_ = std::make_unique<EventWatch>(EventFolder(std::move(folders), std::move(writers)));
}

// Event files do not feed the hang detector: their writers keep events back
// for minutes.
void Runner::TakeEvents(std::vector<MetricPoint> points, Now now) {
  event_points_ = std::min(kMostEventPoints,
                           event_points_ + absl::ToDoubleSeconds(now.steady - events_at_) * kEventPointsPerSecond);
  events_at_ = now.steady;
  if (const std::string warning = events_->TakeWarning(); !warning.empty()) {
    LogWarn("TensorBoard files of the script", {{"warning", warning}});
  }
  if (points.empty()) return;
  points = Thin(std::move(points), static_cast<size_t>(event_points_));
  event_points_ -= static_cast<double>(points.size());
  for (MetricPoint& point : points) {
    step_ = std::max(step_, point.step());
    *point.mutable_time() = ToProto(now.wall);
    Record record;
    *record.mutable_metrics() = std::move(point);
    if (absl::Status status = Append(std::move(record), /*durable=*/false); !status.ok()) {
      LogWarn("a scalar of the script is lost", {{"error", status}});
    }
  }
  (*page_)->step.store(step_, kRelaxed);
}

// Nothing but a report tells a program that computes without output from one that hangs in a busy loop; but one that
// does nothing at all can be seen.
void Runner::LookForIdleness(Now now) {
  if (!exec().image().empty()) return;  // the processes of a container are not the runtime's children
  if (reported_ || stopping_ || !idle_->IsDue(now.steady)) return;
  const auto gpu_busy = [this](bool anew) { return gpus_.Busy(anew); };
  if (!idle_->Look(ReadActivity(program_.pid()), gpu_busy, now.steady)) return;
  Record record;
  *record.mutable_idle()->mutable_duration() = ToProto(idle_->idle());
  record.mutable_idle()->set_process(static_cast<uint32_t>(program_.pid()));
  if (absl::Status status = Append(std::move(record), /*durable=*/false); !status.ok()) {
    LogWarn("the program is idle, which could not be reported", {{"error", status}});
  }
}

// A program that has reported nothing makes progress as long as it runs; one that has reported a step, until it has
// reported none for progress_timeout_seconds. One that is stopped by a signal is as frozen as a trainer would be.
void Runner::Beat(SteadyTime now) {
  if (now - beaten_at_ < kHeartbeat) return;
  beaten_at_ = now;
  const absl::StatusOr<rundir::ProcessRow> row = rundir::ReadProcess(program_.pid());
  if (row.ok() && (row->state == 'T' || row->state == 't')) return;
  (*page_)->heartbeat.fetch_add(1, kRelaxed);
  const absl::Duration patience = absl::Seconds(exec().progress_timeout_seconds());
  if (reported_ && patience > absl::ZeroDuration() && now - reported_at_ > patience) return;
  (*page_)->alive_at_stage.fetch_add(1, kRelaxed);
}

// Empty, so that a full disk has room for it; else it is tried again at the next look.
void Runner::MakeStopFile() {
  const std::string path = options_.rank_dir + "/stop";
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
  if (file >= 0) {
    close(file);
    has_stop_file_ = true;
  } else if (!std::exchange(stop_file_warned_, true)) {
    LogWarn("cannot make the stop file yet", {{"error", FileError(errno, absl::StrCat("creating ", path))}});
  }
}

// First should_stop() is true, then SIGTERM; the worker sends SIGKILL at the stop's deadline.
void Runner::CheckStop(Now now) {
  if (!stopping_ && WantsStop()) {
    stopping_ = true;
    const std::optional<Stop> stop = link_.Newest().stop;
    const bool gentle = stop.has_value() && stop->checkpoint_first();
    signal_at_ = now.steady + (gentle ? absl::Seconds(exec().stop_grace_seconds()) : absl::ZeroDuration());
    LogInfo("asked to stop", {{"reason", stop.has_value() ? absl::AsciiStrToLower(absl::StripPrefix(
                                                                EndReason_Name(stop->reason()), "END_REASON_"))
                                                          : "SIGTERM"}});
  }
  if (stopping_ && !has_stop_file_) MakeStopFile();
  if (!stopping_ || signalled_ || now.steady < signal_at_) return;
  signalled_ = true;
  program_.Signal(SIGTERM);
  program_.Signal(SIGCONT);  // a stopped process does not see SIGTERM
}

Outcome Runner::Watch() {
  while (true) {
    const std::optional<int> status = program_.WaitFor(kLook);
    const Now now = clock_.Read();
    TakeReports(now);
    if (status.has_value()) {
      for (int i = 0; i < kLastReads; ++i) TakeReports(now);
      if (events_ != nullptr) TakeEvents(events_->Finish(kLastEvents), now);
      return Conclude(*status);
    }
    if (events_ != nullptr) TakeEvents(events_->Take(), now);
    Beat(now.steady);
    LookForIdleness(now);
    CheckStop(now);
  }
}

Outcome Runner::Conclude(int status) {
  const Outcome outcome{WIFEXITED(status) ? WEXITSTATUS(status) : 0, WIFSIGNALED(status) ? WTERMSIG(status) : 0};
  if (WantsStop()) {
    LogInfo("the program stopped", {{"code", outcome.code}, {"signal", outcome.signal}});
    return {};
  }
  if (outcome.code == kNoContainer && !exec().image().empty()) {
    Fail(absl::UnavailableError(absl::StrCat("image ", exec().image(), " did not run: the rank's log says why")),
         /*of_node=*/true)
        .IgnoreError();
  }
  if (outcome.code != 0 || outcome.signal != 0) return outcome;
  Record record;
  record.mutable_finished()->set_step(step_);
  if (absl::Status stored = Append(std::move(record), /*durable=*/true); !stored.ok()) {
    LogError("cannot record that the program is done", {{"error", stored}});
    return {.code = 1};
  }
  return outcome;
}

absl::StatusOr<Outcome> Runner::Run() {
  absl::StatusOr<Assignment> assignment = link_.WaitForAssignment(terminated_);
  if (absl::IsCancelled(assignment.status())) return Outcome();
  if (!assignment.ok()) return assignment.status();
  assignment_ = *std::move(assignment);
  if (absl::Status status = Begin(); !status.ok()) return status;
  if (!assignment_.spec().has_exec()) {
    return Fail(absl::InvalidArgumentError(absl::StrCat("this is not an exec job for muster-exec ", kVersion)), false);
  }
  LogInfo("rank assigned", {{"world", assignment_.world()}, {"version", kVersion}});
  if (absl::Status status = StartProgram(); !status.ok()) {
    if (absl::IsCancelled(status)) return Outcome();  // asked to stop before it began
    return status;
  }
  return Watch();
}

}  // namespace

absl::StatusOr<Outcome> RunRank(const RunOptions& options, Program program, const std::function<bool()>& terminated) {
  return Runner(options, std::move(program), terminated).Run();
}

}  // namespace muster::exec
