// Long lists in messages: "a, b, c and 5 more".
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"

namespace muster {

// The first `most` items, and how many more there are; just the items if that is all of them. `format` writes one item,
// as absl::StrJoin's does.
template <typename Items, typename Format>
std::string SomeOf(const Items& items, size_t most, absl::string_view separator, Format format) {
  const auto all = static_cast<size_t>(items.size());
  const size_t named = std::min(most, all);
  const auto end = std::next(items.begin(), static_cast<ptrdiff_t>(named));
  std::string text = absl::StrJoin(items.begin(), end, separator, format);
  if (named < all) absl::StrAppend(&text, " and ", all - named, " more");
  return text;
}

// Of texts and numbers.
template <typename Items>
std::string SomeOf(const Items& items, size_t most, absl::string_view separator = ", ") {
  return SomeOf(items, most, separator, absl::AlphaNumFormatter());
}

}  // namespace muster
