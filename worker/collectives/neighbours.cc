#include "worker/collectives/neighbours.h"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace muster::collectives {
namespace {

// About 5 microseconds. Ranks share cores with compute threads, so they spin only briefly.
constexpr int kSpins = 100;
// The longest sleep between checks that the other process is alive.
constexpr absl::Duration kNap = absl::Milliseconds(50);
constexpr char kNo[] = "no ";
constexpr char kYes[] = "yes";

std::string KeyOf(const std::string& name, int rank, const char* what) {
  return absl::StrCat("near/", name, "/", rank, "/", what);
}

// Identifies this boot of this machine and its pid and network namespaces. Process ids are valid within a pid
// namespace; ranks in separate network namespaces are treated like separate machines. Empty: unknown.
std::string Machine() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  struct stat processes = {}, network = {};
  if (boot.empty() || stat("/proc/self/ns/pid", &processes) != 0 || stat("/proc/self/ns/net", &network) != 0) return "";
  return absl::StrCat(boot, "/", processes.st_ino, "/", network.st_ino);
}

// A parsed offer; Neighbours::Offer writes it.
struct Offered {
  std::string machine;
  pid_t process = 0;
  int descriptor = -1;
  uint64_t address = 0;
  uint64_t nonce = 0;
};

absl::StatusOr<Offered> Parse(const std::string& text) {
  if (absl::StartsWith(text, kNo)) return absl::FailedPreconditionError(text.substr(sizeof kNo - 1));
  const std::vector<std::string> words = absl::StrSplit(text, ' ');
  Offered offered;
  if (words.size() != 5 || !absl::SimpleAtoi(words[1], &offered.process) ||
      !absl::SimpleAtoi(words[2], &offered.descriptor) || !absl::SimpleAtoi(words[3], &offered.address) ||
      !absl::SimpleAtoi(words[4], &offered.nonce)) {
    return absl::FailedPreconditionError(absl::StrCat("cannot parse its offer: ", text));
  }
  offered.machine = words[0];
  return offered;
}

// Waits for every rank's value. Unavailable: one is missing.
absl::StatusOr<std::vector<std::string>> Collect(const Neighbours::Options& options, const char* what,
                                                 KeyValue& rendezvous) {
  std::vector<std::string> all;
  for (int rank = 0; rank < options.size; ++rank) {
    auto value =
        rendezvous.Wait(KeyOf(options.name, rank, what), std::max(absl::ZeroDuration(), Left(options.deadline)));
    if (!value.ok()) {
      return absl::UnavailableError(
          absl::StrCat("rank ", rank, " has not said whether it shares its memory: ", value.status().message()));
    }
    all.push_back(*std::move(value));
  }
  return all;
}

