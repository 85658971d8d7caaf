#include "strategies/schedule/edge_rules.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace muster {

EdgeRules::EdgeRules(const Schedule& schedule, const Inventory& inventory)
    : schedule_(schedule),
      chunks_(ChunksOf(inventory)),
      chunk_of_(ChunkByUnit(inventory)),
      last_backward_(chunks_.size(), -1),
      slots_(static_cast<size_t>(std::max(0, schedule.activation_slots))) {
  computed_.resize(static_cast<size_t>(inventory.units_size()));
  std::map<std::string, int32_t> unit_of;
  for (int32_t u = 0; u < inventory.units_size(); ++u) unit_of[inventory.units(u).name()] = u;
  for (size_t t = 0; t < std::min(schedule.tied.size(), static_cast<size_t>(inventory.tied_size())); ++t) {
    const TiedTensor& tensor = inventory.tied(static_cast<int>(t));
    const auto owner = unit_of.find(tensor.owner());
    const bool owned = owner != unit_of.end();
    tied_.push_back(
        {owned ? owner->second : unit_of.at(tensor.user()), owned, !tensor.tensor().frozen(), schedule.tied[t]});
  }
  for (const Op& op : schedule.ops) {
    trains_ |= GoesBack(op.kind);
    if (!GoesBack(op.kind) || op.unit < 0 || op.unit >= inventory.units_size()) continue;
    int32_t& last = last_backward_[chunk_of_[op.unit]];
    last = last < 0 ? op.unit : std::min(last, op.unit);
  }
}

EdgeRules::Finding EdgeRules::Run(const Op& op, size_t at) {
  const OpTraits& traits = Traits(op.kind);
  if (schedule_.edges.empty()) {
    if (traits.edge == EdgeUse::kNone) return {};
    return {.wrong = "there is no other stage"};
  }
  switch (traits.edge) {
    case EdgeUse::kNone:
      if (traits.pass == Pass::kBackwardWeights) computed_[op.unit].push_back(at);
      return traits.pass == Pass::kForward || GoesBack(op.kind) ? Computed(op, at) : Finding{};
    case EdgeUse::kSendActivation:
      return Send(op, at, kActivation);
    case EdgeUse::kReceiveActivation:
      return Receive(op, at, kActivation);
    case EdgeUse::kSendGradient:
      return Send(op, at, kGradient);
    case EdgeUse::kReceiveGradient:
      return Receive(op, at, kGradient);
    default:
      return MoveTied(op, at);
  }
}

EdgeRules::Finding EdgeRules::MoveTied(const Op& op, size_t at) {
  const EdgeUse edge = Traits(op.kind).edge;
  const bool of_gradient = edge == EdgeUse::kSendTiedGradient || edge == EdgeUse::kReceiveTiedGradient,
             owned = edge == EdgeUse::kSendTied || edge == EdgeUse::kReceiveTiedGradient;
  bool any = false;
  for (Tied& tied : tied_) {
    const int32_t group = of_gradient ? tied.edges.gradient : tied.edges.parameters;
    std::optional<size_t>& moved = of_gradient ? tied.gradient : tied.parameters;
    if (tied.unit != op.unit || tied.owned != owned || group != op.group || moved.has_value()) continue;
    if (of_gradient && !tied.trained) continue;
    moved = at, any = true;
  }
  if (!any) return {.wrong = "no tensor of the unit is tied over this edge, or it comes twice"};
  return {.follows = of_gradient ? computed_[op.unit] : std::vector<size_t>{}};
}

EdgeRules::Finding EdgeRules::Receive(const Op& op, size_t at, Direction direction) {
  const int32_t chunk = chunk_of_[op.unit];
  const ChunkSpan& span = chunks_[chunk];
  const ChunkEdges& edges = schedule_.edges[chunk];
  const int32_t group = direction == kActivation ? edges.receive : edges.receive_gradient;
  if (op.unit != (direction == kActivation ? span.begin : span.end - 1) || group < 0) {
    return {.wrong = "nothing of the unit comes from another stage"};
  }
  if (op.group != group) return {.wrong = "comes over another edge"};
  if (op.slot < 0) return {.wrong = "is received into no slot"};
  const Key key{chunk, op.microbatch};
  if (!received_[direction].emplace(key, Received{at, op.slot}).second) return {.wrong = "is received twice"};
  Slot& slot = slots_[op.slot];
  if (slot.owner.has_value()) {
    return {.wrong = absl::StrCat("slot ", op.slot, " is still held by m", slot.owner->second)};
  }
  slot.owner = key;
  Finding finding;
  if (slot.freed.has_value()) finding.follows.push_back(*slot.freed);
  return finding;
}

