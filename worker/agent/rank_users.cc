#include "worker/agent/rank_users.h"

#include <grp.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/file/private_folder.h"
#include "common/file/read_file.h"
#include "common/file/trusted_file.h"
#include "common/file_error.h"

namespace muster::agent {
namespace {

constexpr uid_t kFirstPerson = 1000;  // below are the system's accounts (login.defs, UID_MIN)
constexpr uint64_t kMaxMapBytes = 1 << 20;
constexpr char kCoordinatorUser[] = "muster-coordinator";  // of deploy/systemd
constexpr char kUmask[] = "umask=";

bool ParseUmask(absl::string_view text, mode_t& mask) {
  if (text.empty() || text.size() > 4) return false;
  mask = 0;
  for (const char c : text) {
    if (c < '0' || c > '7') return false;
    mask = mask * 8 + static_cast<mode_t>(c - '0');
  }
  return mask <= 0777;
}

// "61001:61001,44"
absl::Status ParseIds(const std::string& text, rundir::User& ids) {
  const std::vector<std::string> parts = absl::StrSplit(text, ':');
  bool first = true;
  bool numbers = parts.size() == 2 && absl::SimpleAtoi(parts[0], &ids.uid);
  if (numbers) {
    for (const absl::string_view gid : absl::StrSplit(parts[1], ',')) {
      gid_t& next = std::exchange(first, false) ? ids.gid : ids.groups.emplace_back();
      numbers = numbers && absl::SimpleAtoi(gid, &next);
    }
  }
  if (!numbers) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text, "\" is neither a system user's name nor uid:gid,gid,... in numbers"));
  }
  if (ids.uid == 0) return absl::InvalidArgumentError("no rank may run as root (uid 0)");
  // A group of root's would open much that is root's.
  for (const gid_t gid : ids.groups) {
    if (gid == 0) return absl::InvalidArgumentError("no rank may have root's group (gid 0)");
  }
  if (ids.gid == 0) return absl::InvalidArgumentError("no rank may have root's group (gid 0)");
  return absl::OkStatus();
}

absl::Status ParseLine(const std::vector<std::string>& words, MappedUser& user) {
  const bool mask = words.size() == 3 && absl::StartsWith(words[2], kUmask) &&
                    ParseUmask(absl::StripPrefix(words[2], kUmask), user.ids.umask);
  if (words.size() != 2 && !mask) {
    return absl::InvalidArgumentError("expected `owner user`, or `owner uid:gid,gid,...`, and perhaps umask=077");
  }
  const std::string& who = words[1];
  if (who.find(':') != std::string::npos || who.find_first_not_of("0123456789") == std::string::npos) {
    return ParseIds(who, user.ids);
  }
  if (who == "root") return absl::InvalidArgumentError("no rank may run as root");
  user.system = who;
  return absl::OkStatus();
}

struct SystemUser {
  uid_t uid = 0;
  gid_t gid = 0;
  std::string home;
};

absl::StatusOr<SystemUser> FindSystemUser(const std::string& name) {
  std::vector<char> buffer(64 * 1024);
  passwd entry{};
  passwd* found = nullptr;
  if (const int error = getpwnam_r(name.c_str(), &entry, buffer.data(), buffer.size(), &found);
      error != 0 && error != ENOENT) {
    return absl::ErrnoToStatus(error, absl::StrCat("cannot look up the system user ", name));
  }
  if (found == nullptr) return absl::NotFoundError(absl::StrCat("this machine has no user ", name));
  return SystemUser{found->pw_uid, found->pw_gid, found->pw_dir};
}

absl::StatusOr<RankUser> FromSystem(const std::string& name, mode_t umask) {
  const absl::StatusOr<SystemUser> system = FindSystemUser(name);
  if (!system.ok()) return system.status();
  RankUser user{name, {system->uid, system->gid, {}, umask}, system->home};
  int count = 64;
  user.ids.groups.resize(static_cast<size_t>(count));
  if (getgrouplist(name.c_str(), system->gid, user.ids.groups.data(), &count) < 0) {
    user.ids.groups.resize(static_cast<size_t>(count));
    if (getgrouplist(name.c_str(), system->gid, user.ids.groups.data(), &count) < 0) {
      return absl::InternalError(absl::StrCat("cannot read the groups of user ", name));
    }
  }
  user.ids.groups.resize(static_cast<size_t>(count));
  return user;
}

absl::StatusOr<std::map<std::string, MappedUser>> ReadUserMap(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return FileError(errno, absl::StrCat("cannot look at ", path));
  if (absl::Status status = JudgeTrusted(path, info, geteuid()); !status.ok()) return status;
  const absl::StatusOr<std::string> text = ReadWhole(path, kMaxMapBytes);
  if (!text.ok()) return text.status();
  absl::StatusOr<std::map<std::string, MappedUser>> users = ParseUserMap(*text);
  if (users.ok()) return users;
  return absl::Status(users.status().code(), absl::StrCat(path, ", ", users.status().message()));
}

}  // namespace

