#include "worker/collectives/control_page.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <ctime>
#include <new>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace muster::collectives {
namespace {

static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);
static_assert(sizeof(ControlPage) <= 4096);

// Not FUTEX_PRIVATE: the waiters are other processes.
int64_t Futex(const std::atomic<uint32_t>& word, int operation, uint32_t value, const timespec* patience) {
  return syscall(SYS_futex, &word, operation, value, patience, nullptr, 0);
}

}  // namespace

void ControlPage::Raise(Counter counter, uint64_t to) {
  (this->*counter).store(to, std::memory_order_release);
  changes.fetch_add(1, std::memory_order_seq_cst);
  Futex(changes, FUTEX_WAKE, INT_MAX, nullptr);
}

void ControlPage::Fail() {
  failed.store(1, std::memory_order_seq_cst);
  changes.fetch_add(1, std::memory_order_seq_cst);
  Futex(changes, FUTEX_WAKE, INT_MAX, nullptr);
}

void ControlPage::WaitForChange(uint32_t seen, absl::Duration patience) const {
  const timespec limit = absl::ToTimespec(patience);
  Futex(changes, FUTEX_WAIT, seen, &limit);
}

absl::StatusOr<std::unique_ptr<MappedPage>> MappedPage::Create() {
  const int descriptor = memfd_create("muster-collectives", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (descriptor < 0) return absl::UnavailableError("cannot make shared memory (memfd_create)");
  void* memory = MAP_FAILED;
  // Sealed, so that no reader ever accesses memory past its end.
  if (ftruncate(descriptor, sizeof(ControlPage)) == 0 &&
      fcntl(descriptor, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0) {
    memory = mmap(nullptr, sizeof(ControlPage), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  }
  if (memory == MAP_FAILED) {
    close(descriptor);
    return absl::UnavailableError("cannot map shared memory");
  }
  return std::unique_ptr<MappedPage>(new MappedPage(new (memory) ControlPage, descriptor));
}

absl::StatusOr<std::unique_ptr<MappedPage>> MappedPage::Open(const char* path) {
  const int descriptor = open(path, O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) {
    const int error = errno;
    return absl::FailedPreconditionError(
        absl::StrCat("cannot open its shared memory: ", absl::ErrnoToStatus(error, path).message()));
  }
  const int seals = fcntl(descriptor, F_GET_SEALS);
  struct stat found = {};
  const bool whole = seals >= 0 && (seals & F_SEAL_SHRINK) != 0 && fstat(descriptor, &found) == 0 &&
                     found.st_size >= static_cast<off_t>(sizeof(ControlPage));
  void* const memory = whole ? mmap(nullptr, sizeof(ControlPage), PROT_READ, MAP_SHARED, descriptor, 0) : MAP_FAILED;
  close(descriptor);
  if (memory == MAP_FAILED) return absl::FailedPreconditionError("its shared memory is not a control page");
  return std::unique_ptr<MappedPage>(new MappedPage(static_cast<ControlPage*>(memory), -1));
}

MappedPage::~MappedPage() {
  munmap(page_, sizeof(ControlPage));
  Shut();
}

void MappedPage::Shut() {
  if (descriptor_ >= 0) close(descriptor_);
  descriptor_ = -1;
}

}  // namespace muster::collectives
