#include "worker/rundir/progress.h"

#include <sys/mman.h>

#include "absl/strings/str_cat.h"
#include "worker/rundir/page.h"

namespace muster::rundir {
namespace {

constexpr uint64_t kLayout = 2;

}  // namespace

absl::StatusOr<std::unique_ptr<ProgressPage>> ProgressPage::Create(const std::string& directory) {
  absl::StatusOr<void*> page = MapPage(absl::StrCat(directory, "/progress"), true);
  if (!page.ok()) return page.status();
  std::unique_ptr<ProgressPage> result(new ProgressPage(*page));
  (*result)->layout = kLayout;
  return result;
}

absl::StatusOr<std::unique_ptr<ProgressPage>> ProgressPage::Open(const std::string& directory) {
  absl::StatusOr<void*> page = MapPage(absl::StrCat(directory, "/progress"), false);
  if (!page.ok()) return page.status();
  std::unique_ptr<ProgressPage> result(new ProgressPage(*page));
  const ProgressPage& read = *result;
  if (read->layout != kLayout) {
    return absl::FailedPreconditionError(
        absl::StrCat(directory, "/progress has layout ", read->layout.load(), ", this build reads ", kLayout));
  }
  return result;
}

ProgressPage::~ProgressPage() { munmap(page_, kPageBytes); }

}  // namespace muster::rundir
