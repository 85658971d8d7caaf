// Writes every field of a spec, found by reflection so that a new one cannot be forgotten, wrong in every way that its
// type allows, and checks line, column, path and message.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "cli/spec/reader.h"
#include "common/message/fields.h"
#include "proto/options.pb.h"

namespace muster::cli {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::OneofDescriptor;

// A field, or the key of a oneof, and the choices that make the key legal.
struct Place {
  std::string path;
  const FieldDescriptor* field = nullptr;  // null: the oneof's key
  const OneofDescriptor* oneof = nullptr;
  std::map<std::string, std::string> choices;   // path of a oneof's key to its member
  std::map<std::string, std::string> required;  // the same, of required keys beside it
};

void Collect(const Descriptor& type, const std::string& prefix, const std::map<std::string, std::string>& choices,
             std::vector<Place>& out) {
  for (int i = 0; i < type.real_oneof_decl_count(); ++i) {
    const OneofDescriptor& oneof = *type.oneof_decl(i);
    out.push_back({absl::StrCat(prefix, oneof.name()), nullptr, &oneof, choices, {}});
    for (int m = 0; m < oneof.field_count(); ++m) {
      auto chosen = choices;
      chosen[absl::StrCat(prefix, oneof.name())] = KeyOf(*oneof.field(m));
      Collect(*oneof.field(m)->message_type(), prefix, chosen, out);
    }
  }
  std::map<std::string, std::string> required;
  for (int i = 0; i < type.real_oneof_decl_count(); ++i) {
    const OneofDescriptor& oneof = *type.oneof_decl(i);
    if (DefaultMember(oneof) == nullptr) required[absl::StrCat(prefix, oneof.name())] = KeyOf(*oneof.field(0));
  }
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    if (field.real_containing_oneof() != nullptr) continue;
    const std::string path = absl::StrCat(prefix, KeyOf(field));
    out.push_back({path, &field, nullptr, choices, required});
    const std::string inside = absl::StrCat(path, field.is_repeated() ? "[0]." : ".");
    if (field.message_type() != nullptr) Collect(*field.message_type(), inside, choices, out);
  }
}

std::vector<Place> AllPlaces() {
  std::vector<Place> places;
  Collect(*v1::JobSpec::descriptor(), "", {}, places);
  return places;
}

// A file in which only the line of one path is wrong. In block style, so that line and column are counted here,
// independently of the reader.
struct File {
  std::string text;
  int line = 0;  // of the key
  int key_column = 0;
  int value_column = 0;
};

File Write(const Place& place, const std::string& key, const std::string& value) {
  File file;
  int lines = 0;
  const auto add = [&](const std::string& line) {
    absl::StrAppend(&file.text, line, "\n");
    ++lines;
  };
  add("# a comment");
  const std::vector<std::string> parts = absl::StrSplit(place.path, '.');
  const bool header = place.path == "apiVersion" || place.path == "kind";
  if (parts[0] != "apiVersion") add("apiVersion: muster/v1");
  if (parts[0] != "kind") add("kind: Job");
  std::string indent, prefix;
  // An item's dash stands in its first line only.
  const auto put = [&](const std::string& line) {
    add(indent + line);
    indent.assign(indent.size(), ' ');
  };
  std::map<std::string, std::string> beside = place.choices;
  beside.insert(place.required.begin(), place.required.end());
  for (size_t i = 0; i < parts.size(); ++i) {
    for (const auto& [path, member] : beside) {
      const size_t cut = path.rfind('.');
      const std::string parent = cut == std::string::npos ? "" : path.substr(0, cut + 1);
      if (parent == prefix && path != place.path) put(absl::StrCat(path.substr(parent.size()), ": ", member));
    }
    if (i + 1 < parts.size()) {
      const bool item = absl::EndsWith(parts[i], "[0]");
      put(absl::StrCat(absl::StripSuffix(parts[i], "[0]"), ":"));
      prefix += parts[i] + ".";
      indent += item ? "  - " : "  ";
    }
  }
  add(absl::StrCat(indent, key, ": ", value));
  file.line = lines;
  file.key_column = static_cast<int>(indent.size()) + 1;
  file.value_column = file.key_column + static_cast<int>(key.size()) + 2;
  if (!header) add("# the end");
  return file;
}

