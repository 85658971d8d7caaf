#include "coordinator/tracking/tracker.h"

#include <algorithm>
#include <exception>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <thread>
#include <tuple>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "common/clock.h"
#include "common/file/durable_file.h"
#include "common/file/private_folder.h"
#include "common/file/read_file.h"
#include "common/log/log.h"
#include "common/proto_time.h"
#include "coordinator/server/feed.h"
#include "coordinator/tracking/mlflow.h"

namespace muster::tracking {
namespace {

constexpr char kIncompleteTag[] = "muster.incomplete";
constexpr size_t kMostCursorBytes = 128;
constexpr absl::Duration kSaveAtLeast = absl::Seconds(5);  // where nothing of a page is sent
constexpr absl::Duration kLogRefusalsEvery = absl::Seconds(10);
constexpr size_t kMostKnownRuns = 1000;
constexpr size_t kMostExperiments = 1000;
// A page with so much is followed by the next one at once.
constexpr size_t kManyItems = 128, kManyBytes = 32 << 10;

std::string PlaceOf(const TrackerOptions& options, const Destination& destination) {
  return absl::StrCat(options.folder, "/", destination.name);
}

bool HasEnded(const Job& job) {
  return job.state() == JOB_STATE_COMPLETED || job.state() == JOB_STATE_FAILED || job.state() == JOB_STATE_CANCELLED;
}

bool IsFull(const server::Feed::Page& page) {
  size_t bytes = 0;
  for (const WatchItem& item : page.items) bytes += item.ByteSizeLong();
  return page.items.size() >= kManyItems || bytes >= kManyBytes;
}

// Stands for the labels and the note, which change without an event.
size_t WordsOf(const Job& job) {
  return std::hash<std::string>()(absl::StrCat(absl::StrJoin(job.labels(), "\n"), "\n\n", job.note()));
}

// What a page has of one job.
struct Share {
  std::vector<Metric> metrics;
  bool incomplete = false;  // some of its points were no longer kept
};

}  // namespace

// One destination's thread.
class Tracker::Copier {
 public:
  // `stored`: the place on disk; empty: there is none yet.
  Copier(const TrackerOptions& options, Destination destination, std::string stored, server::Loop* loop)
      : options_(options),
        destination_(std::move(destination)),
        path_(PlaceOf(options, destination_)),
        stored_(std::move(stored)),
        feed_(std::make_shared<server::Feed>(
            loop, stored_,
            server::Feed::Options{
                .reader = destination_.name,
                .metrics = true,
                .beginning = destination_.history ? server::Feed::Beginning::kOldest : server::Feed::Beginning::kNow})),
        mlflow_(&destination_, &stop_),
        count_{.destination = destination_.name},
        thread_([this] { Follow(); }) {}

  // Once, before Join.
  void Stop() {
    stop_.Notify();
    feed_->Close();
  }
  void Join() { thread_.join(); }

  TrackerCount count() const {
    const absl::MutexLock lock(&mutex_);
    return count_;
  }

 private:
  struct KnownRun {
    Run run;
    std::string experiment;
    bool params_logged = false;
    bool maybe_twice = false;  // a request to make it was not answered
    bool doubtful = false;     // it refused metrics: it may have been deleted
    size_t words = 0;          // WordsOf the job when its tags were sent
  };

  void Follow() {
    std::optional<SteadyTime> saved;
    SteadyTime refreshed = clock_.Read().steady;
    while (std::optional<server::Feed::Page> page = feed_->Next(options_.refresh)) {
      if (clock_.Read().steady - refreshed >= options_.refresh) {
        if (!Refresh()) return;
        refreshed = clock_.Read().steady;
      }
      if (page->cursor.empty()) continue;
      const std::optional<bool> sent = Copy(*page);
      if (!sent.has_value()) return;  // the place stays before this page
      const SteadyTime now = clock_.Read().steady;
      if (*sent || !saved.has_value() || now - *saved >= kSaveAtLeast) {
        Save(page->cursor);
        saved = now;
      }
      if (!IsFull(*page) && stop_.WaitForNotificationWithTimeout(options_.gather)) return;
    }
  }

