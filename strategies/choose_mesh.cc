#include "strategies/choose_mesh.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "common/bytes.h"
#include "models/inventory.h"
#include "strategies/bounds.h"
#include "strategies/compression.h"
#include "strategies/optimizer_plan.h"
#include "strategies/schedule/build.h"

namespace muster::strategies {
namespace {

constexpr double kSlower = 1.02;    // a simpler mix may take so much longer
constexpr size_t kShown = 5;        // mixes that are reported
constexpr size_t kMostUnfit = 128;  // are planned by their time, where nothing fits
constexpr size_t kMostLeast = 16;   // are planned by their memory, then, whatever their bounds
constexpr int kTriesOfAMesh = 3;
constexpr uint64_t kWorkPerRank = 1000;              // of a plan and its prediction
constexpr uint64_t kWorkPerUnit = 1000;              // of an inventory
constexpr uint64_t kWorkPerLook = 5;                 // comparing a way with one that was planned
constexpr double kBudgetShare = 0.5;                 // the rest is for the plan of the chosen one
constexpr uint64_t kGPipeUnitMicrobatches = 32'000;  // four times as many as an outline has of another schedule
constexpr uint32_t kMaxStages = 256;
constexpr uint32_t kMaxTensorRanks = 16;
constexpr uint32_t kMaxContextRanks = 64;

// The model, computed by so many ranks together, of sequences that so many ranks share.
struct Division {
  Division(Inventory of, absl::Span<const RankPlace> ranks, const Hardware& hardware)
      : inventory(std::move(of)), share(models::ShareOf(inventory, 0)), bounds(share, ranks, hardware) {}
  Division(const Division&) = delete;
  Division& operator=(const Division&) = delete;

  const Inventory inventory, share;
  Bounds bounds;
};

// Ranks that share a sequence: of data ranks that outnumber the sequences of a step so many that none is idle; or,
// where nothing else fits, any number.
enum class SequenceSharing { kOfIdleRanks, kAny };

// Where no backward splits, zero_bubble of one chunk is 1F1B. Of two chunks it is a schedule of its own: its chunks lie
// in a V.
bool IsRepeated(const PipelineShape& shape, const Division& division) {
  const auto& units = division.share.units();
  return shape.schedule == PIPELINE_SCHEDULE_ZERO_BUBBLE && shape.chunks == 1 &&
         std::none_of(units.begin(), units.end(), SplitsBackward);
}

struct Way {
  Train train;
  const Division* division = nullptr;
  Least least;
  size_t order = 0;   // the simplest first
  size_t mix = 0;     // the same for those that differ in their microbatch alone
  std::string unfit;  // empty: its lower bound fits
};

// A way that was planned.
struct Planned {
  const Way* way = nullptr;
  uint64_t peak = 0;
  std::string unfit;
  double seconds = 0, compute = 0, exposed = 0;  // of the stage that computes longest
  double bubble() const { return std::max(0.0, seconds - compute - exposed); }
};

// InvalidArgument begins with the field's path.
std::string WhyNotPlanned(const absl::Status& status) {
  if (!absl::IsInvalidArgument(status)) return "is too much work to plan";
  const absl::string_view message = status.message();
  const size_t path = message.find(": ");
  return absl::StrCat("cannot be planned: ", path == absl::string_view::npos ? message : message.substr(path + 2));
}

uint32_t StagesOf(const Train& train) { return std::max(1u, train.parallel().pipeline()); }
uint32_t TensorOf(const Train& train) { return std::max(1u, train.parallel().tensor()); }
uint32_t ContextOf(const Train& train) { return std::max(1u, train.parallel().context()); }
// Stages, and ranks that divide units and sequences.
std::tuple<uint32_t, uint32_t, uint32_t> ModelMeshOf(const Train& train) {
  return {StagesOf(train), TensorOf(train), ContextOf(train)};
}
uint32_t ScheduleOf(const Train& train) { return train.pipeline().schedule(); }

// Whether each node has a multiple of so many neighboring ranks, so that they need not cross nodes.
bool FillNodes(absl::Span<const RankPlace> ranks, uint32_t tensor) {
  if (ranks.size() % tensor != 0) return false;
  const Mesh mesh = WithReplicasFor({.tensor = tensor}, static_cast<uint32_t>(ranks.size()));
  for (const std::vector<uint32_t>& group : GroupsOf(mesh, {.axes = kTensorAxis})) {
    for (const uint32_t rank : group) {
      if (ranks[rank].node != ranks[group[0]].node) return false;
    }
  }
  return true;
}

// How many ranks may share a sequence, of so many with tokens of their own: two runs of them each (models/sequence.h).
// Those of kAny come beside the others.
std::vector<uint32_t> ContextsToTry(uint32_t data_ranks, uint32_t sequences, uint64_t tokens, SequenceSharing sharing) {
  const auto divide = [&](uint32_t n) {
    return n <= kMaxContextRanks && data_ranks % n == 0 && tokens % (2 * uint64_t{n}) == 0;
  };
  uint32_t none_idle = 1;
  while (data_ranks / none_idle > sequences && divide(2 * none_idle)) none_idle *= 2;
  if (sharing == SequenceSharing::kOfIdleRanks) {
    return none_idle > 1 ? std::vector<uint32_t>{1, none_idle} : std::vector<uint32_t>{1};
  }
  std::vector<uint32_t> all;
  for (uint32_t n = 2; divide(n); n *= 2) {
    if (n != none_idle) all.push_back(n);
  }
  return all;
}

std::vector<uint32_t> MicrobatchesToTry(const Train& train, const Inventory& inventory, uint32_t sample_ranks) {
  const auto share = static_cast<uint32_t>(ShareOf(train.batch().sequences(), sample_ranks, 0u).sequences);
  std::vector<uint32_t> all;
  if (train.batch().microbatch() > 0) {
    all = {std::min(share, train.batch().microbatch())};
  } else if (models::DependsOnMicrobatches(inventory)) {
    all = {share};  // the default
  } else {
    for (uint32_t m = 1; m < share; m *= 2) all.push_back(m);
    all.push_back(share);
  }
  const auto units = static_cast<uint64_t>(inventory.units_size());
  uint64_t most = kMaxUnitMicrobatches;
  // A plan by GPipe has all microbatches (Outline). With so many that it would take the work of several other plans,
  // the way has lost: 1F1B takes about as long, in less memory.
  if (ScheduleOf(train) == PIPELINE_SCHEDULE_GPIPE) {
    most = std::min(most, std::max(kGPipeUnitMicrobatches, 4 * StagesOf(train) * units));
  }
  std::erase_if(all, [&](uint32_t m) { return (share + m - 1) / m * units > most; });
  return all;
}

struct Tries {
  bool may_look_unfit = true;                   // Search::LooksUnfit
  std::optional<int> of_a_mesh = std::nullopt;  // so many of each, or one that fits
};

class Search {
 public:
  Search(const Train& train, const Inventory& inventory, absl::Span<const RankPlace> ranks, const Hardware& hardware,
         Budget* budget)
      : train_(train), inventory_(inventory), ranks_(ranks), hardware_(hardware), budget_(budget) {}

