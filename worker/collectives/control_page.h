// A page of shared memory that one rank writes and the other ranks of its machine map read-only. The others wait on it
// with a futex, so the owner need not know who waits.
//
// Transfers are numbered from 1. The counters only grow, with release order: a rank that reads a raised counter sees
// what the owner wrote to its memory before.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace muster::collectives {

struct ControlPage {
  static constexpr uint64_t kSlots = 128;
  // Transfer n's is n % kSlots, from when n is posted until every rank has finished n.
  struct Slot {
    std::atomic<uint64_t> digest = 0;     // of its sizes, roots and dtype, which must be equal on all ranks
    std::atomic<uint64_t> addresses = 0;  // in this rank's memory: an array of uint64_t, the address of each share
  };

  std::atomic<uint64_t> nonce = 0;     // distinguishes this page from another rank's
  std::atomic<uint32_t> changes = 0;   // the futex; grows with every change below
  std::atomic<uint32_t> failed = 0;    // this rank has failed: discard what was read from its memory since
  std::atomic<uint64_t> posted = 0;    // up to this transfer, others may read this rank's shares
  std::atomic<uint64_t> summed = 0;    // up to this one, the shares whose root it is hold the sum
  std::atomic<uint64_t> finished = 0;  // up to this one, it no longer reads other ranks' shares
  std::array<Slot, kSlots> slots;

  using Counter = std::atomic<uint64_t> ControlPage::*;

  Slot& slot(uint64_t number) { return slots[number % kSlots]; }
  const Slot& slot(uint64_t number) const { return slots[number % kSlots]; }

  // Called by the owner. Wakes all waiters.
  void Raise(Counter counter, uint64_t to);
  void Fail();
  // Waits until `changes` is no longer `seen`, at most `patience`; may return earlier.
  void WaitForChange(uint32_t seen, absl::Duration patience) const;
};

// A mapping of a page. An owner's has the descriptor that others open as /proc/PID/fd/N, until it is shut.
class MappedPage {
 public:
  // Unavailable: the system has no memory to share.
  static absl::StatusOr<std::unique_ptr<MappedPage>> Create();
  // FailedPrecondition: this process may not open it, or it is no control page.
  static absl::StatusOr<std::unique_ptr<MappedPage>> Open(const char* path);
  ~MappedPage();
  MappedPage(const MappedPage&) = delete;

  // Writable with Create only.
  ControlPage& operator*() const { return *page_; }
  int descriptor() const { return descriptor_; }
  // Closes the descriptor, once no other rank will open it.
  void Shut();

 private:
  MappedPage(ControlPage* page, int descriptor) : page_(page), descriptor_(descriptor) {}

  ControlPage* const page_;
  int descriptor_;
};

}  // namespace muster::collectives
