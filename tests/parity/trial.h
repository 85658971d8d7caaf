// One comparison with PyTorch: the same initial weights, the same real text in order, the same options, on one rank or
// on several (threads of this process with a Gloo group; DistributedDataParallel there).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "proto/spec.pb.h"
#include "testing/temporary_folder.h"
#include "tests/parity/peer.h"
#include "tests/parity/ranks.h"

namespace muster::parity {

struct Trial {
  std::string optimizer = "adamw";
  uint32_t ranks = 1;
  SetStrategy strategy = Ddp;  // of several ranks
  bool fsdp2 = false;          // against FSDP2, else DistributedDataParallel
  uint32_t sequences = 8;      // a step, over all ranks
  uint32_t microbatch = 8;     // of a rank
  double lr = 3e-4;
  std::string mistake;  // a mistake for the peer to make: gpt2_peer.py
  int steps = 50;
  // Else a small GPT-2. A Llama, against the class of transformers that its config.json names.
  std::optional<Model> model = std::nullopt;
};

// Keeps the token file.
class Lab {
 public:
  Lab();
  // Trains the trial's steps; a test failure if a step fails.
  Curve Ours(const Trial& trial) const;
  Curve Theirs(const Trial& trial) const;
  // Infinite if there was nothing to compare.
  Difference Compared(const Trial& trial) const { return Compare(Ours(trial), Theirs(trial)); }

 private:
  TemporaryFolder folder_;
};

// Test failures unless the differences are within the limits, or beyond them.
void ExpectSame(const Trial& trial);
void ExpectCaught(const Trial& trial);

}  // namespace muster::parity