struct Wrong {
  std::string value;
  std::string message;     // exact
  std::string suggestion;  // exact
  bool at_key = false;
};

constexpr char kEmpty[] = "is empty: give it a value or leave the key out";

std::vector<Wrong> WrongIntegers(const FieldDescriptor& field) {
  const bool is_signed =
      field.cpp_type() == FieldDescriptor::CPPTYPE_INT32 || field.cpp_type() == FieldDescriptor::CPPTYPE_INT64;
  const bool wide =
      field.cpp_type() == FieldDescriptor::CPPTYPE_INT64 || field.cpp_type() == FieldDescriptor::CPPTYPE_UINT64;
  const std::string least = !is_signed ? "0" : wide ? "-9223372036854775808" : "-2147483648";
  const std::string most =
      is_signed ? (wide ? "9223372036854775807" : "2147483647") : (wide ? "18446744073709551615" : "4294967295");
  const std::string big = "99999999999999999999999";
  std::vector<Wrong> wrongs = {
      {"abc", "expected an integer, got the string \"abc\"", ""},
      {"'8'", "expected an integer, got the string \"8\"", "8"},
      {"1.5", "expected an integer, got the number 1.5", ""},
      {"1e3", "expected an integer, got the number 1e3", "1000"},
      {"8.0", "expected an integer, got the number 8.0", "8"},
      {"true", "expected an integer, got true", ""},
      {".nan", "expected an integer, got the number .nan", ""},
      {".inf", "expected an integer, got the number .inf", ""},
      {"1_000", "expected an integer, got the string \"1_000\"", ""},
      {"[1]", "expected an integer, got a list", ""},
      {"{a: 1}", "expected an integer, got a map", ""},
      {big, absl::StrCat("is out of range: from ", least, " to ", most, ", got the number ", big), ""},
  };
  if (!is_signed) wrongs.push_back({"-1", "must not be negative, got the number -1", ""});
  if (!wide) {
    const std::string over = is_signed ? "2147483648" : "4294967296";
    wrongs.push_back(
        {over, absl::StrCat("is out of range: from ", least, " to ", most, ", got the number ", over), ""});
  }
  return wrongs;
}

// Some maps have words that stand for them.
std::vector<Wrong> WrongMaps(const Descriptor& type) {
  std::string expected = "expected ";
  const std::vector<std::string> words = WordsFor(type);
  absl::StrAppend(&expected, absl::StrJoin(words, ", "), words.empty() ? "" : " or ", "a map, got ");
  return {
      {"abc", expected + "the string \"abc\"", ""},
      {"12", expected + "the number 12", ""},
      {"[a]", expected + "a list", ""},
      {"true", expected + "true", ""},
  };
}

std::vector<Wrong> WrongEnums(const std::vector<std::string>& words) {
  std::string list = words[0];
  for (size_t i = 1; i < words.size(); ++i) absl::StrAppend(&list, i + 1 < words.size() ? ", " : " or ", words[i]);
  std::vector<Wrong> wrongs = {
      {"12345", absl::StrCat("expected ", list, ", got the number 12345"), ""},
      {"[a]", absl::StrCat("expected ", list, ", got a list"), ""},
      {"{a: 1}", absl::StrCat("expected ", list, ", got a map"), ""},
      {"qqqqqqqqqqqq", absl::StrCat("expected ", list, ", got the string \"qqqqqqqqqqqq\""), ""},
      {"unspecified", absl::StrCat("expected ", list, ", got the string \"unspecified\""), ""},
  };
  for (const std::string& word : words) {
    const std::string slip = word + "x";
    wrongs.push_back({slip, absl::StrCat("expected ", list, ", got the string \"", slip, "\""), word});
  }
  return wrongs;
}

