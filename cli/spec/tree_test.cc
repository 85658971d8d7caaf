#include "cli/spec/tree.h"

#include <gtest/gtest.h>

namespace muster::cli {
namespace {

std::string TreeProblems(const std::string& text) {
  std::string all;
  for (const Problem& problem : ParseYaml(text, "f").problems) all += problem.ToString() + "\n";
  return all;
}

TEST(ParseYaml, KeepsThePlaceOfKeysAndValues) {
  const ParsedYaml yaml = ParseYaml("a: 1\nb: {c: x, dä: 'y'}\ne:\n  - 1\n  -  2\n", "f");
  ASSERT_TRUE(yaml.problems.empty());
  ASSERT_EQ(yaml.root.entries.size(), 3u);
  const Entry& b = yaml.root.entries[1];
  EXPECT_EQ(b.where.ToString(), "f:2:1");
  EXPECT_EQ(b.value.where.ToString(), "f:2:4");
  EXPECT_EQ(b.value.entries[1].where.ToString(), "f:2:11");
  EXPECT_EQ(b.value.entries[1].value.where.ToString(), "f:2:15");  // characters, not bytes
  EXPECT_TRUE(b.value.entries[1].value.quoted);
  EXPECT_EQ(yaml.root.entries[2].value.items[1].where.ToString(), "f:5:6");
}

TEST(ParseYaml, ByteOrderMarkAndCarriageReturnsChangeNothing) {
  const ParsedYaml yaml = ParseYaml(
      "\xEF\xBB\xBF"
      "a: 1\r\nb: x\r\n",
      "f");
  ASSERT_TRUE(yaml.problems.empty());
  EXPECT_EQ(yaml.root.entries[0].where.ToString(), "f:1:1");
  EXPECT_EQ(yaml.root.entries[1].value.where.ToString(), "f:2:4");
  EXPECT_EQ(yaml.root.entries[1].value.text, "x");
}

TEST(ParseYaml, EachErrorHasItsPlace) {
  const std::pair<std::string, std::string> kCases[] = {
      {"a: 1\nb: 2\na: 3\n", "f:3:1: a: duplicate key, the first is in line 1\n"},
      {"a:\n  b: 1\n  'b': 2\n", "f:3:3: a.b: duplicate key, the first is in line 2\n"},
      {"a: 1\n---\nb: 2\n", "f:2:1: a second document begins here: one job per file\n"},
      {" a: 1\nb: 2\n", "f:2:1: wrong indentation: this line is not in line with the keys above it\n"},
      {"a: &x 1\nb: *x\n",
       "f:1:4: a: anchors are not supported (&x)\n"
       "f:2:4: b: aliases are not supported: write the value again\n"},
      {"<<: {a: 1}\n", "f:1:1: merge keys are not supported: write the values again\n"},
      {"a: !foo 1\n", "f:1:4: a: unknown tag !foo: leave it out\n"},
      {"a: !foo {b: 1}\n", "f:1:4: a: unknown tag !foo: leave it out\n"},
      {"a: !!int x\n", "f:1:4: a: the tag !!int does not fit the string \"x\"\n"},
      {"a: !!int \"3\"\nb: !!str 3\nc: !!map {}\n", ""},
      {"a: \"b\n", "f:1:4: a: the quote that begins here is never closed\n"},
      {"a: 'it''s\n", "f:1:4: a: the quote that begins here is never closed\n"},
      {"a: !!str 'b\n", "f:1:4: a: the quote that begins here is never closed\n"},
      {"a: 'it''s'\nb: \"\\\"\"\n", ""},
      {"a:\n\tb: 1\n", "f:2:1: a tab in the indentation: YAML allows only spaces there\n"},
      {"a:\n  b: 1\n\tc: 2\n", "f:3:1: a tab in the indentation: YAML allows only spaces there\n"},
      {"a: b: c\n", "f:1:5: bad syntax: illegal map value\n"},
      {"a: {b: 1\n", "f:1:4: this { is not closed\n"},
      {"x: 1\na: [1\n", "f:2:4: this [ is not closed\n"},
      {"a: [1\nb: 2\n", "f:1:4: this [ is not closed\n"},
      {"a: {b: [1, ']', it's}\n", "f:1:8: this [ is not closed\n"},
      {"a: [1  # ]\n", "f:1:4: this [ is not closed\n"},
      {"a: {b: [1], c: {d: 1}\n", "f:1:4: this { is not closed\n"},
      {"a: {b: 1 c: 2}\n", "f:1:11: bad syntax: end of map flow not found\n"},
      {"a: {b: x/{job}, c: 1}\n",
       "f:1:10: bad syntax: end of map flow not found; inside { } a text with braces needs quotes: \"runs/{job}\"\n"},
      {"a: {b: \"x/{job}\", c: 1}\nd: x/{name}\n", ""},
      {"a: @foo\n", "f:1:4: bad syntax: unknown token\n"},
      {"? [x]\n: 1\n", "f:1:3: a key must be a name, got a list\n"},
      {"%YAML 3.0\n---\na: 1\n", "f:1:1: bad syntax: YAML major version too large\n"},
      {"ä: \xff\n", "f:1:4: is not UTF-8: byte 0xFF\n"},
      {"a: \xed\xa0\x80\n", "f:1:4: is not UTF-8: byte 0xED\n"},
      {"a: \xc0\xaf\n", "f:1:4: is not UTF-8: byte 0xC0\n"},
      {"a: \xf4\x90\x80\x80\n", "f:1:4: is not UTF-8: byte 0xF4\n"},
      {"a: \xe2\x82", "f:1:4: is not UTF-8: byte 0xE2\n"},
      {std::string("\xff\xfe"
                   "a\0",
                   4),
       "f:1:1: is UTF-16: save it as UTF-8\n"},
      {"a: 1\nb: \x04\n", "f:2:4: control character U+0004\n"},
      {std::string("a: \0", 4), "f:1:4: is not text: a byte is 0; a job file is YAML\n"},
      {std::string("a\0\xff\0", 4), "f:1:2: is not text: a byte is 0; a job file is YAML\n"},
      {"a: 1\rb: 2\r", "f:1:5: a carriage return alone: end lines with \\n or \\r\\n\n"},
  };
  for (const auto& [text, expected] : kCases) EXPECT_EQ(TreeProblems(text), expected) << text;
}

TEST(ParseYaml, LimitsSizeAndDepth) {
  EXPECT_EQ(TreeProblems("a: " + std::string(kMaxYamlBytes, 'x')),
            "f:1:1: has 262147 bytes; a spec has at most 262144\n");
  const ParsedYaml deep = ParseYaml(std::string(100'000, '['), "f");
  ASSERT_EQ(deep.problems.size(), 1u);
  EXPECT_EQ(deep.problems[0].message, "nested deeper than 32 levels");
  std::string many;
  for (int i = 0; i < 20'000; ++i) many += "k: 1\n";
  EXPECT_EQ(ParseYaml(many, "f").problems.size(), 100u);
}

TEST(ParseYaml, KeepsWhatWasReadBeforeASyntaxError) {
  const ParsedYaml yaml = ParseYaml("a: 1\nb: 2\nc: @\n", "f");
  EXPECT_EQ(yaml.problems.size(), 1u);
  EXPECT_EQ(yaml.root.entries.size(), 2u);
}

TEST(ParseYaml, EmptyTextIsNothing) {
  for (const char* text : {"", "# only a comment\n", "---\n", "~"}) {
    const ParsedYaml yaml = ParseYaml(text, "f");
    EXPECT_TRUE(yaml.problems.empty()) << text;
    EXPECT_EQ(yaml.root.kind, Node::Kind::kNull) << text;
  }
}

TEST(ParseFlagValue, BareTextIsNotParsed) {
  const Location flag{std::make_shared<const std::string>("--set a"), 0, 0};
  for (const char* text : {"a: b", "x #y", "*star", "it's", "1"}) {
    const ParsedYaml value = ParseFlagValue(text, flag);
    EXPECT_TRUE(value.problems.empty());
    EXPECT_EQ(value.root.text, text);
    EXPECT_TRUE(value.root.from_flag);
  }
  EXPECT_EQ(ParseFlagValue("", flag).root.kind, Node::Kind::kNull);
  EXPECT_EQ(ParseFlagValue("{a: 1}", flag).root.kind, Node::Kind::kMap);
  EXPECT_EQ(ParseFlagValue("{a: 1}", flag).root.entries[0].where.ToString(), "--set a");
  EXPECT_EQ(ParseFlagValue("{a: 1", flag).problems[0].where.ToString(), "--set a");
  EXPECT_TRUE(ParseFlagValue("'1'", flag).root.quoted);
}

}  // namespace
}  // namespace muster::cli
