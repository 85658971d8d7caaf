#include "data/text_stage.h"

#include <utility>

#include "data/nfc.h"
#include "data/regex.h"

namespace muster::data {
namespace {

class Collector : public TextStage {
 public:
  explicit Collector(std::function<void(std::string_view)> encode) : encode_(std::move(encode)) {}

  absl::Status Feed(std::string_view text, bool end) override {
    if (end && held_.empty()) {
      if (!text.empty()) encode_(text);
      return absl::OkStatus();
    }
    held_ += text;
    if (end) {
      encode_(held_);
      held_.clear();
    }
    return absl::OkStatus();
  }

 private:
  const std::function<void(std::string_view)> encode_;
  std::string held_;
};

class SpacePrefixer : public TextStage {
 public:
  explicit SpacePrefixer(StagePointer next) : next_(std::move(next)) {}

  absl::Status Feed(std::string_view text, bool end) override {
    if (!inside_ && !text.empty()) {
      inside_ = true;
      if (text[0] != ' ') {
        if (absl::Status status = next_->Feed(" ", false); !status.ok()) return status;
      }
    }
    if (end) inside_ = false;
    return next_->Feed(text, end);
  }

 private:
  const StagePointer next_;
  bool inside_ = false;
};

class Splitter : public TextStage {
 public:
  Splitter(Regex regex, const SplitRule& rule, StagePointer next)
      : regex_(std::move(regex)), behavior_(rule.behavior), invert_(rule.invert), next_(std::move(next)) {}

  absl::Status Feed(std::string_view text, bool end) override {
    const bool holds = !held_.empty();
    if (holds) held_ += text;
    const std::string_view whole = holds ? std::string_view(held_) : text;
    const absl::StatusOr<size_t> done = Cut(whole, end);
    if (!done.ok()) return done.status();
    if (holds) {
      held_.erase(0, *done);
    } else {
      held_ = text.substr(*done);
    }
    return end ? Finish() : absl::OkStatus();
  }

 private:
  // Passes on matches and what is between them, and returns the length of what is decided.
  absl::StatusOr<size_t> Cut(std::string_view text, bool end) {
    const std::string_view shown = WithStandIns(text, stand_ins_);
    size_t at = 0;
    while (at < text.size()) {
      const absl::StatusOr<Regex::Found> found = regex_.Find(shown, at, end);
      if (!found.ok()) return found.status();
      const bool match = found->kind == Regex::Found::kMatch;
      const size_t begin = found->kind == Regex::Found::kNothing ? text.size() : found->begin;
      if (begin > at) {
        absl::Status status = Pass(text.substr(at, begin - at), invert_, !in_gap_, match);
        if (!status.ok()) return status;
        in_gap_ = true;
      }
      if (!match) return begin;
      absl::Status status = Pass(text.substr(begin, found->end - begin), !invert_, true, true);
      if (!status.ok()) return status;
      in_gap_ = false;
      at = found->end;
    }
    return at;
  }

  // A match, or a part of what is between two. `match`: after inversion.
  absl::Status Pass(std::string_view text, bool match, bool begins, bool ends) {
    if (begins) {
      const bool joins = open_ && ((behavior_ == SplitBehavior::kContiguous && match == previous_match_) ||
                                   (behavior_ == SplitBehavior::kMergedWithPrevious && match && !previous_match_) ||
                                   (behavior_ == SplitBehavior::kMergedWithNext && !match && previous_match_));
      if (!joins) {
        if (absl::Status status = Finish(); !status.ok()) return status;
      }
      previous_match_ = match;
    }
    if (match && behavior_ == SplitBehavior::kRemoved) return absl::OkStatus();
    const bool whole = ends && (behavior_ == SplitBehavior::kIsolated || behavior_ == SplitBehavior::kRemoved);
    open_ = !whole;
    return next_->Feed(text, whole);
  }

  // Ends the piece that is being passed on.
  absl::Status Finish() {
    in_gap_ = false;
    return std::exchange(open_, false) ? next_->Feed("", true) : absl::OkStatus();
  }

  const Regex regex_;
  const SplitBehavior behavior_;
  const bool invert_;
  const StagePointer next_;
  std::string held_;  // whether a match begins here, or where it ends, is open
  std::string stand_ins_;
  bool in_gap_ = false;
  bool open_ = false;
  bool previous_match_ = false;
};

class Normalizer : public TextStage {
 public:
  explicit Normalizer(StagePointer next) : next_(std::move(next)) {}

  absl::Status Feed(std::string_view text, bool end) override {
    const bool holds = !held_.empty();
    if (holds) held_ += text;
    const std::string_view whole = holds ? std::string_view(held_) : text;
    const size_t settled = end ? whole.size() : SettledForNfc(whole);
    absl::Status status = next_->Feed(Nfc(whole.substr(0, settled), normalized_), end);
    if (holds) {
      held_.erase(0, settled);
    } else {
      held_ = text.substr(settled);
    }
    return status;
  }

 private:
  const StagePointer next_;
  std::string held_, normalized_;
};

}  // namespace

StagePointer CollectPieces(std::function<void(std::string_view)> encode) {
  return std::make_unique<Collector>(std::move(encode));
}

StagePointer PrefixSpace(StagePointer next) { return std::make_unique<SpacePrefixer>(std::move(next)); }

absl::StatusOr<StagePointer> SplitBy(const SplitRule& rule, StagePointer next) {
  absl::StatusOr<Regex> regex = Regex::Make(rule.pattern);
  if (!regex.ok()) return regex.status();
  return std::make_unique<Splitter>(*std::move(regex), rule, std::move(next));
}

StagePointer NormalizeNfc(StagePointer next) { return std::make_unique<Normalizer>(std::move(next)); }

}  // namespace muster::data
