#include "worker/agent/command_line.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "worker/agent/rank_process.h"

namespace muster::agent {
namespace {

// All other variables, above all LD_* and NCCL_*, are dropped: a trainer's results must not depend on the environment
// that the worker was started from. The last three are the exception: they limit the instruction set
// (common/instruction_set.h), so that unlike nodes compute alike. What a job or a node sets on purpose is another list,
// common/rank_variables.cc.
constexpr const char* kInherited[] = {"PATH",
                                      "HOME",
                                      "LANG",
                                      "LC_ALL",
                                      "TZ",
                                      "TMPDIR",
                                      "USER",
                                      "MUSTER_FAILPOINTS",
                                      "ATEN_CPU_CAPABILITY",
                                      "ONEDNN_MAX_CPU_ISA",
                                      "DNNL_MAX_CPU_ISA"};

// Of these another user needs its own.
bool IsPersonal(absl::string_view name) { return name == "HOME" || name == "USER" || name == "TMPDIR"; }

const Slot* FindSlot(uint32_t index, const std::vector<Slot>& slots) {
  const auto found = std::find_if(slots.begin(), slots.end(), [index](const Slot& s) { return s.index() == index; });
  return found == slots.end() ? nullptr : &*found;
}

// A job that was stored before the field existed is deterministic, too.
bool IsDeterministic(const Train& train) { return !train.has_deterministic() || train.deterministic(); }

}  // namespace

std::map<std::string, std::string> LibraryVariables(const Assignment& assignment, const StartContext& context) {
  std::map<std::string, std::string> variables;
  const bool exec = assignment.spec().has_exec();
  if (!exec) {
    for (const EnvVar& variable : assignment.spec().env()) variables[variable.name()] = variable.value();
  }
  variables.insert(context.variables.begin(), context.variables.end());
  variables.emplace("MKL_CBWR", context.mkl_code_path);
  if (assignment.device() != DEVICE_CUDA) return variables;
  // A second "=": NCCL takes the name as a whole, not as a prefix.
  if (!context.interface.empty()) variables.emplace("NCCL_SOCKET_IFNAME", absl::StrCat("=", context.interface));
  if (!exec && IsDeterministic(assignment.spec().train())) variables.emplace("CUBLAS_WORKSPACE_CONFIG", ":4096:8");
  return variables;
}

uint32_t CoresOf(const Assignment& assignment, const std::vector<Slot>& slots) {
  uint32_t cores = 0;
  for (const uint32_t index : assignment.slots()) {
    if (const Slot* slot = FindSlot(index, slots); slot != nullptr) cores += slot->cores();
  }
  return std::max(1u, cores);
}

rundir::Start MakeStart(const Assignment& assignment, const std::vector<uint32_t>& local, const rundir::RankDir& dir,
                        const StartContext& context, const std::optional<RankUser>& user) {
  const RankId& id = dir.rank();
  rundir::Start start;
  if (user.has_value()) start.user = user->ids;
  const std::string folder = dir.TrainerPath(start);
  const bool exec = assignment.spec().has_exec();
  start.argv = {exec ? context.exec : context.trainer,
                "run",
                "--socket",
                context.socket,
                "--rank-dir",
                folder,
                "--job",
                id.job.value(),
                "--generation",
                absl::StrCat(id.generation),
                "--rank",
                absl::StrCat(id.rank)};
  if (!context.plugin_roots.empty() && assignment.spec().train().model().has_custom()) {
    start.argv.insert(start.argv.end(), {"--plugin-roots", absl::StrJoin(context.plugin_roots, ",")});
  }
  for (const auto& [flag, roots] :
       {std::pair("--data-roots", &context.data_roots), {"--checkpoint-roots", &context.checkpoint_roots}}) {
    if (!exec && !roots->empty()) start.argv.insert(start.argv.end(), {flag, absl::StrJoin(*roots, ",")});
  }
  if (!assignment.spec().exec().image().empty()) {
    for (const std::string& word : context.container_command) {
      start.argv.push_back(absl::StrCat("--container-word=", word));
    }
  }
  start.working_directory = folder;
  start.slots.emplace(assignment.slots().begin(), assignment.slots().end());
  start.orphan_grace = context.orphan_grace;
  start.kill_grace = context.kill_grace;

  for (const std::string& variable : context.inherited) {
    for (const char* name : kInherited) {
      if (user.has_value() && IsPersonal(name)) continue;
      if (absl::StartsWith(variable, absl::StrCat(name, "="))) start.environment.push_back(variable);
    }
  }
  std::vector<std::string> devices;
  std::vector<uint32_t> visible(assignment.slots().begin(), assignment.slots().end());
  if (exec && !context.local_slots.empty()) visible = context.local_slots;
  for (const uint32_t index : visible) {
    const Slot* slot = FindSlot(index, context.slots);
    if (slot != nullptr && slot->device() == DEVICE_CUDA) devices.push_back(slot->device_uuid());
  }
  const auto place = std::lower_bound(local.begin(), local.end(), id.rank) - local.begin();
  const auto set = [&start](const char* name, const auto& value) {
    start.environment.push_back(absl::StrCat(name, "=", value));
  };
  if (user.has_value()) {
    set("HOME", user->home.empty() ? folder : user->home);
    set("USER", user->name);
    set("LOGNAME", user->name);
  }
  set("MUSTER_JOB_ID", id.job.value());
  set(kRankDirVariable, dir.path());
  set("RANK", id.rank);
  set("WORLD_SIZE", assignment.world());
  set("LOCAL_RANK", place);
  set("LOCAL_WORLD_SIZE", local.size());
  set("OMP_NUM_THREADS", CoresOf(assignment, context.slots));
  // Threads that spin for work slow a busy machine several times; threads that sleep at once are woken hundreds of
  // times a step. So they spin for about a tenth of a millisecond, the time between two GEMMs.
  set("OMP_WAIT_POLICY", "passive");
  set("GOMP_SPINCOUNT", 10'000);
  set("CUDA_VISIBLE_DEVICES", absl::StrJoin(devices, ","));
  for (const auto& [name, value] : LibraryVariables(assignment, context)) set(name.c_str(), value);
  return start;
}

}  // namespace muster::agent