  // Every way to run, with its bounds. A mesh whose cut, or whose ways, would take more than its part of the budget is
  // left out, and so is one whose stages share tensors as no schedule can move them. Errors of the budget, or
  // InvalidArgument: all are.
  absl::Status List(bool offload, SequenceSharing sharing) {
    const uint32_t all = static_cast<uint32_t>(ranks_.size()), units = static_cast<uint32_t>(inventory_.units_size());
    list_until_ = budget_->spent() + budget_->left() / 2;  // the rest is for their plans
    const bool cuts = models::CheckOutputs(inventory_).ok() && !train_.offload().activations() &&
                      !models::DependsOnMicrobatches(inventory_);
    const uint64_t tokens = models::TargetsPerSample(inventory_);
    for (uint32_t stages = 1; stages <= std::min({all, units, kMaxStages}); ++stages) {
      if (all % stages != 0 || (stages > 1 && !cuts)) continue;
      for (uint32_t tensor = 1; tensor <= kMaxTensorRanks && all / stages % tensor == 0; tensor *= 2) {
        const uint32_t data_ranks = all / stages / tensor, sequences = train_.batch().sequences();
        for (const uint32_t context : ContextsToTry(data_ranks, sequences, tokens, sharing)) {
          const absl::StatusOr<Division*> division = DivisionOf(tensor, context);
          if (division.ok() && *division == nullptr) continue;
          const absl::Status status = division.ok() ? ListMesh(stages, **division, offload)
                                                    : LeaveOut(MeshOf(stages, tensor, context), division.status());
          if (!status.ok()) return status;
        }
      }
    }
    return ways_.empty() && !left_out_.empty() ? left_out_[0].second : absl::OkStatus();
  }

  // Plans them, those that may be fastest first; and, if none of these fits, those that may need least. One of each
  // mesh comes first, and what would be shown: bounds of different ones are not equally close. Then come those that
  // look as if they fit, and last the others, until none is left that may be among the fastest, or the budget is spent.
  // While nothing fits, at most `share` of the work that is left is spent.
  absl::Status Plan(double share) {
    plan_until_ = budget_->spent() + static_cast<uint64_t>(share * static_cast<double>(budget_->left()));
    exhausted_ = false;
    const size_t unfit = planned_.size() + kMostUnfit;
    const auto seconds = [](const Way& way) { return way.least.seconds; };
    absl::Status status = PlanInOrder(unfit, seconds, {.may_look_unfit = false, .of_a_mesh = kTriesOfAMesh});
    if (status.ok()) status = PlanShown();
    for (const bool may_look_unfit : {false, true}) {
      if (status.ok()) status = PlanInOrder(unfit, seconds, {.may_look_unfit = may_look_unfit});
    }
    if (!status.ok() || AnyFits()) return status;
    status = PlanInOrder(unfit + kMostUnfit / 2, [](const Way& way) { return static_cast<double>(way.least.bytes()); });
    return status.ok() && AnyFits() ? PlanInOrder(0, seconds) : status;
  }

