#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "data/newer_characters.h"
#include "data/regex.h"
#include "data/utf8.h"

namespace muster::data {
namespace {

constexpr size_t kMaxPatternBytes = 64 << 10;
constexpr int kMaxNesting = 50;
constexpr uint32_t kMaxRepeats = 1000;

// White_Space and its complement inside of a class; PCRE2's own \s also has U+180E.
constexpr char kSpaces[] =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr char kNoSpaces[] =
    R"(\x{0}-\x{8}\x{e}-\x{1f}\x{21}-\x{84}\x{86}-\x{9f}\x{a1}-\x{167f}\x{1681}-\x{1fff}\x{200b}-\x{2027})"
    R"(\x{202a}-\x{202e}\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{d7ff}\x{e000}-\x{10ffff})";
constexpr const char* kCategories[] = {"L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc", "Me", "N",  "Nd",
                                       "Nl", "No", "P",  "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "S",  "Sm",
                                       "Sc", "Sk", "So", "Z",  "Zs", "Zl", "Zp", "C",  "Cc", "Cf", "Co", "Cn"};
// Oniguruma's (?i:...) also matches one character for two of these.
constexpr const char* kFoldTogether[] = {"ss", "st", "ff", "fi", "fl"};

// The translation of a part.
struct Term {
  std::string pcre2;
  bool can_be_empty = false;
  bool repeatable = true;
};

class Translator {
 public:
  explicit Translator(std::string_view pattern) : pattern_(pattern) {}

  absl::StatusOr<std::string> Run() {
    if (pattern_.size() > kMaxPatternBytes) return absl::InvalidArgumentError("a regular expression of over 64 KiB");
    for (size_t at = 0; at < pattern_.size();) {
      const size_t bytes = CharacterBytes(pattern_, at);
      if (bytes == 0) return absl::InvalidArgumentError("a regular expression that is not UTF-8");
      at += bytes;
    }
    absl::StatusOr<Term> all = Alternatives(0);
    if (!all.ok()) return all.status();
    if (!AtEnd()) return Refuse("a ) without a (");
    if (all->can_be_empty) return Refuse("a match of an empty text");
    return std::move(all->pcre2);
  }

 private:
  // What a class holds: a set, or one character.
  struct Item {
    std::string pcre2;
    std::optional<uint32_t> character;
  };

  bool AtEnd() const { return at_ == pattern_.size(); }
  char Peek() const { return AtEnd() ? '\0' : pattern_[at_]; }
  bool Take(std::string_view text) {
    if (pattern_.substr(at_, text.size()) != text) return false;
    at_ += text.size();
    return true;
  }
  uint32_t TakeCharacter() {
    const uint32_t character = CharacterAt(pattern_, at_);
    at_ += BytesOfLead(pattern_[at_]);
    return character;
  }
  absl::Status Refuse(const std::string& what) const {
    return absl::InvalidArgumentError(absl::StrCat("regular expression, byte ", at_, ": ", what, " is not supported"));
  }

  absl::StatusOr<Term> Alternatives(int nesting) {
    Term all;
    for (bool first = true; first || Take("|"); first = false) {
      absl::StatusOr<Term> one = Sequence(nesting);
      if (!one.ok()) return one;
      absl::StrAppend(&all.pcre2, first ? "" : "|", one->pcre2);
      all.can_be_empty |= one->can_be_empty;
    }
    return all;
  }

  absl::StatusOr<Term> Sequence(int nesting) {
    Term all{.can_be_empty = true};
    while (!AtEnd() && Peek() != '|' && Peek() != ')') {
      absl::StatusOr<Term> one = Atom(nesting);
      if (!one.ok()) return one;
      if (absl::Status status = Quantify(*one); !status.ok()) return status;
      all.pcre2 += one->pcre2;
      all.can_be_empty &= one->can_be_empty;
    }
    return all;
  }

