#include "coordinator/core/links.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/bytes.h"
#include "common/proto_time.h"

namespace muster::core {
namespace {

constexpr size_t kAllPairs = 8;  // nodes
constexpr int kEarlierKept = 8;
constexpr int kLinksKept = 256;  // of a node: its row is bounded

struct LowestRank {
  std::string node;
  uint32_t rank;
};
template <typename NodeOf>
std::vector<LowestRank> LowestRanks(size_t ranks, const NodeOf& node_of) {
  std::vector<LowestRank> lowest;
  std::set<std::string> seen;
  for (size_t rank = 0; rank < ranks; ++rank) {
    if (seen.insert(node_of(rank)).second) lowest.push_back({node_of(rank), static_cast<uint32_t>(rank)});
  }
  return lowest;
}

// Of so many: each pair once, in rounds of pairs that have nothing in common.
std::vector<std::pair<size_t, size_t>> Rounds(size_t count) {
  std::vector<std::pair<size_t, size_t>> pairs;
  if (count < 2) return pairs;
  if (count <= kAllPairs) {
    // As tournaments are drawn: one stays, the others move on by one each round. Of an odd number one rests.
    const size_t even = count + count % 2;
    for (size_t round = 0; round + 1 < even; ++round) {
      for (size_t i = 0; i < even / 2; ++i) {
        const auto at = [&](size_t place) { return place == 0 ? 0 : 1 + (place - 1 + round) % (even - 1); };
        const size_t a = at(i), b = at(even - 1 - i);
        if (a < count && b < count) pairs.emplace_back(std::min(a, b), std::max(a, b));
      }
    }
    return pairs;
  }
  for (const size_t first : {0, 1}) {
    for (size_t i = first; i + 1 < count; i += 2) pairs.emplace_back(i, i + 1);
  }
  pairs.emplace_back(0, count - 1);
  return pairs;
}

const NodeLink* FindLink(const Records& records, const std::string& from, const std::string& to) {
  const NodeEntry* node = records.FindNode(NodeId(from));
  if (node == nullptr) return nullptr;
  for (const NodeLink& link : node->record().links()) {
    if (link.node() == to) return &link;
  }
  return nullptr;
}

bool IsKnown(const Records& records, const std::string& from, const std::string& to, absl::Duration valid_for,
             Now now) {
  const NodeLink* link = FindLink(records, from, to);
  if (link == nullptr || IsSlow(*link)) return false;
  const auto& at = records.FindNode(NodeId(from))->links_measured;
  const auto measured = at.find(to);
  return measured != at.end() && now.steady - measured->second < valid_for;
}

double MedianOf(const google::protobuf::RepeatedField<double>& values) {
  if (values.empty()) return 0;
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  return sorted[sorted.size() / 2];
}

// The link's record in the node's, which keeps the newest ones.
NodeLink& LinkTo(Node& node, const std::string& to) {
  for (NodeLink& link : *node.mutable_links()) {
    if (link.node() == to) return link;
  }
  if (node.links_size() >= kLinksKept) {
    const auto oldest = std::min_element(
        node.links().begin(), node.links().end(),
        [](const NodeLink& a, const NodeLink& b) { return FromProto(a.measured()) < FromProto(b.measured()); });
    node.mutable_links()->erase(oldest);
  }
  NodeLink& link = *node.add_links();
  link.set_node(to);
  std::sort(node.mutable_links()->begin(), node.mutable_links()->end(),
            [](const NodeLink& a, const NodeLink& b) { return a.node() < b.node(); });
  return *std::find_if(node.mutable_links()->begin(), node.mutable_links()->end(),
                       [&](const NodeLink& of) { return of.node() == to; });
}

double TwoDigits(double value) {
  if (value <= 0) return 0;
  const double power = std::pow(10, std::floor(std::log10(value)) - 1);
  return std::round(value / power) * power;
}

bool IsFigure(double value) { return std::isfinite(value) && value > 0; }

// What was not measured this time stays as it was.
void KeepCore(const CoreRates& reported, CoreRates& core) {
  CoreRates good;
  if (IsFigure(reported.socket_bytes_per_second())) {
    good.set_socket_bytes_per_second(reported.socket_bytes_per_second());
  }
  if (IsFigure(reported.top_k_seconds())) good.set_top_k_seconds(reported.top_k_seconds());
  if (IsFigure(reported.power_sgd_seconds())) good.set_power_sgd_seconds(reported.power_sgd_seconds());
  if (IsFigure(reported.int8_seconds())) good.set_int8_seconds(reported.int8_seconds());
  core.MergeFrom(good);
}

// Calls `visit` with the record of each link that ranks on these nodes measure; null: it never was.
template <typename Visit>
void ForLinks(const Records& records, const std::vector<scheduler::RankSlot>& ranks, const Visit& visit) {
  const std::vector<LowestRank> lowest =
      LowestRanks(ranks.size(), [&](size_t rank) { return ranks[rank].node.value(); });
  for (const auto& [a, b] : Rounds(lowest.size())) {
    visit(FindLink(records, lowest[a].node, lowest[b].node));
    visit(FindLink(records, lowest[b].node, lowest[a].node));
  }
}

}  // namespace

bool IsSlow(const NodeLink& link) {
  return link.usual_bytes_per_second() > 0 && link.bytes_per_second() < kSlowLink * link.usual_bytes_per_second();
}

std::vector<LinkPair> PairsToMeasure(const Records& records, const Generation& generation, absl::Duration valid_for,
                                     Now now) {
  const std::vector<LowestRank> lowest = LowestRanks(static_cast<size_t>(generation.ranks_size()), [&](size_t rank) {
    return generation.ranks(static_cast<int>(rank)).node();
  });
  std::vector<LinkPair> pairs;
  for (const auto& [a, b] : Rounds(lowest.size())) {
    if (IsKnown(records, lowest[a].node, lowest[b].node, valid_for, now) &&
        IsKnown(records, lowest[b].node, lowest[a].node, valid_for, now)) {
      continue;
    }
    LinkPair& pair = pairs.emplace_back();
    pair.set_first(lowest[a].rank);
    pair.set_second(lowest[b].rank);
  }
  return pairs;
}

void KeepLinks(Records& records, const JobEntry& job, const RankPlacement& rank,
               const google::protobuf::RepeatedPtrField<RankLink>& links, Transaction& transaction) {
  NodeEntry* from = records.FindNode(NodeId(rank.node()));
  if (from == nullptr) return;
  const Generation& generation = job.newest()->record();
  for (const RankLink& reported : links) {
    const RankPlacement* to = job.newest()->rank(reported.to());
    if (to == nullptr || to->node() == rank.node() || !IsFigure(reported.bytes_per_second()) ||
        !IsFigure(reported.latency_seconds())) {
      continue;
    }
    NodeLink& link = LinkTo(from->machine.fields(), to->node());
    from->links_measured[to->node()] = transaction.now.steady;
    // A worker sends a record again until it is acknowledged.
    if (link.bytes_per_second() == reported.bytes_per_second() &&
        link.latency_seconds() == reported.latency_seconds()) {
      continue;
    }
    const bool was_slow = IsSlow(link);
    if (link.bytes_per_second() > 0) {
      link.add_earlier_bytes_per_second(link.bytes_per_second());
      if (link.earlier_bytes_per_second_size() > kEarlierKept) {
        link.mutable_earlier_bytes_per_second()->erase(link.earlier_bytes_per_second().begin());
      }
    }
    link.set_usual_bytes_per_second(MedianOf(link.earlier_bytes_per_second()));
    link.set_bytes_per_second(reported.bytes_per_second());
    link.set_latency_seconds(reported.latency_seconds());
    if (reported.has_core()) KeepCore(reported.core(), *link.mutable_core());
    *link.mutable_measured() = ToProto(transaction.now.wall);
    transaction.Touch(NodeId(rank.node()));
    if (!IsSlow(link) && !was_slow) continue;
    const std::string figures =
        absl::StrFormat("%s with %s of latency, usually %s", FormatBitRate(link.bytes_per_second()),
                        FormatLatency(link.latency_seconds()), FormatBitRate(link.usual_bytes_per_second()));
    const std::string between = absl::StrCat("the link from ", rank.node(), " to ", to->node());
    if (IsSlow(link)) {
      transaction.AddEvent(&job, generation.number(), rank.node(), "link.slow",
                           absl::StrCat(between, " is slow: ", figures,
                                        "; look for other traffic, errors and the speed of the interfaces there"));
    } else {
      transaction.AddEvent(&job, generation.number(), rank.node(), "link.recovered",
                           absl::StrCat(between, " is no longer slow: ", figures));
    }
  }
}

std::optional<strategies::Link> SlowestLink(const Records& records, const std::vector<scheduler::RankSlot>& ranks) {
  double bytes_per_second = std::numeric_limits<double>::infinity(), seconds = 0;
  bool all = true;
  ForLinks(records, ranks, [&](const NodeLink* link) {
    all &= link != nullptr;
    if (link == nullptr) return;
    bytes_per_second = std::min(bytes_per_second, link->bytes_per_second());
    seconds = std::max(seconds, link->latency_seconds());
  });
  if (!all || seconds == 0) return std::nullopt;
  const double latency = TwoDigits(seconds);
  return strategies::Link{TwoDigits(bytes_per_second), latency, latency};
}

strategies::CoreRates SlowestCore(const Records& records, const std::vector<scheduler::RankSlot>& ranks) {
  strategies::CoreRates slowest;
  double& sockets = slowest.socket_bytes_per_second;
  strategies::Compressing& compressing = slowest.compressing;
  ForLinks(records, ranks, [&](const NodeLink* link) {
    if (link == nullptr) return;
    const CoreRates& core = link->core();
    const double own = core.socket_bytes_per_second();
    if (own > 0) sockets = sockets > 0 ? std::min(sockets, own) : own;
    compressing.top_k = std::max(compressing.top_k, core.top_k_seconds());
    compressing.power_sgd = std::max(compressing.power_sgd, core.power_sgd_seconds());
    compressing.int8 = std::max(compressing.int8, core.int8_seconds());
  });
  for (double* const value : {&sockets, &compressing.top_k, &compressing.power_sgd, &compressing.int8}) {
    *value = TwoDigits(*value);
  }
  return slowest;
}

std::vector<NodeLink> LinksOf(const Records& records, const Generation& generation) {
  std::set<std::string> nodes;
  for (const RankPlacement& rank : generation.ranks()) nodes.insert(rank.node());
  std::vector<NodeLink> links;
  for (const std::string& from : nodes) {
    const NodeEntry* node = records.FindNode(NodeId(from));
    if (node == nullptr) continue;
    for (const NodeLink& link : node->record().links()) {
      if (nodes.contains(link.node())) links.emplace_back(link).set_from(from);
    }
  }
  return links;
}

}  // namespace muster::core
