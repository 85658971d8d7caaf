#include "strategies/budget.h"

#include "absl/strings/str_cat.h"
#include "common/bytes.h"

namespace muster::strategies {

absl::Status Budget::Spend(uint64_t work, absl::FunctionRef<std::string()> what) {
  if (cancelled_ && cancelled_()) return absl::CancelledError("no one waits for this plan any more");
  if (work > limits_.work - spent_) {
    return absl::ResourceExhaustedError(absl::StrCat("planning stops at its limit of work: ", what()));
  }
  spent_ += work;
  return absl::OkStatus();
}

absl::Status Budget::Hold(uint64_t bytes, absl::FunctionRef<std::string()> what) {
  if (bytes > limits_.bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("planning stops at its limit of ", FormatBytes(limits_.bytes), " of memory: ", what()));
  }
  most_bytes_ = std::max(most_bytes_, bytes);
  return absl::OkStatus();
}

absl::Status Spend(Budget* budget, uint64_t work, absl::FunctionRef<std::string()> what) {
  return budget == nullptr ? absl::OkStatus() : budget->Spend(work, what);
}

absl::Status Hold(Budget* budget, uint64_t bytes, absl::FunctionRef<std::string()> what) {
  return budget == nullptr ? absl::OkStatus() : budget->Hold(bytes, what);
}

}  // namespace muster::strategies