  absl::StatusOr<Term> Atom(int nesting) {
    const char c = Peek();
    if (c == '(') return Group(nesting);
    if (c == '[') return Class();
    if (c == '\\') return Escape();
    if (c == '^' || c == '$') return Refuse("an anchor");
    if (c == '*' || c == '+' || c == '?' || c == '{' || c == '}' || c == ']') {
      return Refuse(absl::StrCat("\"", std::string(1, c), "\" here (write it with a \\)"));
    }
    if (c == '.') {
      ++at_;
      return Term{.pcre2 = R"([^\x{a}])"};
    }
    return Literal(TakeCharacter());
  }

  absl::StatusOr<Term> Literal(uint32_t c) {
    absl::StatusOr<std::string> range = Range(c, c);
    if (!range.ok()) return range.status();
    return Term{.pcre2 = *std::move(range)};
  }

  // A quantifier's repeats of what can be empty end in different ways.
  absl::Status Quantify(Term& term) {
    uint32_t least = 0;
    std::string quantifier;
    const size_t begin = at_;
    if (Take("?") || Take("*") || Take("+")) {
      quantifier = pattern_.substr(begin, 1);
      least = quantifier == "+" ? 1 : 0;
      if (Peek() == '?' || Peek() == '+') quantifier += pattern_[at_++];
    } else if (Take("{")) {
      const std::optional<uint32_t> low = Number();
      const bool comma = Take(",");
      const std::optional<uint32_t> high = comma ? Number() : low;
      if ((!low.has_value() && !high.has_value()) || !Take("}")) return Refuse("this {");
      least = low.value_or(0);
      if (least > kMaxRepeats || high.value_or(0) > kMaxRepeats || high.value_or(kMaxRepeats) < least) {
        return Refuse("this number of repeats");
      }
      quantifier = comma ? absl::StrCat("{", least, ",", high.has_value() ? absl::StrCat(*high) : "", "}")
                         : absl::StrCat("{", least, "}");
      if (Peek() == '?' && comma) {
        quantifier += '?';
        ++at_;
      }
    } else {
      return absl::OkStatus();
    }
    if (Peek() == '?' || Peek() == '*' || Peek() == '+' || Peek() == '{') return Refuse("a second quantifier");
    if (!term.repeatable || term.can_be_empty) return Refuse("a repeat of a lookahead or of what can be empty");
    term.pcre2 += quantifier;
    term.can_be_empty = least == 0;
    return absl::OkStatus();
  }

  std::optional<uint32_t> Number() {
    if (Peek() < '0' || Peek() > '9') return std::nullopt;
    uint32_t number = 0;
    while (Peek() >= '0' && Peek() <= '9') number = std::min<uint32_t>(number * 10 + (pattern_[at_++] - '0'), 1 << 20);
    return number;
  }

  absl::StatusOr<Term> Group(int nesting) {
    if (nesting >= kMaxNesting) return Refuse("such deep nesting");
    if (Take("(?i:")) return CaselessGroup();
    Term group;
    bool lookahead = false;
    for (const char* kind : {"(?:", "(?=", "(?!", "(?>", "("}) {
      if (!Take(kind)) continue;
      if (kind[1] == '\0' && (Peek() == '?' || Peek() == '*')) return Refuse("this kind of group");
      group.pcre2 = kind[1] == '\0' ? "(?:" : kind;
      lookahead = kind[1] != '\0' && (kind[2] == '=' || kind[2] == '!');
      break;
    }
    absl::StatusOr<Term> inside = Alternatives(nesting + 1);
    if (!inside.ok()) return inside;
    if (!Take(")")) return Refuse("a ( without a )");
    absl::StrAppend(&group.pcre2, inside->pcre2, ")");
    group.can_be_empty = lookahead || inside->can_be_empty;
    group.repeatable = !lookahead;
    return group;
  }