  void Save(const std::string& cursor) {
    if (cursor.empty() || cursor == stored_) return;
    if (absl::Status status = WriteDurably(path_, cursor); !status.ok()) {
      LogError("cannot save the position of a tracking server; points may be sent twice after a restart",
               {{"destination", destination_.name}, {"error", status}});
      return;
    }
    stored_ = cursor;
  }

  // Sends labels and notes that have changed. False: stopped.
  bool Refresh() {
    std::map<std::string, size_t> words;
    std::vector<std::string> ids;
    for (const auto& [id, known] : runs_) {
      words[id] = known.words;
      ids.push_back(id);
    }
    const std::map<std::string, Job> changed = feed_->Look(
        std::move(ids), [words = std::move(words)](const Job& job) { return WordsOf(job) != words.at(job.id()); });
    for (const auto& [id, job] : changed) {
      if (!Deliver(job, Share(), store_id_)) return false;
    }
    return true;
  }

  // Whether something was sent. nullopt: stopped before all of it was.
  std::optional<bool> Copy(const server::Feed::Page& page) {
    store_id_ = page.store_id;
    std::map<std::string, Share> shares;
    for (const WatchItem& item : page.items) {
      const auto job = page.jobs.find(item.job());
      if (job == page.jobs.end() || !Wants(destination_, job->second)) continue;
      Share& share = shares[item.job()];
      if (item.has_gap() && item.gap().what() == "metrics") share.incomplete = true;
      if (!item.has_metrics()) continue;
      for (Metric& metric : MetricsOf(item.metrics())) share.metrics.push_back(std::move(metric));
    }
    for (const auto& [id, share] : shares) {
      if (!Deliver(page.jobs.at(id), share, store_id_)) return std::nullopt;
    }
    return !shares.empty();
  }

  // False: stopped before it was delivered.
  bool Deliver(const Job& job, const Share& share, const std::string& store) {
    bool made_anew = false;
    for (absl::Duration pause = options_.first_pause;;) {
      absl::Status status;
      // An exception that leaves the thread would end the coordinator.
      try {
        status = Attempt(job, share, store);
      } catch (const std::exception& error) {
        status = absl::UnavailableError(error.what());
      }
      if (stop_.HasBeenNotified()) return false;
      if (absl::IsNotFound(status) && !std::exchange(made_anew, true)) {
        // Someone removed the run or its experiment for good.
        runs_.erase(job.id());
        experiments_.clear();
        continue;
      }
      if (absl::IsNotFound(status) || absl::IsAlreadyExists(status))
        status = absl::InvalidArgumentError(status.message());
      if (status.ok() || absl::IsInvalidArgument(status)) {
        if (!status.ok()) Refused(job, "the run", share.metrics.size(), status);
        if (const auto known = runs_.find(job.id()); known != runs_.end() && known->second.doubtful) runs_.erase(known);
        Answered();
        return true;
      }
      {
        const absl::MutexLock lock(&mutex_);
        count_.up = false;
        ++count_.failures;
      }
      LogWarn("the tracking server did not take a job's data; retrying",
              {{"destination", destination_.name}, {"job", job.id()}, {"retry_in", pause}, {"error", status}});
      if (stop_.WaitForNotificationWithTimeout(pause)) return false;
      pause = std::min(2 * pause, options_.longest_pause);
    }
  }

  void Answered() {
    bool again = false;
    {
      const absl::MutexLock lock(&mutex_);
      again = !std::exchange(count_.up, true);
    }
    if (again) LogInfo("the tracking server takes data again", {{"destination", destination_.name}});
  }

  void Refused(const Job& job, const char* what, size_t values, const absl::Status& status) {
    {
      const absl::MutexLock lock(&mutex_);
      count_.refused += std::max<size_t>(1, values);
    }
    // What is refused once is often refused each time, of every job.
    const SteadyTime now = clock_.Read().steady;
    if (refusal_logged_.has_value() && now - *refusal_logged_ < kLogRefusalsEvery) return;
    refusal_logged_ = now;
    LogError("the tracking server refused data; it will not be sent again",
             {{"destination", destination_.name}, {"job", job.id()}, {"what", what}, {"error", status}});
  }

