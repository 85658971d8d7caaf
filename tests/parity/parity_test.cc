// A single rank against plain PyTorch: same initial weights, same real text in order, same numbers. The limits catch
// real mistakes: fp32 is 3e-7 (losses) and 8e-6 (gradient norms) from float64, and each of the mistakes below exceeds
// them.
//
// The peer's interpreter is $MUSTER_PEER_PYTHON (./test.sh sets it; tools/fetch_torch.sh peer makes it).
#include <gtest/gtest.h>

#include "tests/parity/trial.h"

namespace muster::parity {
namespace {

TEST(Parity, AdamW) { ExpectSame({}); }
TEST(Parity, AdamWAccumulatingFour) { ExpectSame({.microbatch = 2}); }
TEST(Parity, AdamWSizesThatDoNotDivide) { ExpectSame({.sequences = 7, .microbatch = 3}); }
TEST(Parity, Sgd) { ExpectSame({.optimizer = "sgd", .lr = 0.1}); }
TEST(Parity, SgdAccumulatingFour) { ExpectSame({.optimizer = "sgd", .microbatch = 2, .lr = 0.1}); }
TEST(Parity, Lion) { ExpectSame({.optimizer = "lion", .lr = 1e-4}); }
TEST(Parity, LionSizesThatDoNotDivide) {
  ExpectSame({.optimizer = "lion", .sequences = 7, .microbatch = 3, .lr = 1e-4});
}

TEST(Parity, Muon) { ExpectSame({.optimizer = "muon", .lr = 2e-4}); }
TEST(Parity, MuonSizesThatDoNotDivide) {
  ExpectSame({.optimizer = "muon", .sequences = 7, .microbatch = 3, .lr = 2e-4});
}

TEST(Parity, Adafactor) { ExpectSame({.optimizer = "adafactor", .lr = 1e-3}); }
TEST(Parity, AdafactorSizesThatDoNotDivide) {
  ExpectSame({.optimizer = "adafactor", .sequences = 7, .microbatch = 3, .lr = 1e-3});
}

// A test that cannot fail shows nothing: each of these mistakes must exceed the limits.
TEST(Parity, CatchesWrongBetas) { ExpectCaught({.mistake = "betas"}); }
TEST(Parity, CatchesWrongEps) { ExpectCaught({.mistake = "eps"}); }
TEST(Parity, CatchesForgottenDecayExclusion) { ExpectCaught({.mistake = "decay_all"}); }
TEST(Parity, CatchesTheOtherGelu) { ExpectCaught({.lr = 1e-3, .mistake = "gelu"}); }
TEST(Parity, CatchesMissingClipping) { ExpectCaught({.optimizer = "sgd", .lr = 0.1, .mistake = "no_clip"}); }
TEST(Parity, CatchesMeansOfUnevenMicrobatches) {
  ExpectCaught({.sequences = 7, .microbatch = 3, .mistake = "mean_of_means"});
}
TEST(Parity, CatchesLionsBetasMixedUp) {
  for (const char* mistake : {"betas", "one_beta", "coupled_decay"}) {
    ExpectCaught({.optimizer = "lion", .lr = 1e-4, .mistake = mistake});
  }
}

TEST(Parity, CatchesAdafactorsOptionsMixedUp) {
  for (const char* mistake : {"decay_all", "eps", "beta2_decay"}) {
    ExpectCaught({.optimizer = "adafactor", .lr = 1e-3, .mistake = mistake});
  }
}
TEST(Parity, CatchesMuonForTheEmbeddingAndItsOptionsMixedUp) {
  for (const char* mistake : {"muon_embedding", "no_nesterov", "ns_steps"}) {
    ExpectCaught({.optimizer = "muon", .lr = 2e-4, .mistake = mistake});
  }
}

}  // namespace
}  // namespace muster::parity
