#include "common/checkpoint_names.h"

#include <filesystem>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"

namespace muster::checkpoint {
namespace {

constexpr absl::string_view kStaging = ".staging-";
constexpr absl::string_view kRemoving = ".removing-";

std::optional<StepName> ParseAfter(std::string_view prefix, std::string_view name) {
  if (!name.starts_with(prefix)) return std::nullopt;
  return ParseDirectory(name.substr(prefix.size()));
}

}  // namespace

std::string StepName::Directory() const { return absl::StrFormat("step-%010d-g%d", step, generation); }
std::string StepName::Staging() const { return absl::StrCat(kStaging, Directory()); }
std::string StepName::Removing() const { return absl::StrCat(kRemoving, Directory()); }

std::optional<StepName> ParseDirectory(std::string_view name) {
  const size_t cut = name.rfind("-g");
  if (!name.starts_with("step-") || cut == std::string_view::npos || cut < 5) return std::nullopt;
  StepName parsed;
  if (!absl::SimpleAtoi(std::string(name.substr(5, cut - 5)), &parsed.step) ||
      !absl::SimpleAtoi(std::string(name.substr(cut + 2)), &parsed.generation) || parsed.Directory() != name) {
    return std::nullopt;
  }
  return parsed;
}

std::optional<StepName> ParseStaging(std::string_view name) {
  return ParseAfter(std::string_view(kStaging.data(), kStaging.size()), name);
}
std::optional<StepName> ParseRemoving(std::string_view name) {
  return ParseAfter(std::string_view(kRemoving.data(), kRemoving.size()), name);
}

namespace {

struct Reserved {
  std::string name;
  const char* why = nullptr;  // no other folder may have it
  const char* instead = nullptr;
};
// The first part of that kind.
std::optional<Reserved> ReservedPart(std::string_view path) {
  for (const absl::string_view part : absl::StrSplit(absl::string_view(path.data(), path.size()), '/')) {
    const std::string name(part);
    if (ParseDirectory(name).has_value() || ParseStaging(name).has_value() || ParseRemoving(name).has_value()) {
      return Reserved{name, "only a checkpoint has such a name", "name a folder outside of checkpoints"};
    }
    if (name == kOwnerFile || name == kPreviousOwnerFile || name.starts_with(kClaimPrefix)) {
      return Reserved{name, "only the file that says which job owns a folder of checkpoints has such a name",
                      "name another folder"};
    }
  }
  return std::nullopt;
}

}  // namespace

std::string WhyReserved(std::string_view path) {
  const std::optional<Reserved> part = ReservedPart(path);
  if (!part.has_value()) return "";
  // By the names alone: no file is looked at.
  const std::string direct = std::filesystem::path(path).lexically_normal().native();
  if (const std::optional<Reserved> in = ReservedPart(direct); in.has_value()) {
    return absl::StrCat("is in ", in->name, ", and ", in->why, ": ", in->instead);
  }
  return absl::StrCat("goes through ", part->name, " by \"..\", and ", part->why, ": write ", direct,
                      ", if that is the folder");
}

}  // namespace muster::checkpoint
