#include "strategies/schedule/schedule.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/sha256.h"

namespace muster {
namespace {

// `groups`: of its schedule; null: unknown.
std::string GroupName(const Op& op, const std::vector<GroupSpec>* groups) {
  const auto group = static_cast<size_t>(op.group);
  if (op.group < kGroups) return Print(CommonGroups()[group]);
  if (Traits(op.kind).edge != EdgeUse::kNone) return absl::StrCat("edge ", op.group - kGroups);
  return groups != nullptr && group < groups->size() ? Print((*groups)[group]) : absl::StrCat("group ", op.group);
}

}  // namespace

bool UsesGroup(const Schedule& schedule, int32_t group) {
  return std::any_of(schedule.ops.begin(), schedule.ops.end(), [&](const Op& op) { return op.group == group; });
}

Axes AxesOf(const Schedule& schedule, int32_t group) {
  const auto g = static_cast<size_t>(group);
  return group >= 0 && g < schedule.groups.size() ? schedule.groups[g].axes : kNoAxis;
}

const char* Name(Stream stream) {
  switch (stream) {
    case Stream::kCompute:
      return "compute";
    case Stream::kGather:
      return "gather";
    case Stream::kReduce:
      return "reduce";
    case Stream::kTransfer:
      return "transfer";
    case Stream::kFetch:
      return "fetch";
    case Stream::kSendActivations:
      return "send activations";
    case Stream::kSendActivationsBack:
      return "send activations back";
    case Stream::kReceiveActivations:
      return "receive activations";
    case Stream::kReceiveActivationsBack:
      return "receive activations back";
    case Stream::kSendGradients:
      return "send gradients";
    case Stream::kSendGradientsBack:
      return "send gradients back";
    case Stream::kReceiveGradients:
      return "receive gradients";
    case Stream::kReceiveGradientsBack:
      return "receive gradients back";
    case Stream::kGatherBetween:
      return "gather between nodes";
    case Stream::kReduceBetween:
      return "reduce between nodes";
  }
  return "?";
}

namespace {

// `unit`: from its index to its name.
template <typename UnitName>
std::string PrintWith(const Op& op, const UnitName& unit, const std::vector<GroupSpec>* groups = nullptr) {
  std::string line(Traits(op.kind).name);
  if (op.unit >= 0) absl::StrAppend(&line, " ", unit(op.unit));
  if (op.unit_end > op.unit + 1) absl::StrAppend(&line, "..", unit(op.unit_end - 1));
  if (op.microbatch >= 0) absl::StrAppend(&line, " m", op.microbatch);
  if (op.stream != Stream::kCompute) absl::StrAppend(&line, " on ", Name(op.stream));
  if (op.group >= 0) absl::StrAppend(&line, " in ", GroupName(op, groups));
  if (op.slot >= 0) absl::StrAppend(&line, " slot ", op.slot);
  if (op.even) absl::StrAppend(&line, " even");
  if (!op.waits.empty()) {
    absl::StrAppend(&line, " after");
    for (const int32_t w : op.waits) absl::StrAppend(&line, " ", w);
  }
  return line;
}

}  // namespace

namespace {

std::string PrintOf(const Op& op, const Inventory& inventory, const std::vector<GroupSpec>* groups) {
  const auto unit = [&](int32_t u) {
    return u >= 0 && u < inventory.units_size() ? inventory.units(u).name() : absl::StrCat("unit ", u);
  };
  return PrintWith(op, unit, groups);
}

}  // namespace

std::string Print(const Op& op, const Inventory& inventory) { return PrintOf(op, inventory, nullptr); }

std::string Print(const Op& op, const std::vector<std::string>& units) {
  return PrintWith(op, [&](int32_t u) {
    return u >= 0 && static_cast<size_t>(u) < units.size() ? units[u] : absl::StrCat("unit ", u);
  });
}

std::string Print(const Schedule& schedule, const Inventory& inventory) {
  std::string text;
  for (const Op& op : schedule.ops) absl::StrAppend(&text, PrintOf(op, inventory, &schedule.groups), "\n");
  return text;
}

std::string Digest(const Schedule& schedule) {
  constexpr size_t kChunkBytes = 64 * 1024;  // the whole text of a large schedule has 100 MB
  Sha256 sha;
  std::string canonical =
      absl::StrCat("v4 ", schedule.microbatches, " ", schedule.slots, " ", schedule.gradient_slots, "\n");
  if (schedule.input_slots > 0 || schedule.host_input_slots > 0) {
    absl::StrAppend(&canonical, "inputs ", schedule.input_slots, " ", schedule.host_input_slots, "\n");
  }
  if (!schedule.edges.empty() || schedule.groups.size() > static_cast<size_t>(kGroups)) {
    absl::StrAppend(&canonical, "activations ", schedule.activation_slots, "\n");
    for (const GroupSpec& group : schedule.groups) {
      absl::StrAppend(&canonical, "group ", static_cast<int>(group.axes), " ", static_cast<int>(group.channel), " ",
                      group.from, " ", group.to, "\n");
    }
    for (const ChunkEdges& edges : schedule.edges) {
      absl::StrAppend(&canonical, "edges ", edges.receive, " ", edges.send, " ", edges.receive_gradient, " ",
                      edges.send_gradient, "\n");
    }
    for (const TiedEdges& tied : schedule.tied) {
      absl::StrAppend(&canonical, "tied ", tied.parameters, " ", tied.gradient, "\n");
    }
  }
  if (schedule.two_exchanges) canonical += "two exchanges\n";
  for (const Op& op : schedule.ops) {
    absl::StrAppend(&canonical, static_cast<int>(op.kind), " ", op.unit, " ", op.unit_end, " ", op.microbatch, " ",
                    static_cast<int>(op.stream), " ", op.group, " ");
    absl::StrAppend(&canonical, op.slot, " ", op.even ? 1 : 0);
    for (const int32_t w : op.waits) absl::StrAppend(&canonical, " ", w);
    absl::StrAppend(&canonical, "\n");
    if (canonical.size() < kChunkBytes) continue;
    sha.Update(canonical);
    canonical.clear();
  }
  sha.Update(canonical);
  return sha.FinishHex();
}

}  // namespace muster