EdgeRules::Finding EdgeRules::Send(const Op& op, size_t at, Direction direction) {
  const int32_t chunk = chunk_of_[op.unit];
  const ChunkSpan& span = chunks_[chunk];
  const ChunkEdges& edges = schedule_.edges[chunk];
  const int32_t group = direction == kActivation ? edges.send : edges.send_gradient;
  if (op.unit != (direction == kActivation ? span.end - 1 : span.begin) || group < 0) {
    return {.wrong = "nothing of the unit goes to another stage"};
  }
  if (op.group != group) return {.wrong = "goes over another edge"};
  const Key key{chunk, op.microbatch};
  const auto computed = to_send_[direction].find(key);
  if (computed == to_send_[direction].end()) return {.wrong = "is sent before it is computed, or twice"};
  const size_t made = computed->second;
  to_send_[direction].erase(computed);
  sent_[group].push_back(at);
  return {.follows = {made}};
}

EdgeRules::Finding EdgeRules::Computed(const Op& op, size_t at) {
  const int32_t chunk = chunk_of_[op.unit];
  const ChunkSpan& span = chunks_[chunk];
  const ChunkEdges& edges = schedule_.edges[chunk];
  const bool forward = Traits(op.kind).pass == Pass::kForward;
  const Direction direction = forward ? kActivation : kGradient;
  const bool begins = op.unit == (forward ? span.begin : span.end - 1),
             ends = op.unit == (forward ? span.end - 1 : last_backward_[chunk]),
             receives = (forward ? edges.receive : edges.receive_gradient) >= 0,
             sends = (forward ? edges.send : edges.send_gradient) >= 0;
  const Key key{chunk, op.microbatch};
  Finding finding;
  if (Traits(op.kind).gradients == GradientUse::kAdd) computed_[op.unit].push_back(at);
  for (const Tied& tied : tied_) {
    if (tied.unit != op.unit || tied.owned) continue;
    if (!tied.parameters.has_value()) return {.wrong = "reads a tied tensor that is not received"};
    if (tied.gradient.has_value()) return {.wrong = "adds to the gradient of a tied tensor that is sent"};
    finding.follows.push_back(*tied.parameters);
  }
  if (begins && receives) {
    const auto received = received_[direction].find(key);
    if (received == received_[direction].end()) {
      return {.wrong = forward ? "reads an activation that is not received" : "reads a gradient that is not received"};
    }
    finding.follows.push_back(received->second.at);
  }
  if (!ends) return finding;
  if (sends) {
    const std::vector<size_t>& sent = sent_[forward ? edges.send : edges.send_gradient];
    if (sent.size() >= kOutputsInFlight) finding.follows.push_back(sent[sent.size() - kOutputsInFlight]);
    to_send_[direction][key] = at;
  }
  if (!forward || !HasBackward(key)) Free(key, at);
  return finding;
}

void EdgeRules::Free(const Key& key, size_t op) {
  for (std::map<Key, Received>& received : received_) {
    const auto found = received.find(key);
    if (found == received.end() || found->second.slot < 0) continue;
    slots_[found->second.slot] = {std::nullopt, op};
    found->second.slot = -1;
  }
}

std::optional<std::string> EdgeRules::Left() const {
  for (const auto& to_send : to_send_) {
    if (to_send.empty()) continue;
    return absl::StrCat("what chunk ", to_send.begin()->first.first, " computed of m", to_send.begin()->first.second,
                        " is never sent");
  }
  for (const Tied& tied : tied_) {
    if (!tied.parameters.has_value()) return "a tied tensor is not moved";
    if (trains_ && tied.trained && !tied.gradient.has_value()) return "the gradient of a tied tensor is not moved";
  }
  for (const Slot& slot : slots_) {
    if (slot.owner.has_value()) return absl::StrCat("what was received for m", slot.owner->second, " is never read");
  }
  return std::nullopt;
}

}  // namespace muster
