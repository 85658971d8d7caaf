#include "common/rank_variables.h"

#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace muster {
namespace {

struct Allowed {
  const char* pattern;  // a name, or a prefix and *
  const char* reason;
};

constexpr Allowed kAllowed[] = {
    {"NCCL_*", "networks, algorithms and debug output of the collectives between GPUs"},
    {"FI_*", "libfabric, which NCCL uses on AWS EFA and HPE Slingshot"},
    {"UCX_*", "UCX, which NCCL's UCX plugin uses"},
    {"MLX5_*", "the user-space driver of NVIDIA's InfiniBand and RoCE adapters"},
    {"IBV_*", "libibverbs, below NCCL's InfiniBand transport: IBV_FORK_SAFE, IBV_SHOW_WARNINGS"},
    {"GLOO_SOCKET_IFNAME", "LibTorch's own Gloo groups; Muster's use the node's --host"},
    {"MKL_CBWR", "the code path of MKL's GEMMs on a CPU; AVX2 gives equal bits on CPUs with and without AVX-512"},
    {"CUDA_LAUNCH_BLOCKING", "a failed kernel is reported at its launch"},
    {"CUDA_DEVICE_MAX_CONNECTIONS", "hardware queues, which decide how compute and collectives overlap"},
};

// What Muster sets for the program of an exec job.
constexpr const char* kReserved[] = {
    "RANK",        "LOCAL_RANK",           "GROUP_RANK",       "ROLE_RANK",       "ROLE_NAME",
    "WORLD_SIZE",  "LOCAL_WORLD_SIZE",     "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "MASTER_ADDR",
    "MASTER_PORT", "CUDA_VISIBLE_DEVICES", "MUSTER_*",         "TORCHELASTIC_*",  "SLURM_*",
    "OMPI_*"};

struct Refused {
  const char* name;
  const char* reason;
};

constexpr Refused kRefused[] = {
    {"NCCL_COMM_ID", "ranks meet through the coordinator, and all groups of a job would meet at this one address"},
    {"NCCL_COMM_BLOCKING", "a blocking communicator waits for a lost rank past every deadline"},
};

constexpr Refused kNodeOnly[] = {
    {"NCCL_HOSTID", "with one value on all nodes NCCL takes them for one machine"},
};

// A variable with one of these words names a file, a folder, a library or a command of the node.
constexpr const char* kNodeWords[] = {"COMMAND", "DEST",   "DIR",     "DRIVERS", "FILE",  "LIB",
                                      "MAIL",    "MODULE", "MODULES", "PATH",    "PLUGIN"};

bool Matches(absl::string_view pattern, absl::string_view name) {
  if (!absl::ConsumeSuffix(&pattern, "*")) return name == pattern;
  return absl::StartsWith(name, pattern) && name.size() > pattern.size();
}

bool NamesSomethingOfTheNode(absl::string_view name) {
  const std::vector<absl::string_view> words = absl::StrSplit(name, '_');
  return std::any_of(words.begin(), words.end(), [](absl::string_view word) {
    return std::find(std::begin(kNodeWords), std::end(kNodeWords), word) != std::end(kNodeWords);
  });
}

bool IsIdentifier(absl::string_view name) {
  return std::all_of(name.begin(), name.end(),
                     [](unsigned char c) { return absl::ascii_isupper(c) || absl::ascii_isdigit(c) || c == '_'; });
}

absl::Status CheckNameLength(absl::string_view name) {
  if (name.empty()) return absl::InvalidArgumentError("missing");
  if (name.size() <= kMaxVariableName) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("has ", name.size(), " characters, at most ", kMaxVariableName, " are allowed"));
}

absl::Status Wrong(absl::string_view name, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("a rank's environment cannot have ", name, ": ", why));
}

}  // namespace

std::string AllowedRankVariables() {
  return absl::StrJoin(kAllowed, ", ", [](std::string* out, const Allowed& allowed) { *out += allowed.pattern; });
}

absl::Status CheckRankVariableName(absl::string_view name, VariableSource source) {
  if (absl::Status status = CheckNameLength(name); !status.ok()) return status;
  const bool allowed = IsIdentifier(name) && std::any_of(std::begin(kAllowed), std::end(kAllowed),
                                                         [&](const Allowed& a) { return Matches(a.pattern, name); });
  if (!allowed) return Wrong(absl::CHexEscape(name), absl::StrCat("allowed are ", AllowedRankVariables()));
  for (const Refused& refused : kRefused) {
    if (name == refused.name) return Wrong(name, refused.reason);
  }
  if (source == VariableSource::kNode) return absl::OkStatus();
  const auto of_node = [&](absl::string_view why) {
    return Wrong(name, absl::StrCat(why, "; a node sets it: muster-worker --env ", name, "=VALUE"));
  };
  for (const Refused& refused : kNodeOnly) {
    if (name == refused.name) return of_node(refused.reason);
  }
  if (NamesSomethingOfTheNode(name)) return of_node("files, libraries and commands belong to the node");
  return absl::OkStatus();
}

absl::Status CheckRankVariableValue(absl::string_view value) {
  if (value.empty()) return absl::InvalidArgumentError("missing");
  if (value.size() > kMaxVariableValue) {
    return absl::InvalidArgumentError(
        absl::StrCat("has ", value.size(), " characters, at most ", kMaxVariableValue, " are allowed"));
  }
  if (!std::all_of(value.begin(), value.end(), [](unsigned char c) { return absl::ascii_isprint(c); })) {
    return absl::InvalidArgumentError("has a character that is not printable ASCII");
  }
  return absl::OkStatus();
}

absl::Status CheckProgramVariableName(absl::string_view name) {
  if (absl::Status status = CheckNameLength(name); !status.ok()) return status;
  const bool identifier =
      !absl::ascii_isdigit(static_cast<unsigned char>(name[0])) &&
      std::all_of(name.begin(), name.end(), [](unsigned char c) { return absl::ascii_isalnum(c) || c == '_'; });
  if (!identifier) {
    return absl::InvalidArgumentError(
        absl::StrCat(absl::CHexEscape(name), " is not a name for a variable: use letters, digits and _"));
  }
  for (const char* reserved : kReserved) {
    if (!Matches(reserved, name)) continue;
    return absl::InvalidArgumentError(absl::StrCat(name, " is set by Muster for each rank (docs/exec.md)"));
  }
  return absl::OkStatus();
}

absl::Status CheckProgramVariableValue(absl::string_view value) {
  if (value.size() > kMaxProgramValue) {
    return absl::InvalidArgumentError(
        absl::StrCat("has ", value.size(), " bytes, at most ", kMaxProgramValue, " are allowed"));
  }
  if (absl::StrContains(value, '\0')) return absl::InvalidArgumentError("holds a zero byte");
  return absl::OkStatus();
}

absl::StatusOr<std::pair<std::string, std::string>> ParseNodeVariable(absl::string_view text) {
  const size_t equals = text.find('=');
  if (equals == absl::string_view::npos) return absl::InvalidArgumentError("expected NAME=VALUE");
  const absl::string_view name = text.substr(0, equals), value = text.substr(equals + 1);
  if (absl::Status status = CheckRankVariableName(name, VariableSource::kNode); !status.ok()) return status;
  if (absl::Status status = CheckRankVariableValue(value); !status.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": the value ", status.message() == "missing" ? "is " : "", status.message()));
  }
  return std::pair(std::string(name), std::string(value));
}

}  // namespace muster
