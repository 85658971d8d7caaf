// Optimizers with the numbers that a spec resolves to where it gives none, without weight decay and clipping.
#pragma once

#include <string>

#include "proto/spec.pb.h"

namespace muster {

// `kind`: its name in a spec.
inline Optimizer OptimizerOf(const std::string& kind, double lr) {
  Optimizer o;
  o.set_lr(lr);
  if (kind == "sgd") {
    o.mutable_sgd()->set_momentum(0.9);
  } else if (kind == "lion") {
    o.mutable_lion()->set_beta1(0.9), o.mutable_lion()->set_beta2(0.99);
  } else if (kind == "muon") {
    Muon& m = *o.mutable_muon();
    m.set_momentum(0.95), m.set_nesterov(true), m.set_ns_steps(5), m.set_adjust_lr_fn(ADJUST_LR_FN_ORIGINAL);
    m.set_adamw_lr(lr), m.set_adamw_beta1(0.9), m.set_adamw_beta2(0.999), m.set_adamw_eps(1e-8);
  } else if (kind == "adafactor") {
    Adafactor& a = *o.mutable_adafactor();
    a.set_beta2_decay(-0.8), a.set_eps1(0x1p-23), a.set_eps2(1e-3), a.set_d(1);
  } else {
    o.mutable_adamw()->set_beta1(0.9), o.mutable_adamw()->set_beta2(0.999), o.mutable_adamw()->set_eps(1e-8);
  }
  return o;
}

}  // namespace muster
