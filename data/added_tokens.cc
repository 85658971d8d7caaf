#include "data/added_tokens.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "data/regex.h"
#include "data/utf8.h"

namespace muster::data {
namespace {

// The tokens' bytes as a tree.
class TokenTree {
 public:
  explicit TokenTree(const std::vector<AddedToken>& tokens) : nodes_(1) {
    for (size_t i = 0; i < tokens.size(); ++i) {
      uint32_t node = 0;
      for (const char c : tokens[i].content) {
        const auto [found, fresh] = nodes_[node].next.try_emplace(c, static_cast<uint32_t>(nodes_.size()));
        node = found->second;
        if (fresh) nodes_.emplace_back();
      }
      if (nodes_[node].token < 0) nodes_[node].token = static_cast<int>(i);
      begins_[static_cast<uint8_t>(tokens[i].content[0])] = true;
    }
  }

  // First place from `at` on where a token may begin.
  size_t FirstCandidate(std::string_view text, size_t at) const {
    while (at < text.size() && !begins_[static_cast<uint8_t>(text[at])]) ++at;
    return at;
  }

  struct Longest {
    int token = -1;  // none
    size_t end = 0;
    bool open = false;  // more text may continue it
  };
  Longest LongestAt(std::string_view text, size_t at) const {
    Longest longest;
    uint32_t node = 0;
    for (; at < text.size(); ++at) {
      const auto found = nodes_[node].next.find(text[at]);
      if (found == nodes_[node].next.end()) return longest;
      node = found->second;
      if (nodes_[node].token >= 0) longest = {nodes_[node].token, at + 1, false};
    }
    longest.open = !nodes_[node].next.empty();
    return longest;
  }

 private:
  struct Node {
    std::map<char, uint32_t> next;
    int token = -1;
  };
  std::vector<Node> nodes_;
  std::array<bool, 256> begins_ = {};
};

class TokenSplitter : public TextStage {
 public:
  TokenSplitter(const std::vector<AddedToken>& tokens, std::function<void(uint32_t)> emit, StagePointer next)
      : tokens_(tokens),
        tree_(tokens),
        strips_left_(std::any_of(tokens.begin(), tokens.end(), [](const AddedToken& token) { return token.lstrip; })),
        emit_(std::move(emit)),
        next_(std::move(next)) {}

  absl::Status Feed(std::string_view text, bool end) override {
    held_ += text;
    if (strips_right_) StripRight();
    size_t decided = 0;  // no token begins before
    if (absl::Status status = TakeTokens(end, decided); !status.ok()) return status;
    size_t plain = end ? held_.size() : decided;
    while (!end && strips_left_ && plain > open_ && SpaceBefore(plain)) plain = CharacterBefore(held_, plain);
    if (plain > open_) {
      if (absl::Status status = next_->Feed(Part(open_, plain), false); !status.ok()) return status;
      open_ = plain;
    }
    if (!end) {
      Drop(std::min(open_, decided), decided);
      return absl::OkStatus();
    }
    held_.clear();
    open_ = scan_ = 0;
    word_before_ = strips_right_ = false;
    return next_->Feed("", true);
  }

 private:
  std::string_view Part(size_t begin, size_t end) const { return std::string_view(held_).substr(begin, end - begin); }
  bool SpaceBefore(size_t at) const { return IsSpace(CharacterAt(held_, CharacterBefore(held_, at))); }
  bool WordAt(size_t at) { return IsWord(WithStandIns(Part(at, at + BytesOfLead(held_[at])), stand_ins_), 0); }

  // Emits each token that is decided on; `decided` is where the first undecided one may begin.
  absl::Status TakeTokens(bool end, size_t& decided) {
    for (size_t at = scan_; (at = tree_.FirstCandidate(held_, at)) < held_.size();) {
      const TokenTree::Longest longest = tree_.LongestAt(held_, at);
      const AddedToken* const token = longest.token < 0 ? nullptr : &tokens_[longest.token];
      const bool needs_next = token != nullptr && token->single_word && longest.end == held_.size();
      if (!end && (longest.open || needs_next)) {
        decided = at;
        return absl::OkStatus();
      }
      if (token == nullptr) {
        ++at;
        continue;
      }
      if (!token->single_word || !InWord(at, longest.end)) {
        if (absl::Status status = Take(*token, at, longest.end); !status.ok()) return status;
      }
      at = scan_ = longest.end;
    }
    decided = held_.size();
    return absl::OkStatus();
  }

  bool InWord(size_t begin, size_t end) {
    const bool before = begin == 0 ? word_before_ : WordAt(CharacterBefore(held_, begin));
    return before || (end < held_.size() && WordAt(end));
  }

  absl::Status Take(const AddedToken& token, size_t begin, size_t end) {
    if (token.lstrip) {
      // But for what a token before has taken.
      while (begin > open_ && SpaceBefore(begin)) begin = CharacterBefore(held_, begin);
      begin = std::max(begin, open_);
    }
    if (begin > open_) {
      if (absl::Status status = next_->Feed(Part(open_, begin), false); !status.ok()) return status;
    }
    if (absl::Status status = next_->Feed("", true); !status.ok()) return status;
    open_ = end;
    strips_right_ = token.rstrip;
    if (strips_right_) StripRight();
    // All of it may be white space that the token before has taken.
    if (begin < open_) emit_(token.id);
    return absl::OkStatus();
  }

  void StripRight() {
    while (open_ < held_.size() && IsSpace(CharacterAt(held_, open_))) open_ += BytesOfLead(held_[open_]);
    strips_right_ = open_ == held_.size();
  }

  // Forgets what is passed on and looked at.
  void Drop(size_t bytes, size_t decided) {
    if (bytes > 0) word_before_ = WordAt(CharacterBefore(held_, bytes));
    held_.erase(0, bytes);
    open_ -= bytes;
    scan_ = decided - bytes;
  }

  const std::vector<AddedToken> tokens_;
  const TokenTree tree_;
  const bool strips_left_;
  const std::function<void(uint32_t)> emit_;
  const StagePointer next_;
  std::string held_;
  size_t open_ = 0;           // what precedes it is passed on; tokens' white space may reach beyond scan_
  size_t scan_ = 0;           // where the search for the next token goes on
  bool word_before_ = false;  // whether the character before held_ is of a word
  bool strips_right_ = false;
  std::string stand_ins_;
};

}  // namespace

StagePointer SplitAtTokens(const std::vector<AddedToken>& tokens, std::function<void(uint32_t)> emit,
                           StagePointer next) {
  return std::make_unique<TokenSplitter>(tokens, std::move(emit), std::move(next));
}

}  // namespace muster::data