  // What is refused is counted, and does not keep the rest from being sent.
  absl::Status Tolerate(const absl::Status& status, const Job& job, const char* what, size_t values) {
    if (!absl::IsInvalidArgument(status)) return status;
    Refused(job, what, values, status);
    return absl::OkStatus();
  }

  absl::Status Attempt(const Job& job, const Share& share, const std::string& store) {
    const absl::StatusOr<KnownRun*> found = RunOf(job, store);
    if (!found.ok()) return found.status();
    KnownRun& known = **found;
    if (known.run.deleted) {  // by a user, who does not want it
      known.words = WordsOf(job);
      return absl::OkStatus();
    }
    absl::Status status;
    if (!known.params_logged) {
      status = Tolerate(mlflow_.LogParams(known.run.id, ParamsOf(job.spec())), job, "parameters", 1);
      if (!status.ok()) return status;
      known.params_logged = true;
    }
    status = mlflow_.LogMetrics(known.run.id, share.metrics);
    if (status.ok()) {
      const absl::MutexLock lock(&mutex_);
      count_.values += share.metrics.size();
    }
    known.doubtful |= absl::IsInvalidArgument(status);
    if (status = Tolerate(status, job, "metrics", share.metrics.size()); !status.ok()) return status;
    Texts wanted = TagsOf(job, store);
    if (share.incomplete) wanted[kIncompleteTag] = "some points were thinned out or removed before they were sent";
    if (status = SendTags(job, wanted, known.run); !status.ok()) return status;
    known.words = WordsOf(job);
    const std::string run_status = StatusOf(job);
    if (run_status == known.run.status) return absl::OkStatus();
    if (HasEnded(job) && known.maybe_twice) {
      if (absl::StatusOr<std::vector<Run>> runs = mlflow_.FindRuns(known.experiment, job.id(), store); runs.ok()) {
        if (status = DeleteOthers(*runs, known.run.id); !status.ok()) return status;
      }
    }
    const int64_t end = HasEnded(job) ? absl::ToUnixMillis(FromProto(job.ended())) : 0;
    status = Tolerate(mlflow_.UpdateRun(known.run.id, run_status, end), job, "the status", 1);
    if (status.ok()) known.run.status = run_status;
    return status;
  }

