#include "worker/engine/tensor_exchanges.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "models/inventory.h"
#include "models/task.h"
#include "worker/engine/failed.h"

namespace muster::engine {

void TensorExchanges::StartSum(const at::Tensor& values) {
  summed_bytes_ += values.nbytes();
  Start("AllReduce", group_->AllReduce(values));
}

void TensorExchanges::StartSumScattered(const at::Tensor& all) {
  scattered_bytes_ += all.nbytes() / static_cast<size_t>(size());
  Start("ReduceScatter", group_->ReduceScatter({all.view({-1})}));
}

void TensorExchanges::StartGather(const at::Tensor& part, const at::Tensor& all) {
  gathered_bytes_ += part.nbytes();
  all.narrow(0, rank() * part.size(0), part.size(0)).copy_(part);
  Start("AllGather", group_->AllGather({all.view({-1})}));
}

void TensorExchanges::Start(const char* name, std::unique_ptr<collectives::Work> work) {
  ++collectives_;
  under_way_.Start(name, std::move(work));
}

void TensorExchanges::Begin() {
  under_way_.Forget();
  collectives_ = summed_bytes_ = gathered_bytes_ = scattered_bytes_ = 0;
}

void TensorExchanges::End(const TensorExchange& exchange, const Inventory& inventory, const Unit& unit, Pass pass,
                          bool evaluation, bool narrow, int64_t samples) const {
  const TensorExchange::Pass& declared = GoesBack(pass) ? exchange.backward()
                                         : evaluation   ? exchange.evaluation()
                                                        : exchange.forward();
  const auto n = static_cast<uint64_t>(samples);
  const uint64_t rows = n * models::TargetsPerSample(inventory), piece = models::PieceRows(rows, unit.piece_rows());
  const uint64_t pieces = piece == 0 ? 0 : (rows + piece - 1) / piece;
  const uint64_t collectives =
      n == 0 ? 0
             : declared.collectives() + declared.piece_collectives() * pieces +
                   declared.chunked_collectives() * models::RowChunks(rows, pieces, static_cast<uint64_t>(size()));
  const uint64_t summed = n == 0 ? 0 : n * declared.summed_bytes() + declared.constant_bytes();
  const auto is = [&](uint64_t bytes, uint64_t most) {
    return narrow ? bytes <= most && bytes >= most / 2 : bytes == most;
  };
  if (under_way_.empty() && collectives_ == collectives && is(summed_bytes_, summed) &&
      is(gathered_bytes_, n * declared.gathered_bytes()) && is(scattered_bytes_, n * declared.scattered_bytes())) {
    return;
  }
  throw Failed(absl::InternalError(absl::StrCat(
      "the unit summed ", summed_bytes_, ", gathered ", gathered_bytes_, " and scattered ", scattered_bytes_,
      " bytes in ", collectives_, " collectives with ", ranks_, "; the inventory declares ", summed, ", ",
      n * declared.gathered_bytes(), " and ", n * declared.scattered_bytes(), " in ", collectives)));
}

}  // namespace muster::engine
