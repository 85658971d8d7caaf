#include "worker/agent/rank_checks.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/file/trusted_file.h"
#include "common/mutex.h"

namespace muster::agent {
namespace {

// What the thread of a question looks at.
class Looking {
 public:
  void At(std::string what) {
    const MutexLock lock(mutex_);
    what_ = std::move(what);
  }
  std::string what() const {
    const MutexLock lock(mutex_);
    return what_;
  }

 private:
  mutable Mutex mutex_;
  std::string what_ ABSL_GUARDED_BY(mutex_);
};

absl::Status CheckLibrary(const Model& model, const std::vector<std::string>& roots, Looking& looking) {
  if (!model.has_custom()) return absl::OkStatus();
  looking.At(absl::StrCat("model.library: ", model.custom().library()));
  const absl::Status status = TrustedFile::Open(model.custom().library(), roots).status();
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat("model.library: ", status.message()));
}

RankChecks::Answer AnswerFor(const Train& train, const std::string& owner, const RankRules& rules, Looking& looking) {
  absl::Status status = CheckLibrary(train.model(), rules.plugin_roots, looking);
  if (status.ok()) {
    status = CheckPaths(train, rules.paths, [&](const char* field, const std::string& path) {
      looking.At(absl::StrCat(field, ": ", path));
    });
  }
  if (!status.ok()) return status;
  looking.At(absl::StrCat("the account of ", owner));
  return rules.users.Find(owner);
}

}  // namespace

struct RankChecks::Question {
  SteadyTime asked;
  std::shared_ptr<Looking> looking = std::make_shared<Looking>();
  std::shared_ptr<PendingCall<Answer>> call;
};

RankChecks::RankChecks(RankRules rules, EventLoop* loop, std::function<void()> answered)
    : rules_(std::make_shared<const RankRules>(std::move(rules))), loop_(loop), answered_(std::move(answered)) {}

std::shared_ptr<RankChecks::Question> RankChecks::QuestionOf(const Assignment& assignment) {
  std::erase_if(unanswered_, [](const auto& entry) { return entry.second->call->answer().has_value(); });
  const Train& train = assignment.spec().train();
  const std::string text = absl::StrCat(assignment.owner(), "\n", train.SerializeAsString());
  if (const auto same = unanswered_.find(text); same != unanswered_.end()) return same->second;
  if (unanswered_.size() >= rules_->most_unanswered) return nullptr;
  auto question = std::make_shared<Question>();
  question->asked = loop_->now().steady;
  question->call =
      PendingCall<Answer>::Start([train, owner = assignment.owner(), rules = rules_,
                                  looking = question->looking] { return AnswerFor(train, owner, *rules, *looking); },
                                 [this, alive = std::weak_ptr<bool>(alive_), loop = loop_->weak_from_this()] {
                                   const std::shared_ptr<EventLoop> there = loop.lock();
                                   if (there == nullptr) return;
                                   there->Post([this, alive] {
                                     if (!alive.expired()) answered_();
                                   });
                                 });
  unanswered_[text] = question;
  return question;
}

std::optional<RankChecks::Answer> RankChecks::Ask(const RankId& rank, const Assignment& assignment) {
  const auto [asked, first] = asked_.try_emplace(rank);
  if (first) asked->second = QuestionOf(assignment);
  const std::shared_ptr<Question> question = asked->second;
  if (question == nullptr) {
    asked_.erase(asked);
    return absl::ResourceExhaustedError(
        absl::StrCat("the paths of ", unanswered_.size(), " other jobs do not answer on this node"));
  }
  std::optional<Answer> answer = question->call->answer();
  const absl::Duration patience = rules_->patience;
  if (!answer.has_value() && loop_->now().steady - question->asked >= patience) {
    answer = absl::DeadlineExceededError(absl::StrCat(question->looking->what(), ": no answer within ",
                                                      absl::FormatDuration(patience), "; is its server down?"));
  }
  if (answer.has_value()) asked_.erase(asked);
  return answer;
}

void RankChecks::Keep(const std::function<bool(const RankId&)>& asks) {
  std::erase_if(asked_, [&](const auto& entry) { return !asks(entry.first); });
}

}  // namespace muster::agent
