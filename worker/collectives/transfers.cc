#include "worker/collectives/transfers.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/collectives/rank_shares.h"

namespace muster::collectives {

struct Transfer {
  struct Range {
    size_t bytes = 0;
    int root = 0;
  };

  uint64_t number = 0;
  Transfers::Kind kind = Transfers::Kind::kBroadcast;
  at::ScalarType dtype = at::kFloat;
  std::vector<Range> ranges;
  std::vector<uint64_t> addresses;  // of the ranges in this rank's memory; the other ranks read this list
  std::vector<at::Tensor> alive;
  uint64_t digest = 0;
  SteadyPoint deadline;
  std::atomic<int64_t> done_nanoseconds = 0;
};

namespace {

using Kind = Transfers::Kind;

// 42 MB in 21 MB halves, read and added in milliseconds by chunks of 64 KiB 5.5, 256 KiB 4.8, 1 MiB 4.4, all at once
// 4.9, on a core with a private cache of 1 MiB, which the compute thread needs too.
constexpr size_t kChunk = size_t{256} << 10;
// For reads without a sum: no need to fit the cache; bounded so that peers are checked often enough.
constexpr size_t kReadAtOnce = size_t{1} << 20;
// LibTorch uses all its threads to add more than 32,767 elements; those threads are busy computing.
constexpr int64_t kAddAtOnce = 16 << 10;

// FNV-1a: the same in every process.
uint64_t Digest(const Transfer& transfer) {
  uint64_t digest = 0xcbf29ce484222325u;
  const auto add = [&](uint64_t value) {
    for (int i = 0; i < 8; ++i, value >>= 8) digest = (digest ^ (value & 0xff)) * 0x100000001b3u;
  };
  add(static_cast<uint64_t>(transfer.kind));
  add(static_cast<uint64_t>(transfer.dtype));
  for (const Transfer::Range& range : transfer.ranges) {
    add(range.bytes);
    add(static_cast<uint64_t>(range.root));
  }
  return digest;
}

// The ranks in the order in which their shares are summed at `root`.
std::vector<int> Order(Kind kind, int root, int size) {
  if (kind != Kind::kReduce) return RingOrder(root, size);
  std::vector<int> order;
  for (int i = 0; i < size; ++i) order.push_back(i);
  return order;
}

void Add(std::byte* to, std::byte* from, size_t bytes, at::ScalarType dtype) {
  const int64_t elements = static_cast<int64_t>(bytes / c10::elementSize(dtype));
  const at::Tensor sum = at::from_blob(to, {elements}, dtype), more = at::from_blob(from, {elements}, dtype);
  for (int64_t i = 0; i < elements; i += kAddAtOnce) {
    const int64_t length = std::min(kAddAtOnce, elements - i);
    sum.narrow(0, i, length).add_(more.narrow(0, i, length));
  }
}

std::byte* Pointer(uint64_t address) { return reinterpret_cast<std::byte*>(address); }

}  // namespace

Transfers::Transfers(std::unique_ptr<Neighbours> neighbours, absl::Duration timeout)
    : neighbours_(std::move(neighbours)),
      timeout_(timeout),
      scratch_{std::make_unique<std::byte[]>(kChunk), std::make_unique<std::byte[]>(kChunk)},
      thread_([this] { Run(); }) {}

Transfers::~Transfers() { Stop(absl::CancelledError("the group has ended")); }

std::shared_ptr<Transfer> Transfers::Begin(Kind kind, std::vector<RankShare> shares) {
  auto transfer = std::make_shared<Transfer>();
  transfer->kind = kind;
  transfer->dtype = shares.front().values.scalar_type();
  for (RankShare& share : shares) {
    transfer->ranges.push_back({share.values.nbytes(), share.root});
    transfer->addresses.push_back(reinterpret_cast<uint64_t>(share.values.data_ptr()));
    transfer->alive.push_back(std::move(share.values));
  }
  transfer->digest = Digest(*transfer);
  transfer->deadline = After(timeout_);
  absl::MutexLock lock(&mutex_);
  Forget();
  transfer->number = ++issued_;
  transfers_.push_back(transfer);
  Publish();
  return transfer;
}

uint64_t Transfers::Over() const {
  uint64_t over = UINT64_MAX;
  for (int rank = 0; rank < neighbours_->size(); ++rank) {
    over = std::min(over, neighbours_->page(rank).finished.load(std::memory_order_acquire));
  }
  return over;
}

// Publishes issued transfers while slots are free.
void Transfers::Publish() {
  const uint64_t end = std::min(issued_, Over() + ControlPage::kSlots);
  if (posted_ >= end) return;
  while (posted_ < end) {
    const Transfer& next = *transfers_[transfers_.size() - 1 - (issued_ - ++posted_)];
    ControlPage::Slot& slot = neighbours_->own().slot(posted_);
    slot.digest.store(next.digest, std::memory_order_relaxed);
    slot.addresses.store(reinterpret_cast<uint64_t>(next.addresses.data()), std::memory_order_relaxed);
  }
  neighbours_->own().Raise(&ControlPage::posted, posted_);
}

void Transfers::Forget() {
  const uint64_t over = Over();
  while (!transfers_.empty() && transfers_.front()->number <= over) transfers_.pop_front();
}

bool Transfers::Wanted() const { return carried_ < issued_ || !failure_.ok(); }

void Transfers::Run() {
  while (true) {
    // transfers_ keeps it until all ranks have finished it, this one included. A reference here would keep its tensors
    // longer than that, until this thread runs again.
    Transfer* next = nullptr;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &Transfers::Wanted));
      if (!failure_.ok()) return;
      next = transfers_[transfers_.size() - 1 - (issued_ - ++carried_)].get();
    }
    absl::Status status;
    try {
      status = Carry(*next);
    } catch (const std::exception& error) {
      status = absl::InternalError(error.what());
    }
    if (!status.ok()) return Fail(status);
  }
}

