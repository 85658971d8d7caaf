#include "cli/spec/tree.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include <optional>
#include <sstream>
#include <unordered_map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/spec/scalar.h"
#include "cli/spec/source_text.h"

namespace muster::cli {
namespace {

constexpr size_t kMaxProblems = 100;
constexpr char kCoreTags[] = "tag:yaml.org,2002:";

// Leaves yaml-cpp from inside an event; the problem is recorded already.
struct Abandon {};

class TreeBuilder final : public YAML::EventHandler {
 public:
  TreeBuilder(const SourceText& source, ParsedYaml& out) : source_(source), out_(out) {}

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (++documents_ == 1) return;
    // yaml-cpp also starts a new document at a line left of the first key.
    const bool marked = absl::StartsWith(source_.From(mark.pos), "---");
    Note(mark, marked ? "a second document begins here: one job per file"
                      : "wrong indentation: this line is not in line with the keys above it");
    throw Abandon{};
  }
  void OnDocumentEnd() override {}
  void OnAnchor(const YAML::Mark& mark, const std::string& name) override {
    Note(mark, absl::StrCat("anchors are not supported (&", name, ")"));
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    Note(mark, "aliases are not supported: write the value again");
    Add(Node{.kind = Node::Kind::kNull, .where = At(mark)});
  }
  void OnNull(const YAML::Mark& mark, YAML::anchor_t) override {
    // For a key without a value yaml-cpp reports the location of the next token, perhaps lines later.
    Location where = At(mark);
    const bool written = absl::string_view("~nN").find(source_.From(mark.pos).substr(0, 1)) != absl::string_view::npos;
    if (!open_.empty() && open_.back().has_key) {
      const Location& key = open_.back().entry.where;
      if (!written || source_.From(mark.pos).empty() || key.line != where.line) where = key;
    }
    Add(Node{.kind = Node::Kind::kNull, .where = where});
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t, const std::string& value) override {
    Node node{.kind = Node::Kind::kScalar, .where = At(mark), .text = value};
    node.quoted = ScalarIsString(mark, tag, value);
    if (source_.QuoteNeverCloses(mark.pos)) {
      Note(mark, "the quote that begins here is never closed");
      throw Abandon{};
    }
    Add(std::move(node));
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {
    Open(Node::Kind::kList, mark, tag, "seq");
  }
  void OnSequenceEnd() override { Close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t, YAML::EmitterStyle::value) override {
    Open(Node::Kind::kMap, mark, tag, "map");
  }
  void OnMapEnd() override { Close(); }

  // After yaml-cpp fails in the middle: keeps the complete nodes and drops a half-read key.
  void CloseAll() {
    while (!open_.empty()) {
      Node node = std::move(open_.back().node);
      open_.pop_back();
      const bool key = !open_.empty() && open_.back().node.kind == Node::Kind::kMap && !open_.back().has_key;
      if (!key) Add(std::move(node));
    }
  }
  // The bracket of the innermost list or map that is open, if it has one: '[' or '{'.
  std::optional<size_t> OpenBracket() const {
    for (auto open = open_.rbegin(); open != open_.rend(); ++open) {
      if (open->bracket.has_value()) return open->bracket;
    }
    return std::nullopt;
  }
  // For problems of the text itself: yaml-cpp is often ahead of the location, so the path would mislead.
  void NoteText(const YAML::Mark& mark, std::string message) {
    if (out_.problems.size() < kMaxProblems) {
      out_.problems.push_back(Problem{At(mark), "", std::move(message), ""});
    }
  }
  void Note(const YAML::Mark& mark, std::string message) {
    if (out_.problems.size() < kMaxProblems) {
      out_.problems.push_back(Problem{At(mark), Path(), std::move(message), ""});
    }
  }

 private:
  struct Open_ {
    Node node;
    bool has_key = false;
    bool bad_key = false;                        // drop its value
    std::optional<size_t> bracket;               // the byte of [ or {
    Entry entry;                                 // kMap: the key read last
    std::unordered_map<std::string, int> lines;  // of keys
  };

  Location At(const YAML::Mark& mark) const { return source_.At(mark.pos); }

  std::string Path() const {
    std::string path;
    for (const Open_& open : open_) {
      if (open.node.kind == Node::Kind::kList) {
        absl::StrAppend(&path, "[", open.node.items.size(), "]");
      } else if (open.has_key && !open.bad_key) {
        absl::StrAppend(&path, path.empty() ? "" : ".", open.entry.key);
      }
    }
    return path;
  }

  bool ScalarIsString(const YAML::Mark& mark, const std::string& tag, const std::string& value) {
    if (tag.empty() || tag == "?") return false;
    if (tag == "!" || tag == absl::StrCat(kCoreTags, "str")) return true;
    const ScalarType type = CoreType(value);
    for (const auto& [name, fits] :
         {std::pair("null", type == ScalarType::kNull), std::pair("bool", type == ScalarType::kBool),
          std::pair("int", type == ScalarType::kInteger),
          std::pair("float", type == ScalarType::kFloat || type == ScalarType::kInteger)}) {
      if (tag != absl::StrCat(kCoreTags, name)) continue;
      if (!fits) Note(mark, absl::StrCat("the tag !!", name, " does not fit ", DescribeScalar(value, type)));
      return false;
    }
    UnknownTag(mark, tag);
    return false;
  }

  void UnknownTag(const YAML::Mark& mark, const std::string& tag) {
    Note(mark, absl::StrCat("unknown tag ", DescribeScalar(tag, ScalarType::kBool), ": leave it out"));
  }

  void Open(Node::Kind kind, const YAML::Mark& mark, const std::string& tag, const char* core) {
    if (static_cast<int>(open_.size()) >= kMaxYamlDepth) {
      Note(mark, absl::StrCat("nested deeper than ", kMaxYamlDepth, " levels"));
      throw Abandon{};
    }
    if (!tag.empty() && tag != "?" && tag != "!" && tag != absl::StrCat(kCoreTags, core)) UnknownTag(mark, tag);
    open_.emplace_back();
    open_.back().node.kind = kind;
    open_.back().node.where = At(mark);
    const absl::string_view text = source_.From(mark.pos);
    if (absl::StartsWith(text, kind == Node::Kind::kList ? "[" : "{")) open_.back().bracket = mark.pos;
  }

  void Close() {
    Node node = std::move(open_.back().node);
    open_.pop_back();
    Add(std::move(node));
  }

  void Add(Node node) {
    if (open_.empty()) {
      out_.root = std::move(node);
      return;
    }
    Open_& parent = open_.back();
    if (parent.node.kind == Node::Kind::kList) {
      parent.node.items.push_back(std::move(node));
    } else if (!parent.has_key) {
      TakeKey(parent, node);
    } else {
      if (!parent.bad_key) {
        parent.entry.value = std::move(node);
        parent.node.entries.push_back(std::move(parent.entry));
      }
      parent.has_key = parent.bad_key = false;
      parent.entry = Entry{};
    }
  }

  void TakeKey(Open_& parent, const Node& key) {
    std::string message;
    if (key.kind != Node::Kind::kScalar) {
      message = absl::StrCat("a key must be a name, got ", Describe(key));
    } else if (key.text == "<<" && !key.quoted) {
      message = "merge keys are not supported: write the values again";
    } else if (const auto [first, fresh] = parent.lines.emplace(key.text, key.where.line); !fresh) {
      message = absl::StrCat("duplicate key, the first is in line ", first->second);
    }
    parent.entry.key = key.text;
    parent.entry.where = key.where;
    parent.has_key = true;
    if (message.empty()) return;
    // A duplicate key has a name, other bad keys have none to show.
    parent.bad_key = key.kind != Node::Kind::kScalar || key.text == "<<";
    if (out_.problems.size() < kMaxProblems) out_.problems.push_back(Problem{key.where, Path(), message, ""});
    parent.bad_key = true;
  }

  const SourceText& source_;
  ParsedYaml& out_;
  int documents_ = 0;
  std::vector<Open_> open_;
};

void NoteSyntax(const YAML::Exception& error, const SourceText& source, TreeBuilder& builder) {
  const size_t at = error.mark.is_null() ? 0 : static_cast<size_t>(error.mark.pos);
  YAML::Mark mark = error.mark.is_null() ? YAML::Mark() : error.mark;
  // A tab as indentation confuses yaml-cpp lines later.
  if (const auto tab = source.FirstIndentingTab(at)) {
    mark.pos = static_cast<int>(*tab);
    builder.NoteText(mark, "a tab in the indentation: YAML allows only spaces there");
    return;
  }
  // "{path: runs/{job}}": inside of braces a brace needs quotes.
  const absl::string_view rest = source.From(at);
  const bool placeholder = absl::StartsWith(rest, "{name}") || absl::StartsWith(rest, "{job}");
  const bool unclosed = error.msg == YAML::ErrorMsg::END_OF_SEQ_FLOW || error.msg == YAML::ErrorMsg::END_OF_MAP_FLOW ||
                        error.msg == YAML::ErrorMsg::FLOW_END;
  if (const auto bracket = builder.OpenBracket();
      unclosed && !placeholder && bracket.has_value() && source.BracketNeverCloses(*bracket)) {
    mark.pos = static_cast<int>(*bracket);
    builder.NoteText(mark, absl::StrCat("this ", source.From(*bracket).substr(0, 1), " is not closed"));
    return;
  }
  builder.NoteText(mark,
                   absl::StrCat("bad syntax: ", error.msg,
                                placeholder ? "; inside { } a text with braces needs quotes: \"runs/{job}\"" : ""));
}

void SetLocations(Node& node, const Location& where) {
  node.where = where;
  for (Node& item : node.items) SetLocations(item, where);
  for (Entry& entry : node.entries) {
    entry.where = where;
    SetLocations(entry.value, where);
  }
}

}  // namespace

std::string Describe(const Node& node) {
  switch (node.kind) {
    case Node::Kind::kNull:
      return "nothing";
    case Node::Kind::kMap:
      return "a map";
    case Node::Kind::kList:
      return "a list";
    case Node::Kind::kScalar:
      return DescribeScalar(node.text, node.quoted ? ScalarType::kString : CoreType(node.text));
  }
  return "";
}

ParsedYaml ParseYaml(absl::string_view text, const std::string& name) {
  ParsedYaml out;
  const SourceText source(text, name);
  out.root.where = source.At(0);
  if (const auto problem = source.Check(kMaxYamlBytes)) {
    out.problems.push_back(*problem);
    out.complete = false;
    return out;
  }
  TreeBuilder builder(source, out);
  std::istringstream stream{std::string(source.text())};
  try {
    YAML::Parser parser(stream);
    while (parser.HandleNextDocument(builder)) {
    }
  } catch (const Abandon&) {
    out.complete = false;
  } catch (const YAML::Exception& error) {
    out.complete = false;
    NoteSyntax(error, source, builder);
  } catch (const std::exception& error) {  // of the standard library, inside yaml-cpp
    out.complete = false;
    builder.NoteText(YAML::Mark(), absl::StrCat("cannot be parsed: ", error.what()));
  }
  builder.CloseAll();
  return out;
}

ParsedYaml ParseFlagValue(absl::string_view text, const Location& where) {
  ParsedYaml out;
  if (!text.empty() && absl::string_view("{[\"'").find(text[0]) != absl::string_view::npos) {
    out = ParseYaml(text, *where.source);
    for (Problem& problem : out.problems) problem.where = where;
  } else {
    out.root.kind = text.empty() ? Node::Kind::kNull : Node::Kind::kScalar;
    out.root.text = std::string(text);
    out.root.from_flag = true;
  }
  SetLocations(out.root, where);
  return out;
}

}  // namespace muster::cli