std::vector<Wrong> WrongsOf(const Place& place) {
  std::vector<Wrong> wrongs;
  if (place.oneof != nullptr) {
    wrongs = WrongEnums(MemberNames(*place.oneof));
    const std::vector<std::string> names = MemberNames(*place.oneof);
    std::string list = wrongs[0].message.substr(9, wrongs[0].message.find(", got") - 9);
    wrongs.push_back({"", absl::StrCat("is empty: write ", list), "", true});
    wrongs.push_back({"null", absl::StrCat("is empty: write ", list), ""});
    return wrongs;
  }
  if (place.field->is_repeated()) {
    const std::string expected =
        place.path == "pipeline.cut" ? "expected auto or a list, got " : "expected a list, got ";
    wrongs = {
        {"abc", expected + "the string \"abc\"", ""},
        {"12", expected + "the number 12", ""},
        {"true", expected + "true", ""},
        {"", kEmpty, "", true},
        {"null", kEmpty, ""},
    };
    if (!place.field->options().GetExtension(v1::pairs)) wrongs.push_back({"{a: b}", expected + "a map", ""});
    return wrongs;
  }
  switch (place.field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_STRING:
      wrongs = {
          {"12", "expected a string, got the number 12", "\"12\""},
          {"1.5", "expected a string, got the number 1.5", "\"1.5\""},
          {"true", "expected a string, got true", "\"true\""},
          {"[a]", "expected a string, got a list", ""},
          {"{a: b}", "expected a string, got a map", ""},
          {"\"a\\0b\"", "contains a NUL character", ""},
          {"\"a\\_b\"", "is not UTF-8: write the character itself, or \\u and its number", ""},
      };
      if (!place.field->has_presence()) wrongs.push_back({"''", "must not be empty: leave the key out instead", ""});
      break;
    case FieldDescriptor::CPPTYPE_BOOL:
      wrongs = {
          {"yes", "expected true or false, got the string \"yes\"", "true"},
          {"no", "expected true or false, got the string \"no\"", "false"},
          {"On", "expected true or false, got the string \"On\"", "true"},
          {"off", "expected true or false, got the string \"off\"", "false"},
          {"1", "expected true or false, got the number 1", "true"},
          {"'true'", "expected true or false, got the string \"true\"", "true"},
          {"[true]", "expected true or false, got a list", ""},
          {"{a: true}", "expected true or false, got a map", ""},
      };
      break;
    case FieldDescriptor::CPPTYPE_DOUBLE:
      wrongs = {
          {"abc", "expected a number, got the string \"abc\"", ""},
          {"'0.5'", "expected a number, got the string \"0.5\"", "0.5"},
          {"nan", "expected a number, got the string \"nan\"", ""},
          {".nan", "expected a finite number, got the number .nan", ""},
          {"-.inf", "expected a finite number, got the number -.inf", ""},
          {"1e999", "is out of range, got the number 1e999", ""},
          {"true", "expected a number, got true", ""},
          {"[1]", "expected a number, got a list", ""},
          {"{a: 1}", "expected a number, got a map", ""},
      };
      break;
    case FieldDescriptor::CPPTYPE_ENUM:
      wrongs = WrongEnums(OfferedTexts(*place.field));
      break;
    case FieldDescriptor::CPPTYPE_MESSAGE:
      wrongs = WrongMaps(*place.field->message_type());
      break;
    default:
      wrongs = WrongIntegers(*place.field);
      for (Wrong& wrong : wrongs) {
        const bool outside = wrong.message.starts_with("is out of range") || wrong.message.starts_with("must not be");
        if (place.path == "steps" && outside) wrong.message = "must be 1 to 1000000000000, got " + wrong.value;
      }
  }
  wrongs.push_back({"", kEmpty, "", true});
  wrongs.push_back({"null", kEmpty, ""});
  wrongs.push_back({"~", kEmpty, ""});
  return wrongs;
}

std::string All(const std::vector<Problem>& problems) {
  return absl::StrJoin(problems, "\n", [](std::string* out, const Problem& p) { out->append(p.ToString()); });
}

TEST(Fields, EveryWrongValueHasItsLineColumnPathAndMessage) {
  int cases = 0;
  for (const Place& place : AllPlaces()) {
    const std::string key = place.path.substr(place.path.rfind('.') + 1);
    for (const Wrong& wrong : WrongsOf(place)) {
      const File file = Write(place, key, wrong.value);
      const Reading reading = ReadSpec(file.text, "job.yaml", {});
      ASSERT_EQ(reading.problems.size(), 1u) << file.text << All(reading.problems);
      const Problem& problem = reading.problems[0];
      EXPECT_EQ(problem.where.line, file.line) << file.text << problem.ToString();
      EXPECT_EQ(problem.where.column, wrong.at_key ? file.key_column : file.value_column)
          << file.text << problem.ToString();
      EXPECT_EQ(problem.path, place.path) << file.text;
      EXPECT_EQ(problem.message, wrong.message) << file.text;
      EXPECT_EQ(problem.suggestion, wrong.suggestion) << file.text;
      ++cases;
    }
  }
  EXPECT_GT(cases, 400);
}