  absl::Status SendTags(const Job& job, const Texts& wanted, Run& run) {
    Texts changed;
    for (const auto& [key, value] : wanted) {
      const auto sent = run.tags.find(key);
      if (sent == run.tags.end() || sent->second != value) changed[key] = value;
    }
    absl::Status status = Tolerate(mlflow_.SetTags(run.id, changed), job, "tags", 1);
    if (!status.ok()) return status;
    for (const auto& [key, value] : changed) run.tags[key] = value;
    for (auto it = run.tags.begin(); it != run.tags.end();) {
      if (!IsOwnTag(it->first) || wanted.contains(it->first) || it->first == kIncompleteTag) {
        ++it;
        continue;
      }
      status = Tolerate(mlflow_.DeleteTag(run.id, it->first), job, "a tag", 1);
      if (!status.ok()) return status;
      it = run.tags.erase(it);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> ExperimentIdOf(const Job& job) {
    const std::string name = ExperimentOf(destination_, job);
    if (const auto known = experiments_.find(name); known != experiments_.end()) return known->second;
    absl::StatusOr<std::string> id = mlflow_.ExperimentId(name);
    if (!id.ok()) return id;
    if (experiments_.size() >= kMostExperiments) experiments_.clear();
    return experiments_[name] = *std::move(id);
  }

  // Runs that a request made whose answer was lost, after which another was made. They have nothing.
  absl::Status DeleteOthers(const std::vector<Run>& runs, const std::string& ours) {
    for (const Run& run : runs) {
      if (run.id == ours || run.deleted || run.has_metrics || !run.params.empty()) continue;
      if (absl::Status status = mlflow_.DeleteRun(run.id); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::StatusOr<KnownRun*> RunOf(const Job& job, const std::string& store) {
    if (const auto known = runs_.find(job.id()); known != runs_.end()) return &known->second;
    const absl::StatusOr<std::string> experiment = ExperimentIdOf(job);
    if (!experiment.ok()) return experiment.status();
    absl::StatusOr<std::vector<Run>> runs = mlflow_.FindRuns(*experiment, job.id(), store);
    if (!runs.ok()) return runs.status();
    KnownRun known{.experiment = *experiment, .maybe_twice = unanswered_.contains(job.id())};
    if (!runs->empty()) {
      // The one with data, of several the same one each time.
      const auto rank = [](const Run& run) {
        return std::tuple(run.deleted, !run.has_metrics, run.params.empty(), run.id);
      };
      known.run = *std::min_element(runs->begin(), runs->end(),
                                    [&](const auto& a, const auto& b) { return rank(a) < rank(b); });
      if (absl::Status status = DeleteOthers(*runs, known.run.id); !status.ok()) return status;
      const Texts params = ParamsOf(job.spec());
      known.params_logged = std::all_of(params.begin(), params.end(),
                                        [&](const auto& param) { return known.run.params.contains(param.first); });
    } else {
      const Texts tags = TagsOf(job, store);
      absl::StatusOr<Run> made =
          mlflow_.CreateRun(*experiment, job.id(), absl::ToUnixMillis(FromProto(job.submitted())), tags);
      if (!made.ok()) {
        if (unanswered_.size() < kMostKnownRuns) unanswered_.insert(job.id());
        experiments_.erase(ExperimentOf(destination_, job));
        return made.status();
      }
      known.run = *std::move(made);
      known.run.tags = tags;
    }
    unanswered_.erase(job.id());
    if (runs_.size() >= kMostKnownRuns) runs_.clear();
    return &(runs_[job.id()] = std::move(known));
  }

  const RealClock clock_;
  const TrackerOptions options_;
  const Destination destination_;
  const std::string path_;
  std::string stored_;  // the place on disk
  const std::shared_ptr<server::Feed> feed_;
  absl::Notification stop_;

  // Touched by the thread only.
  Mlflow mlflow_;
  std::map<std::string, std::string> experiments_;  // ids by name
  std::map<std::string, KnownRun> runs_;            // by job
  std::string store_id_;                            // of the newest page
  std::optional<SteadyTime> refusal_logged_;
  std::set<std::string> unanswered_;  // jobs whose run was asked for in vain

  mutable absl::Mutex mutex_;
  TrackerCount count_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

absl::StatusOr<std::unique_ptr<Tracker>> Tracker::Start(const TrackerOptions& options, server::Loop* loop) {
  if (absl::Status status = MakePrivateFolder(options.folder); !status.ok()) return status;
  // Only a place that is not there begins anew.
  std::vector<std::string> stored;
  for (const Destination& destination : options.destinations) {
    absl::StatusOr<std::string> place = ReadWhole(PlaceOf(options, destination), kMostCursorBytes);
    if (!place.ok() && !absl::IsNotFound(place.status())) {
      return absl::Status(place.status().code(), absl::StrCat("the position of the tracking server ", destination.name,
                                                              ": ", place.status().message()));
    }
    stored.push_back(place.ok() ? *std::move(place) : "");
  }
  std::vector<std::unique_ptr<Copier>> copiers;
  for (size_t i = 0; i < stored.size(); ++i) {
    copiers.push_back(std::make_unique<Copier>(options, options.destinations[i], stored[i], loop));
  }
  return std::unique_ptr<Tracker>(new Tracker(std::move(copiers)));
}

Tracker::Tracker(std::vector<std::unique_ptr<Copier>> copiers) : copiers_(std::move(copiers)) {}

Tracker::~Tracker() { Stop(); }

std::vector<TrackerCount> Tracker::Counts() const {
  std::vector<TrackerCount> counts;
  for (const std::unique_ptr<Copier>& copier : copiers_) counts.push_back(copier->count());
  return counts;
}

void Tracker::Stop() {
  if (std::exchange(stopped_, true)) return;
  for (const std::unique_ptr<Copier>& copier : copiers_) copier->Stop();
  for (const std::unique_ptr<Copier>& copier : copiers_) copier->Join();
}

}  // namespace muster::tracking
