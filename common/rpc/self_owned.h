// The owner of a gRPC reactor. gRPC holds only a pointer, from the start of the call to OnDone; other threads hold
// shares.
//
//   class Fetch final : public grpc::ServerUnaryReactor, public SelfOwned<Fetch> {
//    public:
//     void Begin() { loop_->Post([self = shared_from_this()] { self->Finish(grpc::Status::OK); }); }
//     void OnDone() override { Release(); }
//   };
//
//   const std::shared_ptr<Fetch> fetch = Fetch::Make(loop);
//   fetch->Begin();
//   return fetch.get();
#pragma once

#include <memory>
#include <utility>

namespace muster::rpc {

template <typename Reactor>
class SelfOwned : public std::enable_shared_from_this<Reactor> {
 public:
  // The reactor lives until Release, and longer if others hold a share. Pass the pointer to gRPC: without a call there
  // is no OnDone, and so no Release.
  template <typename... Arguments>
  static std::shared_ptr<Reactor> Make(Arguments&&... arguments) {
    auto reactor = std::make_shared<Reactor>(std::forward<Arguments>(arguments)...);
    reactor->SelfOwned::self_ = reactor;
    return reactor;
  }

 protected:
  // In OnDone, once, as its last statement: the object is destroyed unless the caller keeps the result.
  std::shared_ptr<Reactor> Release() { return std::move(self_); }

 private:
  std::shared_ptr<Reactor> self_;  // touched by Make and Release only, with the whole call between them
};

}  // namespace muster::rpc
