#include "coordinator/web/watch_call.h"

#include <utility>

#include "absl/time/clock.h"
#include "common/rpc/rpc.h"

namespace muster::web {
namespace {

class Reader final : public WatchCall,
                     public grpc::ClientReadReactor<WatchItem>,
                     public std::enable_shared_from_this<Reader> {
 public:
  Reader(WatchRequest request, std::function<void(const WatchItem&, NextItem)> item,
         std::function<void(const absl::Status&)> done)
      : request_(std::move(request)), item_handler_(std::move(item)), done_(std::move(done)) {}

  void Start(Jobs::Stub& stub, const std::string& token, absl::Duration limit) {
    self_ = shared_from_this();
    if (limit != absl::InfiniteDuration()) context_.set_deadline(absl::ToChronoTime(absl::Now() + limit));
    rpc::AddCallMetadata(token, context_);
    stub.async()->Watch(&context_, &request_, this);
    AddHold();  // items are asked for outside of gRPC's reactions
    StartRead(&item_);
    StartCall();
  }

  void Cancel() override { context_.TryCancel(); }

  void OnReadDone(bool ok) override {
    if (!ok) return RemoveHold();
    item_handler_(item_, [self = shared_from_this()](bool more) {
      if (more) return self->StartRead(&self->item_);
      self->context_.TryCancel();
      self->RemoveHold();
    });
  }

  void OnDone(const grpc::Status& status) override {
    const std::shared_ptr<Reader> self = std::move(self_);
    item_handler_ = nullptr;
    std::exchange(done_, nullptr)(rpc::FromGrpc(status));
  }

 private:
  const WatchRequest request_;
  std::function<void(const WatchItem&, NextItem)> item_handler_;
  std::function<void(const absl::Status&)> done_;
  grpc::ClientContext context_;
  WatchItem item_;
  std::shared_ptr<Reader> self_;  // until OnDone
};

}  // namespace

std::shared_ptr<WatchCall> StartWatch(Jobs::Stub& stub, const std::string& token, const WatchRequest& request,
                                      absl::Duration limit, std::function<void(const WatchItem&, NextItem next)> item,
                                      std::function<void(const absl::Status&)> done) {
  auto reader = std::make_shared<Reader>(request, std::move(item), std::move(done));
  reader->Start(stub, token, limit);
  return reader;
}

}  // namespace muster::web
