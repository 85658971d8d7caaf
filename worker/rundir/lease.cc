#include <sys/mman.h>

#include <atomic>

#include "absl/strings/str_cat.h"
#include "worker/rundir/page.h"
#include "worker/rundir/rundir.h"

namespace muster::rundir {
namespace {

using Counter = std::atomic<uint64_t>;
static_assert(Counter::is_always_lock_free);

}  // namespace

absl::StatusOr<std::unique_ptr<Lease>> Lease::Open(const std::string& run, bool create) {
  absl::StatusOr<void*> page = MapPage(absl::StrCat(run, "/lease"), create);
  if (!page.ok()) return page.status();
  return std::unique_ptr<Lease>(new Lease(*page));
}

Lease::~Lease() { munmap(page_, kPageBytes); }

void Lease::Renew() { static_cast<Counter*>(page_)->fetch_add(1, std::memory_order_relaxed); }

uint64_t Lease::Read() const { return static_cast<const Counter*>(page_)->load(std::memory_order_relaxed); }

}  // namespace muster::rundir
