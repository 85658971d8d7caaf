#include "worker/engine/exchanges.h"

#include <ATen/ops/empty.h>

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "worker/engine/failed.h"

namespace muster::engine {

at::Tensor Exchanges::Gather(const at::Tensor& values) {
  at::Tensor all = at::empty({group_.size(), values.numel()}, values.options());
  all[group_.rank()].copy_(values.view({-1}));
  gathered_bytes_ += values.nbytes();
  Finish("AllGather", group_.AllGather({all.view({-1})}));
  return all;
}

void Exchanges::Sum(const at::Tensor& values) {
  summed_bytes_ += values.nbytes();
  Finish("AllReduce", group_.AllReduce(values));
}

void Exchanges::Finish(const char* name, std::unique_ptr<collectives::Work> work) {
  ++collectives_;
  under_way_.Start(name, std::move(work));
  under_way_.Finish();
}

void Exchanges::Begin() {
  collectives_ = 0;
  gathered_bytes_ = summed_bytes_ = 0;
}

void Exchanges::End(const Exchange& declared, Pass pass) const {
  const bool backward = GoesBack(pass);
  const uint64_t gathered = backward ? 0 : declared.gathered_bytes(), summed = backward ? declared.summed_bytes() : 0;
  if (collectives_ == declared.collectives() && gathered_bytes_ == gathered && summed_bytes_ == summed) return;
  throw Failed(absl::InternalError(absl::StrCat(
      "the unit exchanged ", gathered_bytes_, " gathered and ", summed_bytes_, " summed bytes in ", collectives_,
      " collectives; the inventory declares ", gathered, " and ", summed, " in ", declared.collectives())));
}

}  // namespace muster::engine