  // Where nothing fits, also those that need least by their bounds, though these may not fit, so that the smallest is
  // reported. One of each mesh: what a bound leaves out, such as the buffers of communicators, depends most on that.
  // If none of these can be planned at all, any that can. InvalidArgument: none can.
  absl::Status PlanLeast() {
    std::map<std::tuple<uint32_t, uint32_t, uint32_t>, const Way*> of_mesh;
    std::vector<const Way*> all;
    for (const Way& way : ways_) {
      const Way*& least = of_mesh[ModelMeshOf(way.train)];
      if (least == nullptr || way.least.bytes() < least->least.bytes()) least = &way;
      all.push_back(&way);
    }
    std::vector<const Way*> order;
    for (const auto& [mesh, way] : of_mesh) order.push_back(way);
    for (std::vector<const Way*>* ways : {&order, &all}) {
      std::stable_sort(ways->begin(), ways->end(),
                       [](const Way* a, const Way* b) { return a->least.bytes() < b->least.bytes(); });
    }
    const size_t most = planned_.size() + kMostLeast;
    for (const Way* way : order) {
      if (exhausted_ || planned_.size() >= most) break;
      if (way->least.bytes() >= mixes_[way->mix].unfit_bytes) continue;  // it was planned
      if (absl::Status s = PlanOne(*way); !s.ok()) return s;
    }
    for (const Way* way : all) {
      if (!planned_.empty()) return absl::OkStatus();
      if (mixes_[way->mix].unfit_bytes == 0) continue;
      if (absl::Status s = PlanOne(*way); !s.ok()) return s;
    }
    if (!planned_.empty()) return absl::OkStatus();
    if (!cannot_.ok()) return cannot_;
    return absl::InvalidArgumentError(
        absl::StrCat("parallel: of ", ranks_.size(), " ranks no number of stages and no microbatch can be planned"));
  }

  size_t ways() const { return ways_.size(); }

  bool AnyFits() const {
    return std::any_of(planned_.begin(), planned_.end(), [](const Planned& p) { return p.unfit.empty(); });
  }

  // REQUIRES: something was planned.
  absl::StatusOr<Choice> Choose() const;

  // Of one of the ways.
  const Inventory& InventoryOf(const Train& train) const {
    return divisions_.at({TensorOf(train), ContextOf(train)})->inventory;
  }

 private:
  // Whether recomputation is why a mix lost that splits its backwards.
  bool SplitsBadly(const Planned& loser) const;

  // Null: the model cannot be divided so, or not between neighboring ranks of a node. With sequence parallelism, which
  // moves as many bytes and keeps less, where the context can be. Errors of the budget.
  absl::StatusOr<Division*> DivisionOf(uint32_t tensor, uint32_t context) {
    const std::pair key(tensor, context);
    if (const auto found = divisions_.find(key); found != divisions_.end()) return found->second.get();
    absl::StatusOr<std::unique_ptr<Division>> made = MakeDivision(tensor, context);
    if (!made.ok()) return made.status();
    return divisions_.emplace(key, *std::move(made)).first->second.get();
  }

  absl::StatusOr<std::unique_ptr<Division>> MakeDivision(uint32_t tensor, uint32_t context) {
    if (!FillNodes(ranks_, tensor) || (tensor > 1 && NeedsWholeTensors(train_.optimizer()))) return nullptr;
    // What all ranks of a unit hold alike, each would compress among other neighbors, and it would no longer be alike.
    if (tensor > 1 && Compresses(train_.communication())) return nullptr;
    const auto what = [&] { return What(); };
    if (budget_->spent() > list_until_) return absl::ResourceExhaustedError(what());
    const uint64_t units = static_cast<uint64_t>(inventory_.units_size()), bytes = 2 * inventory_.SpaceUsedLong();
    absl::Status status = Spend(budget_, kWorkPerUnit * units, what);
    if (status.ok()) status = Hold(budget_, (divisions_.size() + 1) * bytes, what);
    if (!status.ok()) return status;
    for (const bool sequence_parallel : {true, false}) {
      Train train = train_;
      train.mutable_parallel()->set_tensor(tensor);
      train.mutable_parallel()->set_sequence_parallel(sequence_parallel);
      train.mutable_parallel()->set_context(context);
      absl::StatusOr<Inventory> inventory = inventory_;
      if (context > 1) {
        inventory = models::MakeInventory(train, inventory_.device());
      } else if (absl::Status s = models::Divide(train, *inventory); !s.ok()) {
        inventory = s;
      }
      if (inventory.ok()) return std::make_unique<Division>(*std::move(inventory), ranks_, hardware_);
    }
    return nullptr;
  }