  // Each letter as a class, with the two letters beyond ASCII that fold to one of ASCII.
  absl::StatusOr<Term> CaselessGroup() {
    Term group{.pcre2 = "(?:"};
    std::string word;
    while (!Take(")")) {
      if (AtEnd()) return Refuse("a ( without a )");
      if (Take("|")) {
        group.can_be_empty |= word.empty();
        word.clear();
        group.pcre2 += '|';
        continue;
      }
      const absl::StatusOr<std::string> letters = CaselessLetters();
      if (!letters.ok()) return letters.status();
      absl::StrAppend(&group.pcre2, "[");
      for (const char c : *letters) {
        absl::StrAppend(&group.pcre2, Hex(c), Hex(absl::ascii_toupper(c)), c == 's' ? R"(\x{17f})" : "",
                        c == 'k' ? R"(\x{212a})" : "");
      }
      absl::StrAppend(&group.pcre2, "]");
      absl::StrAppend(&word, letters->size() == 1 ? *letters : "[");
      for (const char* two : kFoldTogether) {
        if (absl::StrContains(word, two)) return Refuse(absl::StrCat("\"", two, "\" in (?i:...)"));
      }
    }
    group.can_be_empty |= word.empty();
    group.pcre2 += ')';
    return group;
  }

  // A literal or a class of literals, in lower case.
  absl::StatusOr<std::string> CaselessLetters() {
    const bool a_class = Take("["), escaped = !a_class && Take("\\");
    std::string letters;
    do {
      const char c = Peek();
      const absl::string_view refused = a_class ? "^-[&\\" : escaped ? "" : "[]{}(*+?.^$";
      if (c < ' ' || absl::StrContains(refused, std::string(1, c)) || (escaped && absl::ascii_isalnum(c))) {
        return Refuse("this in (?i:...), which may hold letters of ASCII and classes of them,");
      }
      letters += absl::ascii_tolower(c);
      ++at_;
    } while (a_class && !Take("]"));
    return letters;
  }

  static std::string Hex(uint32_t c) { return absl::StrFormat("\\x{%x}", c); }

  // As an item of a class, or (of one character) as an atom.
  absl::StatusOr<std::string> Range(uint32_t low, uint32_t high) const {
    if (low > high) return Refuse("a range from a higher to a lower character");
    if (!StandInsKeepMembership(low, high)) return Refuse("a range of characters newer than Unicode 14");
    return low == high ? Hex(low) : absl::StrCat(Hex(low), "-", Hex(high));
  }

  // At [; nested classes are unions.
  absl::StatusOr<Term> Class() {
    std::string items;
    const bool negated = pattern_.substr(at_, 2) == "[^";
    if (absl::Status status = ClassItems(0, items); !status.ok()) return status;
    return Term{.pcre2 = absl::StrCat(negated ? "[^" : "[", items, "]")};
  }

