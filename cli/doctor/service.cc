#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/doctor/checks.h"
#include "cli/output/format.h"
#include "common/node/not_ready.h"
#include "common/version.h"

namespace muster::cli {
namespace {

std::string LookAtLog(const std::string& log) {
  return log.empty() ? "look at the coordinator's log on its machine: journalctl -u muster-coordinator"
                     : absl::StrCat("look at the coordinator's log: tail ", log);
}

std::string RemedyOf(const absl::Status& failed, const std::string& log) {
  switch (failed.code()) {
    case absl::StatusCode::kUnavailable:
      return "muster local up, or --address of a running coordinator";
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kPermissionDenied:
      return "name your token with --token-file; an admin makes one: muster coordinator token create";
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kFailedPrecondition:
      return "correct --address, --token-file or --ca, or the MUSTER_ variable in its place";
    default:
      return LookAtLog(log);
  }
}

std::vector<Finding> CheckNodes(Client& client, const std::string& log) {
  const absl::StatusOr<v1::ListNodesReply> nodes = client.ListNodes();
  if (!nodes.ok()) return {{"nodes", Severity::kProblem, std::string(nodes.status().message()), LookAtLog(log)}};
  int live = 0, slots = 0;
  std::vector<Finding> findings;
  for (const v1::Node& node : nodes->nodes()) {
    const std::string id = OneLine(node.id());
    if (node.state() != v1::NODE_STATE_LIVE) {
      findings.push_back({"nodes", Severity::kNote, absl::StrCat(id, " is ", StateName(node.state())),
                          absl::StrCat("look at its worker's log on ", OneLine(node.hostname()))});
      continue;
    }
    ++live;
    slots += node.slots_size();
    if (node.draining()) {
      findings.push_back({"nodes", Severity::kNote, absl::StrCat(id, " is drained: it accepts no ranks"),
                          absl::StrCat("muster undrain ", id)});
    }
    if (const std::string why = NotReady(node); !why.empty()) {
      findings.push_back({"nodes", Severity::kNote, absl::StrCat(id, " takes no new ranks: ", OneLine(why)),
                          absl::StrCat("when it is repaired: muster undrain ", id)});
    }
    if (node.version() != kVersion) {
      findings.push_back({"nodes", Severity::kNote, absl::StrCat(id, " runs muster ", OneLine(node.version())),
                          absl::StrCat("install ", kVersion, " there")});
    }
  }
  if (live == 0) {
    findings.push_back({"nodes", Severity::kProblem, "no worker is connected: jobs would stay queued",
                        "muster local up, or start muster-worker --coordinator ADDRESS on a machine"});
  } else {
    findings.insert(findings.begin(), {"nodes", Severity::kOk,
                                       absl::StrCat(live, " live, ", slots, slots == 1 ? " slot" : " slots"), ""});
  }
  return findings;
}

}  // namespace

std::vector<Finding> CheckService(const absl::StatusOr<Client*>& client, const std::string& log) {
  const absl::StatusOr<v1::VersionReply> version = client.ok() ? (*client)->Version() : client.status();
  if (!version.ok()) {
    return {
        {"coordinator", Severity::kProblem, std::string(version.status().message()), RemedyOf(version.status(), log)}};
  }
  std::vector<Finding> findings;
  findings.push_back({"coordinator", Severity::kOk,
                      absl::StrCat("muster ", OneLine(version->version()), " at ", (*client)->connection().address),
                      ""});
  if (version->version() != kVersion) {
    findings.back().severity = Severity::kNote;
    findings.back().remedy = absl::StrCat("this muster is ", kVersion, ": install one version everywhere");
  }
  if (!version->no_new_jobs().empty()) {
    findings.push_back({"coordinator", Severity::kProblem, OneLine(version->no_new_jobs()),
                        "running jobs go on; on a full disk their metrics and logs are dropped"});
  }
  for (Finding& finding : CheckNodes(**client, log)) findings.push_back(std::move(finding));
  // Folders of another machine are not visible here.
  if (!absl::StartsWith((*client)->connection().address, "unix:")) return findings;
  const absl::StatusOr<v1::ListJobsReply> jobs = (*client)->ListJobs(/*all=*/false);
  std::set<std::string> folders;
  if (jobs.ok()) {
    for (const v1::JobSummary& summary : jobs->jobs()) {
      folders.insert(summary.job().spec().train().checkpoint().path());
    }
  }
  folders.erase("");
  for (const std::string& folder : folders) findings.push_back(CheckDisk(folder, "checkpoints in"));
  return findings;
}

}  // namespace muster::cli
