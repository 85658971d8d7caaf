// Whether a rank may start here, as far as that is asked of what may not answer: its paths may lie in a file system
// whose server is down, the users of the system in a directory that is away. Each question is asked on a thread of its
// own, so that it holds up its own ranks and nothing else on this node.
//
//   const std::optional<RankChecks::Answer> answer = checks.Ask(id, assignment);
//   if (!answer.has_value()) return;  // `answered` is called when it is time to ask again
//
// Used on the loop's thread only.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/ids.h"
#include "proto/worker.pb.h"
#include "worker/agent/event_loop.h"
#include "worker/agent/job_paths.h"
#include "worker/agent/pending_call.h"
#include "worker/agent/rank_users.h"

namespace muster::agent {

struct RankRules {
  PathRules paths;
  std::vector<std::string> plugin_roots;  // below which jobs' libraries may lie; none: no library is loaded
  RankUsers users;
  absl::Duration patience = absl::Seconds(10);
  size_t most_unanswered = 64;  // questions; any other is refused meanwhile
};

class RankChecks {
 public:
  // Whom the rank runs as, or why it may not start here.
  using Answer = absl::StatusOr<std::optional<RankUser>>;

  // `loop` outlives it. `answered` is called on the loop's thread.
  RankChecks(RankRules rules, EventLoop* loop, std::function<void()> answered);

  // Whether the job may load its library and use its paths here (the trainer checks again, on what it opens), and has a
  // user. None: not known yet. Ranks that ask the same wait for one answer. DeadlineExceeded: none within the patience;
  // the message names the path. Until it comes, others that ask the same get that at once. Each answer is given once.
  std::optional<Answer> Ask(const RankId& rank, const Assignment& assignment);
  // Ranks for which this is false will not ask again.
  void Keep(const std::function<bool(const RankId&)>& asks);

 private:
  struct Question;

  std::shared_ptr<Question> QuestionOf(const Assignment& assignment);

  const std::shared_ptr<const RankRules> rules_;
  EventLoop* const loop_;
  const std::function<void()> answered_;
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::map<std::string, std::shared_ptr<Question>> unanswered_;  // by what is asked
  std::map<RankId, std::shared_ptr<Question>> asked_;            // by who waits for the answer
};

}  // namespace muster::agent