  absl::Status ClassItems(int nesting, std::string& items) {
    if (nesting >= kMaxNesting) return Refuse("such deep nesting");
    Take("[");
    Take("^");
    for (bool first = true; first || !Take("]"); first = false) {
      if (AtEnd()) return Refuse("a [ without a ]");
      if (Peek() == '[') {
        if (pattern_.substr(at_, 2) == "[:" || pattern_.substr(at_, 2) == "[^") return Refuse("this class in a class");
        if (absl::Status status = ClassItems(nesting + 1, items); !status.ok()) return status;
        continue;
      }
      if ((first && Peek() == ']') || pattern_.substr(at_, 2) == "&&") return Refuse("an empty class, or &&,");
      const bool dash = Peek() == '-';
      absl::StatusOr<Item> low = ClassItem();
      if (!low.ok()) return low.status();
      const bool range = Peek() == '-' && pattern_.substr(at_, 2) != "-]";
      if (dash ? !first && Peek() != ']' : range && !low->character.has_value()) {
        return Refuse("a - here (write it with a \\)");
      }
      if (!low->character.has_value()) {
        items += low->pcre2;
        continue;
      }
      uint32_t high = *low->character;
      if (range && !dash) {
        ++at_;
        absl::StatusOr<Item> last = ClassItem();
        if (!last.ok()) return last.status();
        if (!last->character.has_value()) return Refuse("this range");
        high = *last->character;
      }
      absl::StatusOr<std::string> item = Range(*low->character, high);
      if (!item.ok()) return item.status();
      items += *item;
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Item> ClassItem() {
    if (AtEnd() || Peek() == '[') return Refuse("this class");
    if (Peek() == '\\') return EscapedItem();
    return Item{.character = TakeCharacter()};
  }

  absl::StatusOr<Term> Escape() {
    const absl::StatusOr<Item> item = EscapedItem();
    if (!item.ok()) return item.status();
    if (item->character.has_value()) return Literal(*item->character);
    return Term{.pcre2 = absl::StrCat("[", item->pcre2, "]")};
  }

  // A set of characters, or one.
  absl::StatusOr<Item> EscapedItem() {
    ++at_;
    if (AtEnd()) return Refuse("a \\ at the end");
    const char c = Peek();
    if (static_cast<uint8_t>(c) >= 0x80) return Refuse("a \\ before a character beyond ASCII");
    ++at_;
    switch (c) {
      case 's':
        return Item{.pcre2 = kSpaces};
      case 'S':
        return Item{.pcre2 = kNoSpaces};
      case 'd':
        return Item{.pcre2 = R"(\p{Nd})"};
      case 'D':
        return Item{.pcre2 = R"(\P{Nd})"};
      case 'p':
      case 'P':
        return Property(c == 'P');
      case 'r':
        return Item{.character = '\r'};
      case 'n':
        return Item{.character = '\n'};
      case 't':
        return Item{.character = '\t'};
      case 'f':
        return Item{.character = '\f'};
      case 'v':
        return Item{.character = '\v'};
      case 'x':
        return Take("{") ? Code(1, 8, true) : Code(2, 2, false);
      case 'u':
        return Code(4, 4, false);
      default:
        break;
    }
    const bool word = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (word || c < ' ') {
      --at_;
      return Refuse(absl::StrCat("\\", std::string(1, c)));
    }
    return Item{.character = static_cast<uint32_t>(c)};
  }

  absl::StatusOr<Item> Code(size_t least, size_t most, bool brace) {
    uint32_t value = 0;
    size_t digits = 0;
    for (; digits < most; ++digits, ++at_) {
      const char c = Peek();
      const bool number = c >= '0' && c <= '9';
      const char letter = static_cast<char>(c | 0x20);
      if (!number && !(letter >= 'a' && letter <= 'f')) break;
      value = value << 4 | static_cast<uint32_t>(number ? c - '0' : letter - 'a' + 10);
    }
    if (digits < least || (brace && !Take("}"))) return Refuse("this code of a character");
    // \x80 and above, without braces, are bytes to Oniguruma.
    const bool byte = least == 2 && value >= 0x80;
    if (value > 0x10ffff || (value >= 0xd800 && value < 0xe000) || byte) return Refuse("this code of a character");
    return Item{.character = value};
  }

  absl::StatusOr<Item> Property(bool negated) {
    if (!Take("{")) return Refuse("\\p without {...}");
    negated ^= Take("^");
    for (const char* category : kCategories) {
      if (Take(absl::StrCat(category, "}")))
        return Item{.pcre2 = absl::StrCat(negated ? "\\P{" : "\\p{", category, "}")};
    }
    return Refuse("this property (general categories such as \\p{L} and \\p{Nd} are)");
  }

  const std::string_view pattern_;
  size_t at_ = 0;
};

}  // namespace

absl::StatusOr<std::string> ToPcre2(std::string_view oniguruma) { return Translator(oniguruma).Run(); }

std::string EscapeRegex(std::string_view text) {
  std::string escaped;
  for (size_t at = 0; at < text.size(); at += BytesOfLead(text[at])) {
    if (BytesOfLead(text[at]) == 1) {
      absl::StrAppend(&escaped, absl::StrFormat("\\x{%x}", static_cast<unsigned>(text[at])));
    } else {
      escaped += text.substr(at, BytesOfLead(text[at]));
    }
  }
  return escaped;
}

}  // namespace muster::data