absl::Status Transfers::Carry(Transfer& transfer) {
  const uint64_t number = transfer.number;
  if (number > ControlPage::kSlots) {
    for (int rank = 0; rank < neighbours_->size(); ++rank) {
      absl::Status free = Await(rank, &ControlPage::finished, number - ControlPage::kSlots, transfer.deadline);
      if (!free.ok()) return free;
    }
    absl::MutexLock lock(&mutex_);
    Publish();
  }
  if (transfer.kind != Kind::kBroadcast) {
    if (absl::Status status = Sum(transfer); !status.ok()) return status;
    if (transfer.kind == Kind::kAllReduce) neighbours_->own().Raise(&ControlPage::summed, number);
  }
  if (transfer.kind != Kind::kReduce) {
    if (absl::Status status = Fetch(transfer); !status.ok()) return status;
  }
  transfer.done_nanoseconds = std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
  neighbours_->own().Raise(&ControlPage::finished, number);
  return absl::OkStatus();
}

absl::Status Transfers::Sum(const Transfer& transfer) {
  const int rank = neighbours_->rank(), size = neighbours_->size();
  const bool any = std::any_of(transfer.ranges.begin(), transfer.ranges.end(),
                               [&](const auto& range) { return range.root == rank && range.bytes > 0; });
  if (!any) return absl::OkStatus();
  Addresses theirs(static_cast<size_t>(size));
  for (int other = 0; other < size; ++other) {
    if (other == rank) continue;
    auto addresses = Ask(transfer, other, &ControlPage::posted);
    if (!addresses.ok()) return addresses.status();
    theirs[static_cast<size_t>(other)] = *std::move(addresses);
  }
  for (size_t share = 0; share < transfer.ranges.size(); ++share) {
    const Transfer::Range& range = transfer.ranges[share];
    if (range.root != rank) continue;
    for (size_t begin = 0; begin < range.bytes; begin += kChunk) {
      absl::Status status = SumChunk(transfer, theirs, share, begin, std::min(kChunk, range.bytes - begin));
      if (!status.ok()) return status;
    }
  }
  for (int other = 0; other < size; ++other) {
    if (absl::Status status = neighbours_->Believe(other); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status Transfers::SumChunk(const Transfer& transfer, const Addresses& theirs, size_t share, size_t begin,
                                 size_t bytes) {
  const int rank = neighbours_->rank();
  std::byte* const own = Pointer(transfer.addresses[share] + begin);
  std::byte* sum = nullptr;
  for (const int other : Order(transfer.kind, rank, neighbours_->size())) {
    if (other == rank) {
      if (sum != nullptr) Add(own, sum, bytes, transfer.dtype);
      sum = own;
      continue;
    }
    std::byte* const more = scratch_[sum == scratch_[0].get() ? 1 : 0].get();
    absl::Status status =
        Read(other, theirs[static_cast<size_t>(other)][share] + begin, reinterpret_cast<uint64_t>(more), bytes);
    if (!status.ok()) return status;
    if (sum == nullptr) {
      sum = more;
    } else {
      Add(sum, more, bytes, transfer.dtype);
    }
  }
  return absl::OkStatus();
}

absl::Status Transfers::Fetch(const Transfer& transfer) {
  const int rank = neighbours_->rank(), size = neighbours_->size();
  const auto counter = transfer.kind == Kind::kBroadcast ? &ControlPage::posted : &ControlPage::summed;
  for (int step = 1; step < size; ++step) {
    const int root = (rank + step) % size;  // staggered, so that not all read from one rank at once
    std::vector<uint64_t> theirs;
    for (size_t share = 0; share < transfer.ranges.size(); ++share) {
      const Transfer::Range& range = transfer.ranges[share];
      if (range.root != root || range.bytes == 0) continue;
      if (theirs.empty()) {
        auto addresses = Ask(transfer, root, counter);
        if (!addresses.ok()) return addresses.status();
        theirs = *std::move(addresses);
      }
      absl::Status status = Read(root, theirs[share], transfer.addresses[share], range.bytes);
      if (!status.ok()) return status;
    }
    if (absl::Status status = neighbours_->Believe(root); !theirs.empty() && !status.ok()) return status;
  }
  return absl::OkStatus();
}

// The addresses of a rank's shares, once it has reached this transfer.
absl::StatusOr<std::vector<uint64_t>> Transfers::Ask(const Transfer& transfer, int rank, ControlPage::Counter counter) {
  if (absl::Status s = Await(rank, counter, transfer.number, transfer.deadline); !s.ok()) return s;
  const ControlPage::Slot& slot = neighbours_->page(rank).slot(transfer.number);
  if (slot.digest.load(std::memory_order_relaxed) != transfer.digest) {
    return absl::UnavailableError(absl::StrCat("ranks disagree: what rank ", rank,
                                               " transfers has other sizes, roots or dtype than on this rank"));
  }
  std::vector<uint64_t> addresses(transfer.addresses.size());
  absl::Status status = neighbours_->Read(rank, slot.addresses.load(std::memory_order_relaxed), addresses.data(),
                                          addresses.size() * sizeof(uint64_t));
  if (status.ok()) status = neighbours_->Believe(rank);
  if (!status.ok()) return status;
  return addresses;
}

absl::Status Transfers::Read(int rank, uint64_t from, uint64_t to, size_t bytes) {
  for (size_t begin = 0; begin < bytes; begin += kReadAtOnce) {
    if (neighbours_->own().failed.load(std::memory_order_acquire) != 0) return Failure();
    const size_t length = std::min(kReadAtOnce, bytes - begin);
    if (absl::Status s = neighbours_->Read(rank, from + begin, Pointer(to + begin), length); !s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::Status Transfers::Await(int rank, ControlPage::Counter counter, uint64_t number, SteadyPoint deadline) const {
  absl::Status status = neighbours_->Await(rank, counter, number, deadline);
  if (absl::IsCancelled(status)) return Failure();
  if (!absl::IsDeadlineExceeded(status)) return status;
  return absl::UnavailableError(
      absl::StrCat("rank ", rank, " did not reach this collective within ", absl::FormatDuration(timeout_)));
}

absl::Status Transfers::Wait(const Transfer& transfer) {
  const int rank = neighbours_->rank(), size = neighbours_->size();
  for (int step = 0; step < size; ++step) {  // this rank first
    absl::Status status = Await((rank + step) % size, &ControlPage::finished, transfer.number, transfer.deadline);
    if (status.ok()) continue;
    Stop(status);
    return Failure();
  }
  absl::MutexLock lock(&mutex_);
  Forget();
  return absl::OkStatus();
}

bool Transfers::Done(const Transfer& transfer) const {
  return transfer.number <= Over() || neighbours_->own().failed.load(std::memory_order_acquire) != 0 ||
         Left(transfer.deadline) <= absl::ZeroDuration();
}

void Transfers::Abandon(const Transfer& transfer) {
  if (transfer.number > Over()) Stop(absl::CancelledError("a collective was dropped before it was done"));
}

void Transfers::Stop(const absl::Status& why) {
  Fail(why);
  absl::MutexLock lock(&ending_);
  if (thread_.joinable()) thread_.join();
}

std::chrono::steady_clock::time_point Transfers::DoneAt(const Transfer& transfer) {
  return std::chrono::steady_clock::time_point(std::chrono::nanoseconds(transfer.done_nanoseconds));
}

void Transfers::Fail(const absl::Status& why) {
  {
    absl::MutexLock lock(&mutex_);
    if (failure_.ok()) failure_ = why;
  }
  neighbours_->own().Fail();
}

absl::Status Transfers::Failure() const {
  absl::MutexLock lock(&mutex_);
  return failure_;
}

}  // namespace muster::collectives
