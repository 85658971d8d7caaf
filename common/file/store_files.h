// Which store a worker daemon belongs to, as files of its state folder: there the daemon keeps the store's id, and
// there an operator's command meets the daemon when it has met another one (muster worker adopt, reset).
//
// A store is a coordinator's state folder. Its id is made once, with the store, and goes wherever its files go. A
// worker that a coordinator with another store accepts would get no ranks from it, and so would end all of its own:
// after a start with an empty or a wrong --state-dir, for example.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace muster {

// Empty: it belongs to none yet. Other errors than that there is no such file are those of ReadWhole.
absl::StatusOr<std::string> ReadStoreId(const std::string& state_dir);
absl::Status WriteStoreId(const std::string& state_dir, const std::string& id);

// What the daemon says while it refuses another store; empty: it does not.
absl::Status WriteForeignStore(const std::string& state_dir, const std::string& message);
std::string ReadForeignStore(const std::string& state_dir);

enum class StoreChoice {
  kAdopt,  // belong to the store that the coordinator has; ranks that it does not know end
  kReset,  // the same, after ending all ranks
};
absl::Status WriteStoreChoice(const std::string& state_dir, StoreChoice choice);
// Removes it, so that it counts once.
std::optional<StoreChoice> TakeStoreChoice(const std::string& state_dir);

}  // namespace muster