  // By every shape.
  absl::Status ListMesh(uint32_t stages, Division& division, bool offload) {
    for (const PipelineShape& shape : stages > 1 ? PipelineShapes() : PipelineShapes().subspan(0, 1)) {
      const uint64_t chunks = uint64_t{stages} * shape.chunks;
      if (chunks > static_cast<uint64_t>(inventory_.units_size()) || IsRepeated(shape, division)) continue;
      const Train train = ShapeOf(stages, division, shape);
      absl::Status status = ListShape(train, division, offload);
      if (!status.ok()) status = LeaveOut(train, std::move(status));
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  // Returns `why` if that ends the search.
  absl::Status LeaveOut(const Train& train, absl::Status why) {
    if (!absl::IsInvalidArgument(why) && (!absl::IsResourceExhausted(why) || budget_->again())) return why;
    left_out_.emplace_back(train, std::move(why));
    return absl::OkStatus();
  }

  Train MeshOf(uint32_t stages, uint32_t tensor, uint32_t context) const {
    Train train = train_;
    train.clear_parallel(), train.clear_pipeline();
    Parallel& parallel = *train.mutable_parallel();
    parallel.set_pipeline(stages), parallel.set_tensor(tensor), parallel.set_context(context);
    return train;
  }

  Train ShapeOf(uint32_t stages, const Division& division, const PipelineShape& shape) const {
    const Inventory& inventory = division.inventory;
    Train train = MeshOf(stages, models::TensorRanks(inventory), models::ContextRanks(inventory));
    train.mutable_parallel()->set_sequence_parallel(inventory.sequence_parallel());
    if (stages == 1) return train;
    train.mutable_pipeline()->set_schedule(shape.schedule);
    if (shape.chunks > 1 || shape.schedule == PIPELINE_SCHEDULE_ZERO_BUBBLE) {
      train.mutable_pipeline()->set_chunks(shape.chunks);
    }
    return train;
  }

  // Whether it may be one of the fastest, as far as is known: of each mix the largest microbatch that fits counts.
  bool IsOpen(const Way& way) const {
    const Mix& mix = mixes_[way.mix];
    return way.unfit.empty() && way.least.seconds <= worst_shown_ && !mix.fits && way.least.bytes() < mix.unfit_bytes;
  }

  // While nothing fits, until `most` are planned.
  absl::Status PlanInOrder(size_t most, absl::FunctionRef<double(const Way&)> by, const Tries& tries = {}) {
    std::map<std::tuple<uint32_t, uint32_t, uint32_t>, int> tried;
    std::vector<std::pair<double, const Way*>> order;
    for (const Way& way : ways_) {
      if (way.unfit.empty()) order.emplace_back(by(way), &way);
    }
    std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    for (const auto& [key, way] : order) {
      if (exhausted_ || (planned_.size() >= most && !AnyFits())) break;
      if (!IsOpen(*way)) continue;
      if (!tries.may_look_unfit) {
        const absl::StatusOr<bool> unfit = LooksUnfit(*way);
        if (!unfit.ok()) return unfit.status();
        if (*unfit) continue;
      }
      int& of_mesh = tried[ModelMeshOf(way->train)];
      if (tries.of_a_mesh.has_value() && of_mesh++ >= *tries.of_a_mesh) continue;
      if (absl::Status s = PlanOne(*way); !s.ok()) return s;
      if (tries.of_a_mesh.has_value() && mixes_[way->mix].fits) of_mesh = *tries.of_a_mesh;
    }
    return absl::OkStatus();
  }

  // What the choice would show by its bounds alone: of each number of stages, of ranks that compute a unit and of those
  // that share a sequence of which nothing was planned the best one, if it may be one of the fastest; and one by each
  // schedule, to say why it lost.
  absl::Status PlanShown() {
    for (const auto axis : {StagesOf, TensorOf, ContextOf, ScheduleOf}) {
      std::set<uint32_t> planned;
      for (const Planned& p : planned_) planned.insert(axis(p.way->train));
      std::map<uint32_t, std::tuple<bool, double, const Way*>> best;  // looks unfit, seconds; by number
      for (const Way& way : ways_) {
        if (planned.contains(axis(way.train)) || !(axis == ScheduleOf ? way.unfit.empty() : IsOpen(way))) continue;
        const absl::StatusOr<bool> unfit = LooksUnfit(way);
        if (!unfit.ok()) return unfit.status();
        const auto [of, fresh] = best.try_emplace(axis(way.train), *unfit, way.least.seconds, &way);
        auto& [of_unfit, of_seconds, of_way] = of->second;
        if (std::tie(*unfit, way.least.seconds) < std::tie(of_unfit, of_seconds))
          of->second = {*unfit, way.least.seconds, &way};
      }
      for (const auto& [number, way] : best) {
        if (exhausted_) return absl::OkStatus();
        if (absl::Status s = PlanOne(*std::get<const Way*>(way)); !s.ok()) return s;
      }
    }
    return absl::OkStatus();
  }

  // The same for all orders of as many chunks, and however units are divided.
  const absl::StatusOr<pipeline::StageOfUnit>& CutOf(const Train& shape) {
    constexpr double kMostOfOne = 1.0 / 16;
    const bool in_a_v = shape.pipeline().schedule() == PIPELINE_SCHEDULE_ZERO_BUBBLE && shape.pipeline().chunks() > 1;
    const auto key = std::tuple(StagesOf(shape), std::max(1u, shape.pipeline().chunks()), in_a_v);
    if (const auto found = cuts_.find(key); found != cuts_.end()) return found->second;
    Budget part = budget_->Part(kMostOfOne);
    const auto cut = cuts_.emplace(key, pipeline::StagesOf(shape, inventory_, {}, &part)).first;
    budget_->Charge(part);
    return cut->second;
  }

  absl::Status ListShape(const Train& shape, Division& division, bool offload) {
    const absl::StatusOr<pipeline::StageOfUnit>& cut = CutOf(shape);
    if (!cut.ok()) return cut.status();
    if (absl::Status s = pipeline::CheckTies(inventory_, *cut); !s.ok()) return s;
    const auto what = [&] { return What(); };
    if (budget_->spent() > list_until_) return absl::ResourceExhaustedError(what());
    const auto units = static_cast<uint64_t>(inventory_.units_size());
    const uint64_t kinds = std::min<uint64_t>(units, static_cast<uint64_t>(division.bounds.kinds()) +
                                                         2 * StagesOf(shape) * std::max(1u, shape.pipeline().chunks()));
    const uint32_t sample_ranks =
        static_cast<uint32_t>(ranks_.size()) / StagesOf(shape) / TensorOf(shape) / ContextOf(shape);
    std::vector<uint32_t> microbatches = MicrobatchesToTry(shape, inventory_, sample_ranks);
    std::reverse(microbatches.begin(), microbatches.end());
    if (microbatches.empty() && ScheduleOf(shape) == PIPELINE_SCHEDULE_GPIPE) {
      left_out_.emplace_back(shape, absl::ResourceExhaustedError(what()));
      return absl::OkStatus();
    }
    for (const Strategy& strategy : DataStrategies(shape, ranks_)) {
      for (const bool recompute : {false, true}) {
        if (train_.has_activation_checkpointing() && recompute != train_.activation_checkpointing()) continue;
        mixes_.emplace_back();
        for (const uint32_t microbatch : microbatches) {
          Way way{.train = With(shape, strategy, recompute), .division = &division};
          way.train.mutable_batch()->set_microbatch(microbatch);
          if (offload) way.train.mutable_offload()->set_optimizer(true);
          absl::Status s = Spend(budget_, 10 * kinds + units / 4, what);
          if (s.ok()) s = Hold(budget_, ways_.size() * static_cast<uint64_t>(way.train.SpaceUsedLong()), what);
          if (!s.ok()) return s;
          way.least = division.bounds.Of(way.train, *cut);
          way.order = ways_.size(), way.mix = mixes_.size() - 1;
          way.unfit = WhyNot(way.least, StagesOf(shape));
          ways_.push_back(std::move(way));
        }
      }
    }
    return absl::OkStatus();
  }

  // The largest slot of the stage that needs most, which some rank of it does not exceed; 0: unknown. Of each stage the
  // ranks are looked through once.
  uint64_t LargestSlot(const Least& least, uint32_t stages) {
    const auto [at, fresh] = largest_slots_.emplace(std::pair(stages, least.stage), 0);
    if (!fresh) return at->second;
    const Mesh mesh = WithReplicasFor({.pipeline = stages}, static_cast<uint32_t>(ranks_.size()));
    uint64_t most = 0;
    for (const RankPlace& rank : OfStage(mesh, ranks_, least.stage)) {
      if (rank.memory_bytes == 0) return 0;
      most = std::max(most, rank.memory_bytes);
    }
    return at->second = most;
  }

  std::string WhyNot(const Least& least, uint32_t stages) {
    const uint64_t most = LargestSlot(least, stages);
    if (most == 0 || SlotBytesFor(least.bytes()) <= most) return "";
    return absl::StrCat(LargestPart(least), " of at least ", FormatBytes(least.bytes()));
  }

  // It would not fit if its bound were as loose as that of one in the same order that was planned and did not. Where a
  // plan takes much of the budget, those that may fit come first. Errors of the budget; true if that ends the search.
  absl::StatusOr<bool> LooksUnfit(const Way& way) {
    const uint64_t most = LargestSlot(way.least, StagesOf(way.train));
    if (most == 0) return false;
    absl::Status status = EndIfFound(Spend(budget_, kWorkPerLook * planned_.size(), [&] { return What(); }));
    if (!status.ok()) return status;
    if (exhausted_) return true;
    return std::any_of(planned_.begin(), planned_.end(), [&](const Planned& p) {
      const Train &mine = way.train, &other = p.way->train;
      const bool alike = (StagesOf(mine) > 1) == (StagesOf(other) > 1) &&
                         (ContextOf(mine) > 1) == (ContextOf(other) > 1) &&
                         mine.pipeline().schedule() == other.pipeline().schedule() &&
                         mine.pipeline().chunks() == other.pipeline().chunks() &&
                         mine.activation_checkpointing() == other.activation_checkpointing();
      if (!alike || p.unfit.empty()) return false;
      const double loose = static_cast<double>(p.peak) / static_cast<double>(p.way->least.bytes());
      return SlotBytesFor(static_cast<uint64_t>(loose * static_cast<double>(way.least.bytes()))) > most;
    });
  }

  std::string What() const { return absl::StrCat("ways to run on ", ranks_.size(), " ranks"); }

  // What was found when the budget is spent is enough, if it is anything.
  absl::Status EndIfFound(absl::Status status) {
    if (!absl::IsResourceExhausted(status) || planned_.empty() || budget_->again()) return status;
    exhausted_ = true;
    return absl::OkStatus();
  }

  absl::Status PlanOne(const Way& way) {
    if (budget_->spent() > plan_until_ && !planned_.empty() && !AnyFits()) {
      exhausted_ = true;
      return budget_->again() ? absl::ResourceExhaustedError("ways to run") : absl::OkStatus();
    }
    const Inventory& inventory = way.division->inventory;
    // Roles, and who of each group is on which node.
    absl::Status status = Spend(budget_, kWorkPerRank * ranks_.size(), [&] { return What(); });
    absl::StatusOr<MemoryPlan> plan;
    if (status.ok()) {
      plan = PlanMemory(way.train, inventory, ranks_, budget_);
      status = plan.status();
    }
    if (status.ok()) status = SpendOnTimes(plan->programs, budget_);
    status = EndIfFound(std::move(status));
    if (exhausted_) return absl::OkStatus();
    // A table may be too large for one strategy and not for others.
    if (absl::IsInvalidArgument(status)) {
      mixes_[way.mix].unfit_bytes = 0;
      mixes_[way.mix].cannot = WhyNotPlanned(status);
      cannot_ = std::move(status);
      return absl::OkStatus();
    }
    if (!status.ok()) return status;
    const std::vector<Predicted> predicted =
        PredictStep(way.train, inventory, plan->layout, plan->programs, ranks_, hardware_);
    const Predicted& slow = predicted[SlowestStage(predicted)];
    const Timeline& slowest = slow.timeline;
    Planned& planned = planned_.emplace_back();
    planned.way = &way, planned.peak = plan->peak(), planned.seconds = predicted[0].timeline.seconds;
    planned.compute = slowest.busy[static_cast<size_t>(Stream::kCompute)] - slow.exchanged;
    planned.exposed = slowest.exposed + slow.exchanged;
    Mix& mix = mixes_[way.mix];
    if (WhyUnfit(*plan, ranks_).empty()) {
      mix.fits = true;
      UpdateWorstShown();
      return absl::OkStatus();
    }
    mix.unfit_bytes = std::min(mix.unfit_bytes, way.least.bytes());
    const auto most = std::max_element(plan->by_shard.begin(), plan->by_shard.end(),
                                       [](const Memory& a, const Memory& b) { return a.peak < b.peak; });
    planned.unfit = absl::StrCat(LargestPart(*most), " of ", FormatBytes(most->peak));
    return absl::OkStatus();
  }

  void UpdateWorstShown() {
    std::vector<double> times;
    for (const Planned& planned : planned_) {
      if (planned.unfit.empty()) times.push_back(planned.seconds);
    }
    if (times.size() < kShown) return;
    std::nth_element(times.begin(), times.begin() + kShown - 1, times.end());
    worst_shown_ = times[kShown - 1];
  }

  // What is known of ways that differ in their microbatch alone.
  struct Mix {
    bool fits = false;  // one was planned and does
    // The least bound of those that were planned and do not fit; 0: none can be planned.
    uint64_t unfit_bytes = std::numeric_limits<uint64_t>::max();
    std::string cannot = {};  // why none can be planned
  };

  const Train& train_;
  const Inventory& inventory_;
  const absl::Span<const RankPlace> ranks_;
  const Hardware& hardware_;
  Budget* const budget_;
  // By ranks that compute a unit, and that share a sequence; null as DivisionOf.
  std::map<std::pair<uint32_t, uint32_t>, std::unique_ptr<Division>> divisions_;
  std::map<std::tuple<uint32_t, uint32_t, bool>, absl::StatusOr<pipeline::StageOfUnit>> cuts_;
  std::vector<std::pair<Train, absl::Status>> left_out_;  // meshes whose ways are not listed, and why
  std::deque<Way> ways_;
  std::vector<Mix> mixes_;
  std::map<std::pair<uint32_t, uint32_t>, uint64_t> largest_slots_;  // by number of stages, and stage
  std::vector<Planned> planned_;
  absl::Status cannot_;  // why the last one that cannot be planned cannot; OK: all could
  double worst_shown_ = std::numeric_limits<double>::infinity();  // the fifth of the times of those that fit
  uint64_t list_until_ = 0, plan_until_ = 0;                      // work
  bool exhausted_ = false;
};

// In what the loser takes longer most.
std::string WhyLost(const Planned& loser, const Planned& winner) {
  constexpr double kEqual = 1e-9;  // rounded sums
  if (!loser.unfit.empty()) return absl::StrCat("does not fit: ", loser.unfit);
  if (loser.seconds <= (1 + kEqual) * winner.seconds) return kAsFast;
  const bool recomputes = loser.way->train.activation_checkpointing() && !winner.way->train.activation_checkpointing();
  const auto share = [&](double seconds) { return absl::StrFormat(" %.0f%%", 100 * seconds / loser.seconds); };
  const std::pair<double, std::string> parts[] = {
      {loser.compute - winner.compute, recomputes ? "recomputing" : "computing"},
      {loser.bubble() - winner.bubble(), absl::StrCat("bubble", share(loser.bubble()))},
      {loser.exposed - winner.exposed, absl::StrCat("exposed communication", share(loser.exposed))}};
  const auto& [more, name] = *std::max_element(std::begin(parts), std::end(parts));
  return absl::StrCat(name, ": ", TimeText(std::max(0.0, more)), " more");
}

Candidate CandidateOf(const Planned& planned) {
  return {.name = MixName(planned.way->train),
          .train = planned.way->train,
          .peak_bytes = planned.peak,
          .step_seconds = planned.seconds,
          .unfit = planned.unfit,
          .lost = "",
          .least = false};
}

// That was not planned.
Candidate CandidateOf(const Way& way, const Planned& winner) {
  return {.name = MixName(way.train),
          .train = way.train,
          .peak_bytes = way.least.bytes(),
          .step_seconds = way.least.seconds,
          .unfit = way.unfit,
          .lost = !way.unfit.empty()                   ? absl::StrCat("does not fit: ", way.unfit)
                  : way.least.seconds < winner.seconds ? "was not planned: the limit of planning came first"
                                                       : absl::StrCat("takes at least ", TimeText(way.least.seconds)),
          .least = true};
}

// A recomputed forward comes before the first half of a split backward, on the way to the stage before, so it costs as
// much as without the split; and what the second half needs is kept after that all the same. So where another schedule
// fits as many stages, recomputes as well and is as fast, that is why.
bool Search::SplitsBadly(const Planned& loser) const {
  const Train& mine = loser.way->train;
  const auto& units = loser.way->division->share.units();
  if (ScheduleOf(mine) != PIPELINE_SCHEDULE_ZERO_BUBBLE || !mine.activation_checkpointing() ||
      std::none_of(units.begin(), units.end(), SplitsBackward)) {
    return false;
  }
  return std::any_of(planned_.begin(), planned_.end(), [&](const Planned& other) {
    const Train& its = other.way->train;
    const bool alike = ModelMeshOf(its) == ModelMeshOf(mine) && its.activation_checkpointing() &&
                       ScheduleOf(its) != PIPELINE_SCHEDULE_ZERO_BUBBLE;
    const bool keeps_more = absl::StartsWith(loser.unfit, "activations");
    return alike && other.unfit.empty() && (keeps_more || (loser.unfit.empty() && other.seconds <= loser.seconds));
  });
}

absl::StatusOr<Choice> Search::Choose() const {
  std::vector<const Planned*> order;
  for (const Planned& planned : planned_) order.push_back(&planned);
  const auto better = [](const Planned* a, const Planned* b) {
    const auto rank = [](const Planned* p) {
      const bool fits = p->unfit.empty();
      return std::tuple(!fits, fits ? p->seconds : static_cast<double>(p->peak), p->way->order);
    };
    return rank(a) < rank(b);
  };
  std::sort(order.begin(), order.end(), better);
  Choice choice;
  choice.fits = order[0]->unfit.empty();
  const Planned* winner = order[0];
  for (const Planned* planned : order) {
    const bool close = choice.fits && planned->unfit.empty() && planned->seconds <= kSlower * order[0]->seconds;
    if (close && planned->way->order < winner->way->order) winner = planned;
  }
  // So many others may be a little faster that it would not be among those that are shown.
  const auto won = std::find(order.begin(), order.end(), winner);
  if (won - order.begin() >= static_cast<ptrdiff_t>(kShown)) std::rotate(order.begin() + kShown - 1, won, won + 1);
  const auto add = [&](Candidate candidate) { choice.candidates.push_back(std::move(candidate)); };
  const auto add_loser = [&](const Planned& planned) {
    add(CandidateOf(planned));
    choice.candidates.back().lost = absl::StrCat(
        WhyLost(planned, *winner), SplitsBadly(planned) ? "; recomputation splits badly with a split backward" : "");
  };
  for (const Planned* planned : order) {
    if (choice.candidates.size() == kShown || (choice.fits && !planned->unfit.empty())) break;
    if (planned != winner) {
      add_loser(*planned);
      continue;
    }
    choice.chosen = choice.candidates.size();
    add(CandidateOf(*planned));
  }
  // Of other numbers of stages, of ranks that compute a unit and of those that share a sequence, and by other
  // schedules, what was planned, or else the ways by their bounds.
  for (const auto axis : {StagesOf, TensorOf, ContextOf, ScheduleOf}) {
    const auto shown = [&](uint32_t number) {
      return std::any_of(choice.candidates.begin(), choice.candidates.end(),
                         [&](const Candidate& candidate) { return axis(candidate.train) == number; });
    };
    for (const Planned* planned : order) {
      if (!shown(axis(planned->way->train))) add_loser(*planned);
    }
    std::map<uint32_t, const Way*> best;
    for (const Way& way : ways_) {
      const auto rank = [](const Way* w) {
        return std::tuple(!w->unfit.empty(),
                          w->unfit.empty() ? w->least.seconds : static_cast<double>(w->least.bytes()));
      };
      const Way*& of = best[axis(way.train)];
      if (of == nullptr || rank(&way) < rank(of)) of = &way;
    }
    for (const auto& [number, way] : best) {
      if (shown(number)) continue;
      add(CandidateOf(*way, *winner));
      if (const std::string& cannot = mixes_[way->mix].cannot; !cannot.empty()) choice.candidates.back().lost = cannot;
    }
    for (const auto& [train, why] : left_out_) {
      if (shown(axis(train))) continue;
      add({.name = MixName(train), .train = train, .lost = WhyNotPlanned(why), .least = true});
    }
  }
  const auto open = std::count_if(ways_.begin(), ways_.end(), [this](const Way& way) { return IsOpen(way); });
  if (open > 0) {
    choice.stopped = absl::StrCat("the search stopped after ", planned_.size(), " plans; by their lower bounds ", open,
                                  open == 1 ? " more way to run may " : " more ways to run may ",
                                  choice.fits ? "be among the fastest" : "fit");
  }
  return choice;
}

std::string ReasonOf(const Choice& choice, const Inventory& inventory, const Hardware& hardware) {
  const Candidate& chosen = choice.candidates[choice.chosen];
  const char* const kept = models::DependsOnMicrobatches(inventory)
                               ? "; microbatch and stages are not searched, because batch normalization depends on them"
                               : "";
  if (!choice.fits) {
    const std::string needs = FormatBytes(chosen.peak_bytes);
    return absl::StrCat("no configuration fits; the smallest tried, ", chosen.name, ", needs ", needs,
                        " a rank (largest part: ", absl::StripSuffix(chosen.unfit, absl::StrCat(" of ", needs)), ")",
                        kept);
  }
  std::string reason = absl::StrCat(chosen.name, ", ", TimeText(chosen.step_seconds), " a step predicted on ",
                                    hardware.name, " and ", FormatBytes(chosen.peak_bytes), " a rank");
  for (const Candidate& candidate : choice.candidates) {
    if (&candidate == &chosen || candidate.least || !candidate.unfit.empty()) continue;
    absl::StrAppend(&reason, "; the next, ", candidate.name, ", takes ", TimeText(candidate.step_seconds), " (",
                    candidate.lost, ")");
    break;
  }
  return absl::StrCat(reason, kept);
}

}  // namespace

absl::Span<const PipelineShape> PipelineShapes() {
  static constexpr PipelineShape kShapes[] = {{PIPELINE_SCHEDULE_1F1B, 1},        {PIPELINE_SCHEDULE_GPIPE, 1},
                                              {PIPELINE_SCHEDULE_INTERLEAVED, 2}, {PIPELINE_SCHEDULE_INTERLEAVED, 4},
                                              {PIPELINE_SCHEDULE_ZERO_BUBBLE, 1}, {PIPELINE_SCHEDULE_ZERO_BUBBLE, 2}};
  return kShapes;
}

std::string MixName(const Train& train) {
  std::string name;
  if (StagesOf(train) > 1) {
    const std::string schedule = PipelineSchedule_Name(train.pipeline().schedule());
    absl::StrAppend(&name, StagesOf(train), " stages by ",
                    absl::AsciiStrToLower(std::string(absl::StripPrefix(schedule, "PIPELINE_SCHEDULE_"))));
    if (train.pipeline().chunks() > 1) absl::StrAppend(&name, " of ", train.pipeline().chunks(), " chunks");
    absl::StrAppend(&name, ", ");
  }
  if (TensorOf(train) > 1) {
    absl::StrAppend(&name, "tensor ", TensorOf(train),
                    train.parallel().sequence_parallel() ? " with sequence parallel, " : ", ");
  }
  if (ContextOf(train) > 1) absl::StrAppend(&name, "context ", ContextOf(train), ", ");
  absl::StrAppend(&name, NameOf(train), ", microbatch ", train.batch().microbatch());
  if (train.offload().optimizer()) absl::StrAppend(&name, ", offload.optimizer");
  return name;
}

Train ChosenOf(const Train& train) {
  Train chosen;
  *chosen.mutable_parallel() = train.parallel();
  chosen.mutable_parallel()->set_auto_(false);
  if (train.has_pipeline()) *chosen.mutable_pipeline() = train.pipeline();
  chosen.mutable_batch()->set_microbatch(train.batch().microbatch());
  if (train.has_offload()) *chosen.mutable_offload() = train.offload();
  return chosen;
}

absl::StatusOr<Choice> ChooseMesh(const Train& train, const Inventory& inventory, absl::Span<const RankPlace> ranks,
                                  const Hardware& hardware, Budget* budget) {
  Budget part = budget == nullptr ? Budget() : budget->Part(kBudgetShare);
  Search search(train, inventory, ranks, hardware, &part);
  const bool may_offload = inventory.device() == DEVICE_CUDA && !train.has_offload() && !train.cuda_graphs() &&
                           !Compresses(train.communication());
  absl::Status status;
  int left = may_offload ? 4 : 2;  // rounds
  for (const bool offload : {false, true}) {
    for (const SequenceSharing sharing : {SequenceSharing::kOfIdleRanks, SequenceSharing::kAny}) {
      if (!status.ok() || search.AnyFits() || left == 0) break;
      const size_t before = search.ways();
      status = search.List(offload, sharing);
      const bool is_last = --left == 0;
      if (status.ok() && (search.ways() > before || is_last)) status = search.Plan(is_last ? 1 : 0.5);
    }
  }
  if (status.ok() && !search.AnyFits()) status = search.PlanLeast();
  if (budget != nullptr) budget->Charge(part);
  if (!status.ok()) return status;
  absl::StatusOr<Choice> choice = search.Choose();
  if (!choice.ok()) return choice;
  choice->reason = ReasonOf(*choice, inventory, hardware);
  absl::StatusOr<MemoryPlan> chosen = PlanMemory(choice->train(), search.InventoryOf(choice->train()), ranks, budget);
  if (!chosen.ok()) return chosen.status();
  choice->memory_plan = *std::move(chosen);
  return choice;
}

}  // namespace muster::strategies
