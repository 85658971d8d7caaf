// This rank's part of a checkpoint: the parameters and optimizer state that it owns. Where those are on a GPU, also
// their copy in host memory: one page-locked buffer, which exists only from the first checkpoint on, or while one is
// loaded.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "worker/engine/access_order.h"
#include "worker/engine/engine.h"
#include "worker/engine/optimizer.h"
#include "worker/engine/storage.h"

namespace muster::engine {

class State {
 public:
  // `extents` outlive the state. Views are of a copy in host memory of what is on a GPU; `copy_all`: of everything.
  State(const std::vector<OwnedExtent>* extents, bool copy_all, uint32_t replica)
      : extents_(extents), copy_all_(copy_all), replica_(static_cast<int32_t>(replica)) {}
  void AddParameters();
  // Parts of one kind come in the order of the elements.
  void Add(const StatePart& part);
  // What a step's passes change, of the trained elements from `own` on; each replica has its own.
  void AddOfReplica(const std::string& kind, int64_t own, const at::Tensor& values);
  // Likewise a factor of whole rows of a tensor, whose first trained element is `own`.
  void AddFactorOfReplica(const std::string& kind, int64_t own, const at::Tensor& values);
  // Of kind "buffer". `tensor` outlives the state.
  void AddBuffer(const Tensor* tensor, const at::Tensor& values);
  bool live() const { return live_; }  // some Views are of what training changes
  // Of a copy: what the two below found last, or zeros; valid until FromHost.
  std::vector<StateView> Views();
  // Copy to the host what the passes of a step change, and what only its update does. Neither waits for the device.
  void BuffersToHost();
  void OwnedToHost();
  std::vector<Access> OwnedToHostAccesses();
  // Frees the copy.
  void FromHost();

 private:
  struct OwnedState {
    const Tensor* tensor;
    std::vector<uint64_t> shape;  // the tensor's, or a factor's
    uint64_t first_row = 0;       // of those that it is a factor of
    at::Tensor values;
    uint64_t first = 0;  // element of `box`
    models::FlatBox box = {};
    bool counts = true, of_replica = false;
    int64_t begin = -1;  // in the copy, whose elements have 4 bytes; -1: there is none
  };
  struct Kind {
    std::string name;
    std::vector<OwnedState> states;
  };
  Kind& KindOf(const std::string& name);
  void Allocate();
  enum class Which { kAll, kPasses, kUpdate };  // by what changes it
  // Of what has a copy: visit(values, its copy).
  template <typename Visit>
  void ForEachCopy(Which which, const Visit& visit);
  void AddState(Kind& kind, const OwnedExtent& extent, const at::Tensor& values);
  void AddState(Kind& kind, OwnedState state);
  at::Tensor CopyOf(const OwnedState& state) const;

  const std::vector<OwnedExtent>* const extents_;
  const bool copy_all_;
  const int32_t replica_;
  std::vector<Kind> kinds_;
  int64_t elements_ = 0;             // that have a copy
  bool gpu_ = false, live_ = false;  // some are on a GPU, or have no copy
  at::Tensor copy_;                  // undefined: none
};

}  // namespace muster::engine
