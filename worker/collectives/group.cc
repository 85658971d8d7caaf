#include "worker/collectives/group.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/collectives/failed_work.h"

namespace muster::collectives {
namespace {

class AllOf final : public Work {
 public:
  explicit AllOf(std::vector<std::unique_ptr<Work>> works) : works_(std::move(works)) {}
  absl::Status Wait() override {
    for (const std::unique_ptr<Work>& work : works_) {
      if (absl::Status status = work->Wait(); !status.ok()) return status;
    }
    return absl::OkStatus();
  }
  bool done() const override {
    return std::all_of(works_.begin(), works_.end(), [](const std::unique_ptr<Work>& work) { return work->done(); });
  }
  std::optional<std::chrono::steady_clock::time_point> done_at() const override {
    std::optional<std::chrono::steady_clock::time_point> last;
    for (const std::unique_ptr<Work>& work : works_) last = std::max(last, work->done_at());
    return last;
  }

 private:
  std::vector<std::unique_ptr<Work>> works_;
};

}  // namespace

std::unique_ptr<Work> Group::AllToAll(const at::Tensor& send, const at::Tensor& receive) {
  if (send.numel() != receive.numel() || send.numel() % size() != 0) {
    return std::make_unique<FailedWork>(
        absl::InvalidArgumentError(absl::StrCat("all-to-all: ", send.numel(), " elements to send and ", receive.numel(),
                                                " to receive, for ", size(), " ranks")));
  }
  return IssueAllToAll(send, receive);
}

std::unique_ptr<Work> Group::IssueAllToAll(const at::Tensor& send, const at::Tensor& receive) {
  const int64_t each = send.numel() / size();
  const auto part = [&](const at::Tensor& of, int of_rank) { return of.narrow(0, of_rank * each, each); };
  std::vector<std::unique_ptr<Work>> works;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank()) works.push_back(Recv(part(receive, peer), peer));
  }
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank()) works.push_back(Send(part(send, peer), peer));
  }
  part(receive, rank()).copy_(part(send, rank()));
  return std::make_unique<AllOf>(std::move(works));
}

absl::Status Connect(Group& group, int from, int to, c10::Device device) {
  const at::Tensor token = at::zeros({1}, at::TensorOptions(at::kFloat).device(device));
  const std::unique_ptr<Work> work = group.rank() == from ? group.Send(token, to) : group.Recv(token, from);
  if (absl::Status status = work->Wait(); !status.ok()) return status;
  (void)token.cpu();  // on a GPU, Wait does not wait for the device
  return group.Health();
}

}  // namespace muster::collectives