// Whether the offers, which are the same on every rank, allow memory reads.
absl::Status Compare(const std::vector<std::string>& offers) {
  std::string machine;
  for (size_t rank = 0; rank < offers.size(); ++rank) {
    const absl::StatusOr<Offered> offered = Parse(offers[rank]);
    if (!offered.ok()) {
      return absl::FailedPreconditionError(absl::StrCat("rank ", rank, ": ", offered.status().message()));
    }
    if (rank == 0) machine = offered->machine;
    if (offered->machine != machine) {
      return absl::FailedPreconditionError(
          absl::StrCat("rank ", rank, " is on another machine than rank 0, or in other namespaces"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Neighbours>> Neighbours::Meet(const Options& options, KeyValue& rendezvous) {
  std::unique_ptr<Neighbours> met(new Neighbours(options.rank, options.size));
  const absl::StatusOr<std::string> offer =
      options.willing ? met->Offer() : absl::FailedPreconditionError("it is configured to use Gloo only");
  const std::string said = offer.ok() ? *offer : absl::StrCat(kNo, offer.status().message());
  if (absl::Status s = rendezvous.Set(KeyOf(options.name, options.rank, "offer"), said); !s.ok()) return s;
  const auto offers = Collect(options, "offer", rendezvous);
  if (!offers.ok()) return offers.status();
  if (absl::Status s = Compare(*offers); !s.ok()) return s;

  absl::Status reached;
  for (int rank = 0; rank < options.size && reached.ok(); ++rank) {
    if (rank == options.rank) continue;
    reached = met->Reach(rank, (*offers)[static_cast<size_t>(rank)]);
  }
  const std::string answer = reached.ok() ? kYes : std::string(reached.message());
  if (absl::Status s = rendezvous.Set(KeyOf(options.name, options.rank, "reach"), answer); !s.ok()) return s;
  const auto answers = Collect(options, "reach", rendezvous);
  if (!answers.ok()) return answers.status();
  for (size_t rank = 0; rank < answers->size(); ++rank) {
    if ((*answers)[rank] == kYes) continue;
    return absl::PermissionDeniedError(absl::StrCat("rank ", rank, " reports: ", (*answers)[rank]));
  }
  met->own_->Shut();
  return met;
}

absl::StatusOr<std::string> Neighbours::Offer() {
  const std::string machine = Machine();
  if (machine.empty()) return absl::FailedPreconditionError("/proc does not identify its machine");
  if (getrandom(&probe_, sizeof probe_, 0) != static_cast<ssize_t>(sizeof probe_)) {
    return absl::FailedPreconditionError("cannot get random numbers");
  }
  auto page = MappedPage::Create();
  if (!page.ok()) return page.status();
  own_ = *std::move(page);
  own().nonce = probe_;
  // Without Yama this fails, and is not needed.
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
  return absl::StrCat(machine, " ", getpid(), " ", own_->descriptor(), " ", reinterpret_cast<uint64_t>(&probe_), " ",
                      probe_);
}

absl::Status Neighbours::Reach(int rank, const std::string& offer) {
  const absl::StatusOr<Offered> offered = Parse(offer);
  if (!offered.ok()) return offered.status();
  Other& other = others_[static_cast<size_t>(rank)];
  other.process = offered->process;
  // Opened before the probe: if the probe then finds the nonce, this pidfd names the rank's process.
  other.pidfd = static_cast<int>(syscall(SYS_pidfd_open, other.process, 0));
  if (other.pidfd < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot watch the process of rank ", rank));
  const std::string path = absl::StrCat("/proc/", other.process, "/fd/", offered->descriptor);
  auto page = MappedPage::Open(path.c_str());
  if (!page.ok()) return absl::PermissionDeniedError(absl::StrCat("rank ", rank, ": ", page.status().message()));
  other.page = *std::move(page);
  uint64_t word = 0;
  if (absl::Status s = Read(rank, offered->address, &word, sizeof word); !s.ok()) return s;
  if (word != offered->nonce || (**other.page).nonce != offered->nonce) {
    return absl::PermissionDeniedError(absl::StrCat("process ", other.process, " is not rank ", rank));
  }
  return absl::OkStatus();
}

Neighbours::~Neighbours() {
  for (const Other& other : others_) {
    if (other.pidfd >= 0) close(other.pidfd);
  }
}

const ControlPage& Neighbours::page(int rank) const {
  return rank == rank_ ? own() : **others_[static_cast<size_t>(rank)].page;
}

absl::Status Neighbours::Read(int rank, uint64_t from, void* to, size_t bytes) const {
  while (bytes > 0) {
    iovec local = {to, bytes}, remote = {reinterpret_cast<void*>(from), bytes};
    const ssize_t got = process_vm_readv(others_[static_cast<size_t>(rank)].process, &local, 1, &remote, 1, 0);
    if (got <= 0) {
      const absl::Status error = absl::ErrnoToStatus(got < 0 ? errno : EFAULT, "process_vm_readv");
      return absl::UnavailableError(absl::StrCat("cannot read the memory of rank ", rank, ": ", error.message()));
    }
    to = static_cast<char*>(to) + got;
    from += static_cast<uint64_t>(got);
    bytes -= static_cast<size_t>(got);
  }
  return absl::OkStatus();
}

absl::Status Neighbours::Believe(int rank) const {
  if (rank == rank_) return absl::OkStatus();
  pollfd ended = {others_[static_cast<size_t>(rank)].pidfd, POLLIN, 0};
  if (poll(&ended, 1, 0) > 0) return absl::UnavailableError(absl::StrCat("the process of rank ", rank, " has ended"));
  // Read after the system call, so that it is not older than the caller's data.
  if (page(rank).failed.load(std::memory_order_seq_cst) != 0) {
    return absl::UnavailableError(absl::StrCat("rank ", rank, " has aborted"));
  }
  return absl::OkStatus();
}

absl::Status Neighbours::Await(int rank, ControlPage::Counter counter, uint64_t number, SteadyPoint deadline) const {
  const ControlPage& theirs = page(rank);
  const auto reached = [&] { return (theirs.*counter).load(std::memory_order_acquire) >= number; };
  for (int spin = 0; spin < kSpins; ++spin) {
    if (reached()) return absl::OkStatus();
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
  while (true) {
    const uint32_t seen = theirs.changes.load(std::memory_order_seq_cst);
    if (reached()) return absl::OkStatus();
    if (own().failed.load(std::memory_order_acquire) != 0) return absl::CancelledError("this rank has failed");
    if (absl::Status s = Believe(rank); !s.ok()) return reached() ? absl::OkStatus() : s;
    const absl::Duration left = Left(deadline);
    if (left <= absl::ZeroDuration()) return absl::DeadlineExceededError(absl::StrCat("rank ", rank, " is late"));
    theirs.WaitForChange(seen, std::min(left, kNap));
  }
}

}  // namespace muster::collectives