TEST(Fields, EveryMisspeltKeyIsUnknownAndSuggestsItself) {
  for (const Place& place : AllPlaces()) {
    const std::string key = place.path.substr(place.path.rfind('.') + 1);
    // A wrong key of a oneof leaves the choice open; a wrong key of a header is also missing: other tests cover both.
    if (place.oneof != nullptr || place.path == "apiVersion" || place.path == "kind") continue;
    std::string slip = key;
    slip.insert(1, 1, key[0]);
    const File file = Write(place, slip, "1");
    const Reading reading = ReadSpec(file.text, "job.yaml", {});
    ASSERT_EQ(reading.problems.size(), 1u) << file.text << All(reading.problems);
    const std::string parent = place.path.substr(0, place.path.size() - key.size());
    EXPECT_EQ(reading.problems[0].ToString(), absl::StrCat("job.yaml:", file.line, ":", file.key_column, ": ", parent,
                                                           slip, ": unknown field, did you mean ", place.path, "?"));
  }
}

TEST(Fields, EveryKeyTwiceIsADuplicate) {
  for (const Place& place : AllPlaces()) {
    const std::string key = place.path.substr(place.path.rfind('.') + 1);
    File file = Write(place, key, "null");
    file.text = file.text.substr(0, file.text.rfind("# the end"));
    absl::StrAppend(&file.text, std::string(file.key_column - 1, ' '), key, ": null\n");
    const Reading reading = ReadSpec(file.text, "job.yaml", {});
    ASSERT_EQ(reading.problems.size(), 2u) << file.text << All(reading.problems);
    EXPECT_EQ(reading.problems[1].ToString(),
              absl::StrCat("job.yaml:", file.line + 1, ":", file.key_column, ": ", place.path,
                           ": duplicate key, the first is in line ", file.line));
  }
}

const OneofDescriptor* OneofAt(const std::string& path) {
  for (const Place& place : AllPlaces()) {
    if (place.oneof != nullptr && place.path == path) return place.oneof;
  }
  return nullptr;
}

TEST(Fields, EveryFieldOfAMemberNamesItsOwnerBesideAnotherMember) {
  int cases = 0;
  for (const Place& place : AllPlaces()) {
    if (place.field == nullptr || place.choices.empty()) continue;
    const size_t dot = place.path.rfind('.');
    const std::string parent = dot == std::string::npos ? "" : place.path.substr(0, dot + 1);
    for (const auto& [path, member] : place.choices) {
      // Only the oneof of the field's own map.
      if (path.substr(0, path.rfind('.') + 1) != parent || path.rfind('.') == std::string::npos) continue;
      const OneofDescriptor& oneof = *OneofAt(path);
      for (const std::string& name : MemberNames(oneof)) {
        const Descriptor& type = *Member(oneof, name)->message_type();
        const std::vector<std::string> keys = AllKeys(type);
        const std::string key = KeyOf(*place.field);
        if (std::find(keys.begin(), keys.end(), key) != keys.end()) continue;
        Place moved = place;
        moved.choices[path] = name;
        const File file = Write(moved, key, "1");
        const Reading reading = ReadSpec(file.text, "job.yaml", {});
        ASSERT_EQ(reading.problems.size(), 1u) << file.text << All(reading.problems);
        const Problem& problem = reading.problems[0];
        EXPECT_EQ(problem.where.line, file.line);
        EXPECT_EQ(problem.where.column, file.key_column);
        EXPECT_EQ(problem.path, place.path);
        EXPECT_TRUE(absl::StartsWith(problem.message, "belongs to ")) << problem.ToString();
        EXPECT_TRUE(absl::StrContains(problem.message, absl::StrCat(oneof.name(), ": ", member))) << problem.ToString();
        EXPECT_TRUE(absl::EndsWith(problem.message, absl::StrCat(", but ", oneof.name(), " is ", name)))
            << problem.ToString();
        ++cases;
      }
    }
  }
  EXPECT_GT(cases, 10);
}

}  // namespace
}  // namespace muster::cli
