#include "worker/rundir/progress.h"

#include <sys/mman.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "worker/rundir/page.h"
#include "worker/rundir/segments.h"

namespace muster::rundir {
namespace {

constexpr uint64_t kLayout = 2;

absl::Status OtherLayout(const std::string& directory, uint64_t layout) {
  return absl::FailedPreconditionError(
      absl::StrCat(directory, "/progress has layout ", layout, ", this build reads ", kLayout));
}

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
  if (read->layout != kLayout) return OtherLayout(directory, read->layout);
  return result;
}

ProgressPage::~ProgressPage() { munmap(page_, kPageBytes); }

absl::StatusOr<std::unique_ptr<ProgressReader>> ProgressReader::Open(const std::string& directory) {
  const absl::StatusOr<int> descriptor = OpenTrainersFile(absl::StrCat(directory, "/progress"));
  if (!descriptor.ok()) return descriptor.status();
  std::unique_ptr<ProgressReader> reader(new ProgressReader(*descriptor));
  const absl::StatusOr<ProgressSeen> seen = reader->Read();
  if (!seen.ok()) return seen.status();
  if (seen->layout != kLayout) return OtherLayout(directory, seen->layout);
  return reader;
}

ProgressReader::~ProgressReader() { close(descriptor_); }

absl::StatusOr<ProgressSeen> ProgressReader::Read() const {
  ProgressSeen seen{};
  if (pread(descriptor_, &seen, sizeof seen, 0) == sizeof seen) return seen;
  return absl::DataLossError("the progress page is too short");
}

}  // namespace muster::rundir