absl::StatusOr<std::map<std::string, MappedUser>> ParseUserMap(std::string_view text) {
  std::map<std::string, MappedUser> users;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(absl::string_view(text.data(), text.size()), '\n')) {
    ++number;
    line = line.substr(0, line.find('#'));
    const std::vector<std::string> words = absl::StrSplit(line, absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
    if (words.empty()) continue;
    MappedUser user;
    absl::Status status = ParseLine(words, user);
    if (status.ok() && !users.emplace(words[0], std::move(user)).second) {
      status = absl::InvalidArgumentError(absl::StrCat("owner ", words[0], " is there twice"));
    }
    if (!status.ok()) return absl::Status(status.code(), absl::StrCat("line ", number, ": ", status.message()));
  }
  return users;
}

absl::StatusOr<RankUsers> RankUsers::Make(const std::string& setting, const std::string& coordinator) {
  RankUsers users;
  if (setting.empty() || setting == "off") return users;
  absl::string_view socket = coordinator;
  if (absl::ConsumePrefix(&socket, "unix:")) users.coordinator_ = std::string(socket);
  users.setting_ = setting == "system" ? setting : std::filesystem::absolute(setting).string();
  if (setting == "system") return users;
  if (const auto map = ReadUserMap(users.setting_); !map.ok()) return map.status();
  return users;
}

absl::StatusOr<RankUser> RankUsers::Look(const std::string& owner) const {
  if (owner.empty()) {
    return absl::PermissionDeniedError("the coordinator does not say who submitted the job; upgrade it");
  }
  constexpr mode_t kDefaultUmask = 077;
  if (setting_ == "system") {
    absl::StatusOr<RankUser> user = FromSystem(owner, kDefaultUmask);
    if (!user.ok()) return user;
    if (user->ids.uid >= kFirstPerson) return user;
    return absl::PermissionDeniedError(absl::StrCat("user ", owner, " is an account of the system (uid ", user->ids.uid,
                                                    ", below ", kFirstPerson, ")"));
  }
  const auto map = ReadUserMap(setting_);
  if (!map.ok()) return map.status();
  const auto found = map->find(owner);
  if (found == map->end()) return absl::NotFoundError(absl::StrCat(setting_, " has no line for ", owner));
  if (!found->second.system.empty()) return FromSystem(found->second.system, found->second.ids.umask);
  return RankUser{owner, found->second.ids, ""};
}

absl::Status RankUsers::Judge(const RankUser& user) const {
  const auto refuse = [&](const char* why) {
    return absl::PermissionDeniedError(absl::StrCat(user.name, " is uid ", user.ids.uid, ", ", why));
  };
  if (user.ids.uid == 0 || user.ids.gid == 0) return refuse("which has root's rights");
  if (user.ids.uid == geteuid()) return refuse("whom this worker daemon itself runs as");
  struct stat socket {};
  const bool its_socket =
      !coordinator_.empty() && stat(coordinator_.c_str(), &socket) == 0 && socket.st_uid == user.ids.uid;
  const absl::StatusOr<SystemUser> coordinator = FindSystemUser(kCoordinatorUser);
  if (its_socket || (coordinator.ok() && coordinator->uid == user.ids.uid)) {
    return refuse("whom the coordinator runs as");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<RankUser>> RankUsers::Find(const std::string& owner) const {
  if (!switches()) return std::optional<RankUser>();
  absl::StatusOr<RankUser> user = Look(owner);
  absl::Status status = user.ok() ? Judge(*user) : user.status();
  if (status.ok()) return std::optional<RankUser>(*std::move(user));
  return absl::PermissionDeniedError(absl::StrCat("no rank of ", owner.empty() ? "this job" : owner,
                                                  " runs on this node: ", status.message(), " (--run-as-owner ",
                                                  setting_, ": ask the node's administrator for an account)"));
}

absl::Status MakePassableRunFolder(const std::string& run) {
  struct stat info {};
  if (lstat(run.c_str(), &info) != 0) {
    if (errno != ENOENT) return FileError(errno, absl::StrCat("cannot look at the folder ", run));
    if (absl::Status status = MakePrivateFolder(run); !status.ok()) return status;
  } else if (!S_ISDIR(info.st_mode) || info.st_uid != geteuid() || (info.st_mode & 066) != 0) {
    return absl::PermissionDeniedError(
        absl::StrCat(run, ", the run folder, must be a folder of user ", geteuid(),
                     " that others can neither list nor write to: chown and chmod 711 it, or name another one"));
  }
  if (chmod(run.c_str(), 0711) != 0) return FileError(errno, absl::StrCat("cannot chmod ", run));
  for (std::filesystem::path folder = std::filesystem::path(run).parent_path();; folder = folder.parent_path()) {
    if (stat(folder.c_str(), &info) != 0) return FileError(errno, absl::StrCat("cannot look at ", folder.string()));
    if ((info.st_mode & 011) == 0) {
      return absl::FailedPreconditionError(absl::StrCat(
          "ranks that run as their owners cannot reach the run folder ", run, ": ", folder.string(), " has mode ",
          absl::StrFormat("%o", info.st_mode & 07777), "; chmod o+x it, or name another --run-dir"));
    }
    if (folder == folder.root_path()) return absl::OkStatus();
  }
}

}  // namespace muster::agent
