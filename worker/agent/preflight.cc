#include "worker/agent/preflight.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/bytes.h"
#include "common/failpoint.h"
#include "common/file/durable_file.h"
#include "common/file/read_file.h"
#include "common/log/log.h"
#include "common/process/spawn.h"
#include "common/proto_time.h"
#include "common/utf8.h"

namespace muster::agent {
namespace {

constexpr uint64_t kLeastFreeBytes = uint64_t{64} << 20;
constexpr double kSlowShare = 0.5;
constexpr int kKillPatienceMs = 5000;
constexpr size_t kLongestOutput = 64 << 10;
constexpr size_t kLongestLine = 512;

PreflightCheck MakeCheck(const std::string& name, const std::string& problem, std::string result) {
  PreflightCheck check;
  check.set_name(name);
  check.set_problem(problem);
  if (problem.empty()) check.set_result(std::move(result));
  return check;
}

std::string WriteProblem(const std::string& folder) {
  const std::string probe = folder + "/.preflight";
  const absl::Status status = WriteDurably(probe, std::string(4096, 'm'));
  unlink(probe.c_str());
  return status.ok() ? "" : absl::StrCat("cannot write: ", status.message());
}

// What a folder must be good for.
enum class Use { kRead, kRoom, kWrite };

struct Folder {
  const char* what;
  std::string path;
  Use use;
};

PreflightCheck CheckFolder(const Folder& folder) {
  struct statvfs info {};
  std::string problem, result;
  errno = failpoint::Hit("preflight.", folder.what);
  if (errno != 0 || statvfs(folder.path.c_str(), &info) != 0 || access(folder.path.c_str(), R_OK | X_OK) != 0) {
    problem = absl::StrCat(folder.path, ": ", std::strerror(errno));
  } else if (folder.use != Use::kRead) {
    const uint64_t free = uint64_t{info.f_bavail} * info.f_frsize;
    result = absl::StrCat(FormatBytes(free), " free");
    if (free < kLeastFreeBytes) {
      problem = absl::StrCat(FormatBytes(free), " free in ", folder.path, ", less than ", FormatBytes(kLeastFreeBytes));
    } else if (folder.use == Use::kWrite) {
      problem = WriteProblem(folder.path);
    }
  }
  return MakeCheck(folder.what, problem, std::move(result));
}

std::vector<Folder> OwnFolders(const std::string& state_dir, const std::string& run_dir, Use use) {
  std::vector<Folder> folders = {{"state folder", state_dir, use}};
  if (run_dir != state_dir) folders.push_back({"run folder", run_dir, use});
  return folders;
}

bool HasInput(int descriptor) {
  pollfd waiting = {descriptor, POLLIN, 0};
  return poll(&waiting, 1, 0) > 0;
}

// All at the same time. False: cancelled, or a folder of the daemon itself does not answer, so nothing more is checked.
bool CheckFolders(const PreflightOptions& options, int cancelled, FolderChecks& unanswered, Preflight& preflight) {
  std::vector<Folder> folders = OwnFolders(options.state_dir, options.run_dir, Use::kWrite);
  const size_t own = folders.size();
  for (const std::string& root : options.data_roots) folders.push_back({"data root", root, Use::kRead});
  for (const std::string& root : options.checkpoint_roots) {
    // Ranks may write there as other users than this daemon, so it does not try to.
    folders.push_back({"checkpoint root", root, Use::kRead});
  }
  std::erase_if(unanswered, [](const auto& entry) { return entry.second->answer().has_value(); });
  FolderChecks checks;
  for (const Folder& folder : folders) {
    const std::pair<std::string, std::string> name(folder.what, folder.path);
    if (const auto earlier = unanswered.find(name); earlier != unanswered.end()) {
      checks.insert(*earlier);
    } else if (!checks.contains(name)) {
      checks[name] = PendingCall<PreflightCheck>::Start([folder] { return CheckFolder(folder); });
    }
  }
  unanswered = checks;
  const SteadyTime deadline = options.clock->Read().steady + options.patience;
  bool complete = true;
  for (size_t i = 0; i < folders.size(); ++i) {
    const PendingCall<PreflightCheck>& check = *checks.at({folders[i].what, folders[i].path});
    if (check.Wait(deadline - options.clock->Read().steady, cancelled)) {
      *preflight.add_checks() = *check.answer();
      continue;
    }
    if (HasInput(cancelled)) return false;
    if (i < own) complete = false;
    *preflight.add_checks() =
        MakeCheck(folders[i].what,
                  absl::StrCat(folders[i].path, ": no answer within ", absl::FormatDuration(options.patience)), "");
  }
  return complete;
}

// The trainer's process, the leader of a process group.
struct Child {
  pid_t pid = -1;
  int pidfd = -1;
  int output = -1, error = -1;
};

absl::StatusOr<Child> StartTrainer(const PreflightOptions& options, const std::vector<Slot>& devices) {
  int ends[2], errors[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return absl::ErrnoToStatus(errno, "pipe");
  if (pipe2(errors, O_CLOEXEC) != 0) {
    close(ends[0]);
    close(ends[1]);
    return absl::ErrnoToStatus(errno, "pipe");
  }
  fcntl(errors[0], F_SETFL, O_NONBLOCK);
  Program program{.arguments = {options.trainer, "preflight", "--host", options.host},
                  .environment = OwnEnvironment(),
                  .output = ends[1],
                  .error = errors[1],
                  .leads = Program::Leads::kGroup};
  std::vector<std::string> uuids, slots;
  for (const Slot& slot : devices) {
    uuids.push_back(slot.device_uuid());
    slots.push_back(absl::StrCat(slot.index()));
  }
  std::erase_if(program.environment, [](const auto& entry) { return entry.starts_with("CUDA_VISIBLE_DEVICES="); });
  program.environment.push_back(absl::StrCat("CUDA_VISIBLE_DEVICES=", absl::StrJoin(uuids, ",")));
  if (!slots.empty()) program.arguments.insert(program.arguments.end(), {"--cuda", absl::StrJoin(slots, ",")});
  const absl::StatusOr<pid_t> pid = Spawn(std::move(program));
  close(ends[1]);
  close(errors[1]);
  if (!pid.ok()) {
    close(ends[0]);
    close(errors[0]);
    return pid.status();
  }
  return Child{
      .pid = *pid, .pidfd = static_cast<int>(syscall(SYS_pidfd_open, *pid, 0)), .output = ends[0], .error = errors[0]};
}

// How it ended: "was killed by signal 9". One that does not end, since a device holds it, is left behind.
std::string Reap(const Child& child) {
  pollfd ended = {child.pidfd, POLLIN, 0};
  siginfo_t info = {};
  if (poll(&ended, 1, kKillPatienceMs) == 0) return "does not end";
  if (waitid(P_PID, static_cast<id_t>(child.pid), &info, WEXITED) != 0) return "is gone";
  if (info.si_code == CLD_EXITED) return absl::StrCat("ended with code ", info.si_status);
  return absl::StrCat("was killed by signal ", info.si_status);
}

// What the trainer has printed to standard error, which is this daemon's log, too.
class ErrorOutput {
 public:
  // Takes what is there. False: its end.
  bool Read(int descriptor) {
    char buffer[4096];
    const ssize_t bytes = read(descriptor, buffer, sizeof buffer);
    if (bytes <= 0) return bytes < 0 && (errno == EAGAIN || errno == EINTR);
    std::fwrite(buffer, 1, static_cast<size_t>(bytes), stderr);
    text_.append(buffer, static_cast<size_t>(bytes));
    if (text_.size() > kLongestOutput) text_.erase(0, text_.size() - kLongestOutput);
    return true;
  }
  // The last line that is not empty, such as the dynamic loader's.
  std::string LastLine() const {
    const absl::string_view text = absl::StripTrailingAsciiWhitespace(text_);
    return CleanText(text.substr(text.rfind('\n') + 1), kLongestLine);  // npos + 1: from the start
  }

 private:
  std::string text_;
};

// Of a process that printed `line` last and ended without a finding. 127 is the exit code of the dynamic loader.
std::string WhyNoFinding(const std::string& end, bool begun, absl::string_view line) {
  if (begun || end != "ended with code 127") {
    return absl::StrCat("the process that checks it ", end, line.empty() ? "" : ": ", line);
  }
  constexpr absl::string_view kLoader = "error while loading shared libraries: ";
  if (const size_t at = line.find(kLoader); at != absl::string_view::npos) line.remove_prefix(at + kLoader.size());
  return absl::StrCat("muster-trainer does not load: ", line.empty() ? absl::StrCat("its process ", end) : line);
}

struct DeviceCheck {
  std::string problem, result;
  double flops_per_second = 0;
};

// What the trainer has printed so far (worker/trainer/preflight.h).
class Findings {
 public:
  // Returns whether a whole line was among it.
  bool Read(std::string_view text) {
    pending_.append(text);
    bool any = false;
    for (size_t end = 0; (end = pending_.find('\n')) != std::string::npos; any = true) {
      Line(pending_.substr(0, end));
      pending_.erase(0, end + 1);
    }
    return any && pending_.size() < kLongestOutput;
  }
  // Of the check that was begun and has no finding.
  void Fail(const std::string& problem) { checks_[current_.empty() ? "trainer" : current_].problem = problem; }
  bool begun() const { return !current_.empty() || !checks_.empty(); }
  bool complete() const { return current_.empty() && !checks_.empty(); }
  std::map<std::string, DeviceCheck>& checks() { return checks_; }

 private:
  void Line(const std::string& line) {
    const std::vector<std::string> fields = absl::StrSplit(line, '\t');
    if (fields.size() == 2 && fields[0] == "begin") {
      current_ = fields[1];
    } else if (fields.size() == 4 && fields[0] == "pass") {
      DeviceCheck& check = checks_[fields[1]];
      check.result = fields[2];
      if (!absl::SimpleAtod(fields[3], &check.flops_per_second)) check.flops_per_second = 0;
      current_.clear();
    } else if (fields.size() == 3 && fields[0] == "fail") {
      checks_[fields[1]].problem = fields[2].empty() ? "failed" : fields[2];
      current_.clear();
    }
  }

  std::string pending_, current_;
  std::map<std::string, DeviceCheck> checks_;
};

// Each line has to come within the patience after the last one. False: cancelled.
bool Follow(const PreflightOptions& options, const Child& child, int cancelled, Findings& findings) {
  const auto now = [&] { return options.clock->Read().steady; };
  SteadyTime deadline = now() + options.patience;
  ErrorOutput printed;
  int error = child.error;
  while (true) {
    pollfd waiting[3] = {{child.output, POLLIN, 0}, {cancelled, POLLIN, 0}, {error, POLLIN, 0}};
    const int64_t left = std::max<int64_t>(0, absl::ToInt64Milliseconds(deadline - now()));
    const int ready = poll(waiting, 3, static_cast<int>(left));
    if (ready < 0 && errno == EINTR) continue;
    const bool stop = waiting[1].revents != 0;
    if (waiting[2].revents != 0 && !printed.Read(error)) error = -1;  // poll ignores it from now on
    const bool has_output = waiting[0].revents != 0;
    if (!has_output && !stop && now() < deadline) continue;
    char buffer[4096];
    const ssize_t bytes = has_output && !stop ? read(child.output, buffer, sizeof buffer) : -1;
    if (bytes > 0) {
      if (findings.Read({buffer, static_cast<size_t>(bytes)})) deadline = now() + options.patience;
      continue;
    }
    if (bytes < 0) kill(-child.pid, SIGKILL);
    const std::string end = Reap(child);
    if (bytes < 0) {
      findings.Fail(absl::StrCat("no answer within ", absl::FormatDuration(options.patience)));
    } else if (!findings.complete() || end != "ended with code 0") {
      // A child that it left may print for ever.
      for (int reads = 0; reads < 64 && error >= 0 && HasInput(error) && printed.Read(error); ++reads) {
      }
      findings.Fail(WhyNoFinding(end, findings.begun(), printed.LastLine()));
    }
    return !stop;
  }
}

// "GPU-4f...<tab>6.1e+13" a line: the best speed that each GPU has shown.
std::map<std::string, double> ReadSpeeds(const std::string& path) {
  std::map<std::string, double> speeds;
  const absl::StatusOr<std::string> text = ReadWhole(path);
  if (!text.ok()) return speeds;
  for (const absl::string_view line : absl::StrSplit(*text, '\n')) {
    const std::vector<std::string> fields = absl::StrSplit(line, '\t');
    double speed = 0;
    if (fields.size() == 2 && absl::SimpleAtod(fields[1], &speed)) speeds[fields[0]] = speed;
  }
  return speeds;
}

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Finds GPUs that are much slower than their equals, or than they were.
void CompareSpeeds(const std::string& state_dir, const std::vector<Slot>& devices,
                   std::map<std::string, DeviceCheck>& checks) {
  const std::string path = state_dir + "/device_speeds";
  std::map<std::string, double> best = ReadSpeeds(path);
  std::map<std::string, std::vector<double>> by_model;
  const auto check_of = [&](const Slot& slot) -> DeviceCheck* {
    const auto found = checks.find(absl::StrCat("device ", slot.index()));
    return found == checks.end() || found->second.flops_per_second <= 0 ? nullptr : &found->second;
  };
  for (const Slot& slot : devices) {
    if (const DeviceCheck* check = check_of(slot)) by_model[slot.model()].push_back(check->flops_per_second);
  }
  bool better = false;
  for (const Slot& slot : devices) {
    DeviceCheck* check = check_of(slot);
    if (check == nullptr) continue;
    const double usual = Median(by_model[slot.model()]);
    double& own = best[slot.device_uuid()];
    const double expected = std::max(usual, own);
    if (check->flops_per_second < kSlowShare * expected) {
      check->problem = absl::StrFormat("%s, less than half of the %.3g %s", check->result, expected / 1e12,
                                       own >= usual ? "that it has reached before" : "that equal devices here reach");
    }
    better |= check->flops_per_second > own;
    own = std::max(own, check->flops_per_second);
  }
  if (!better) return;
  std::string text;
  for (const auto& [uuid, speed] : best) absl::StrAppend(&text, uuid, "\t", speed, "\n");
  if (absl::Status status = WriteDurably(path, text); !status.ok()) {
    LogWarn("cannot keep the speeds of devices", {{"error", status}});
  }
}

void CheckDevices(const PreflightOptions& options, const std::vector<Slot>& free, int cancelled, Preflight& preflight) {
  std::vector<Slot> devices;
  for (const Slot& slot : free) {
    if (slot.device() == DEVICE_CUDA) devices.push_back(slot);
  }
  if (free.empty()) return;
  Findings findings;
  const absl::StatusOr<Child> child = StartTrainer(options, devices);
  if (!child.ok()) {
    findings.Fail(std::string(child.status().message()));
  } else {
    const bool done = Follow(options, *child, cancelled, findings);
    close(child->output);
    close(child->error);
    if (child->pidfd >= 0) close(child->pidfd);
    if (!done) return;
  }
  CompareSpeeds(options.state_dir, devices, findings.checks());
  for (const auto& [name, check] : findings.checks())
    *preflight.add_checks() = MakeCheck(name, check.problem, check.result);
}

}  // namespace

Preflight CheckOwnFolders(const std::string& state_dir, const std::string& run_dir, bool write) {
  Preflight preflight;
  for (const Folder& folder : OwnFolders(state_dir, run_dir, write ? Use::kWrite : Use::kRoom)) {
    *preflight.add_checks() = CheckFolder(folder);
  }
  *preflight.mutable_time() = ToProto(absl::Now());
  return preflight;
}

Preflight CheckMachine(const PreflightOptions& options, const std::vector<Slot>& free, int cancelled,
                       FolderChecks* unanswered) {
  Preflight preflight;
  FolderChecks none;
  const bool usable = CheckFolders(options, cancelled, unanswered == nullptr ? none : *unanswered, preflight);
  if (usable && options.kind == PreflightKind::kFull) CheckDevices(options, free, cancelled, preflight);
  *preflight.mutable_time() = ToProto(absl::Now());
  return preflight;
}

Preflights::Preflights(PreflightOptions options, EventLoop* loop, std::function<void(Preflight)> done)
    : options_(std::move(options)), loop_(loop), done_(std::move(done)), cancel_(eventfd(0, EFD_CLOEXEC)) {}

Preflights::~Preflights() {
  alive_.reset();
  eventfd_write(cancel_, 1);
  if (thread_.joinable()) thread_.join();
  close(cancel_);
}

void Preflights::Start(uint64_t number, std::vector<Slot> free) {
  thread_ = std::thread(
      [this, number, free = std::move(free), alive = std::weak_ptr<bool>(alive_), loop = loop_->weak_from_this()] {
        Preflight preflight = CheckMachine(options_, free, cancel_, &unanswered_);
        preflight.set_number(number);
        const std::shared_ptr<EventLoop> there = loop.lock();
        if (there == nullptr) return;
        there->Post([this, alive, preflight = std::move(preflight)]() mutable {
          if (alive.expired()) return;
          thread_.join();
          done_(std::move(preflight));
        });
      });
}

}  // namespace muster::agent
