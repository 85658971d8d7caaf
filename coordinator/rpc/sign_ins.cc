#include "coordinator/rpc/sign_ins.h"

#include "absl/strings/str_cat.h"
#include "common/random_text.h"
#include "common/sha256.h"

namespace muster::rpc {
namespace {
constexpr size_t kCodeSize = 32;  // 160 bits
}  // namespace

absl::StatusOr<std::string> SignIns::Offer(const Credential& credential) {
  absl::StatusOr<std::string> code = RandomText(kCodeSize);
  if (!code.ok()) return code;
  const MutexLock lock(mutex_);
  DropOld();
  if (by_digest_.size() >= kMostCodes) {
    return absl::ResourceExhaustedError(
        absl::StrCat(kMostCodes, " sign-in codes wait to be used: try again in a minute"));
  }
  by_digest_[Sha256Hex(*code)] = {credential, clock_->Read().steady};
  return code;
}

std::optional<Credential> SignIns::Redeem(std::string_view code) {
  const MutexLock lock(mutex_);
  DropOld();
  const auto found = by_digest_.find(Sha256Hex(code));
  if (found == by_digest_.end()) return std::nullopt;
  Credential credential = std::move(found->second.credential);
  by_digest_.erase(found);
  return credential;
}

void SignIns::DropOld() {
  const SteadyTime now = clock_->Read().steady;
  std::erase_if(by_digest_, [&](const auto& entry) { return now - entry.second.at >= kLife; });
}

}  // namespace muster::rpc
