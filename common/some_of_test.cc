#include "common/some_of.h"

#include <google/protobuf/repeated_field.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/ids.h"

namespace muster {
namespace {

TEST(SomeOf, NamesAllWhenThereAreFew) {
  EXPECT_EQ(SomeOf(std::vector<std::string>{}, 3), "");
  EXPECT_EQ(SomeOf(std::vector<std::string>{"a"}, 3), "a");
  EXPECT_EQ(SomeOf(std::vector<std::string>{"a", "b", "c"}, 3), "a, b, c");
}

TEST(SomeOf, CountsTheOthers) {
  EXPECT_EQ(SomeOf(std::vector<std::string>{"a", "b", "c", "d"}, 3), "a, b, c and 1 more");
  EXPECT_EQ(SomeOf(std::vector<std::string>{"a", "b", "c", "d", "e"}, 1, ","), "a and 4 more");
  EXPECT_EQ(SomeOf(std::vector<std::string>{"a", "b", "c", "d", "e"}, 3, ","), "a,b,c and 2 more");
}

TEST(SomeOf, TakesAnyListOfTextsAndNumbers) {
  EXPECT_EQ(SomeOf(std::vector<uint32_t>{3, 11, 19}, 2), "3, 11 and 1 more");
  EXPECT_EQ(SomeOf(std::set<std::string>{"b", "a", "c"}, 2), "a, b and 1 more");
  google::protobuf::RepeatedPtrField<std::string> repeated;
  for (const char* name : {"x", "y", "z"}) repeated.Add(name);
  EXPECT_EQ(SomeOf(repeated, 2), "x, y and 1 more");
}

TEST(SomeOf, FormatsItems) {
  const auto name = [](std::string* out, const NodeId& node) { out->append(node.value()); };
  EXPECT_EQ(SomeOf(std::set<NodeId>{NodeId("n2"), NodeId("n1"), NodeId("n3")}, 2, ", ", name), "n1, n2 and 1 more");
  const auto key = [](std::string* out, const auto& entry) { absl::StrAppend(out, entry.first, "=", entry.second); };
  EXPECT_EQ(SomeOf(std::map<std::string, int>{{"a", 1}, {"b", 2}}, 2, "; ", key), "a=1; b=2");
}

}  // namespace
}  // namespace muster
