// Makes the tensors of a block of code on the meta device: they have a shape and no memory.
#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>

namespace muster::plugins {

// Redirects what this thread makes with LibTorch, whatever device it names. C++ has no torch.device("meta") as Python
// has; this is the same by the dispatcher: a fallback that sees every operator replaces the argument `device`.
class OnMetaDevice {
 public:
  OnMetaDevice();

 private:
  c10::impl::IncludeDispatchKeyGuard redirected_;
};

}  // namespace muster::plugins
