// Names below checkpoint.path: of the folders of checkpoints, and of the files that say who owns them.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace muster::checkpoint {

inline constexpr char kOwnerFile[] = "owner.json";
inline constexpr char kPreviousOwnerFile[] = "owner.json.previous";
// Of temporaries that were to become one of the two (common/file/durable_file.h).
inline constexpr char kClaimPrefix[] = ".owner.json.";

// One checkpoint of a job: newer ones compare greater.
struct StepName {
  uint64_t step = 0;
  uint64_t generation = 0;  // that wrote it
  friend auto operator<=>(const StepName&, const StepName&) = default;

  // "step-0000000100-g3"
  std::string Directory() const;
  // ".staging-step-0000000100-g3": where it is written
  std::string Staging() const;
  // ".removing-step-0000000100-g3": half removed
  std::string Removing() const;
};

// None: `name` is not what Directory() makes.
std::optional<StepName> ParseDirectory(std::string_view name);
std::optional<StepName> ParseStaging(std::string_view name);
std::optional<StepName> ParseRemoving(std::string_view name);

// Why no job may have its checkpoints at `path`: a part of it has one of these names, so that the job that owns the
// folder around it could not write its checkpoint or its owner file there, or would remove the folder. The rest of a
// sentence that begins with the path. Empty: no part has.
//
// Also of "step-0000000100-g3/../x", which is not in that folder: making x makes it on the way. Its ".." is not
// resolved here. Where the first part is a symbolic link, ".." is above what that names. The message names the folder
// "x".
std::string WhyReserved(std::string_view path);

}  // namespace muster::checkpoint
