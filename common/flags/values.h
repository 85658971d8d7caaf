// What an option's value may be.
#pragma once

#include <CLI/App.hpp>
#include <CLI/Validators.hpp>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace muster {

// One of these words, as help lists them.
inline CLI::Validator OneOf(std::vector<std::string> words) {
  const std::string listed = absl::StrCat("{", absl::StrJoin(words, ","), "}");
  return CLI::Validator(
      [words = std::move(words)](std::string& text) {
        for (const std::string& word : words) {
          if (text == word) return std::string();
        }
        return absl::StrCat("\"", text, "\" is not one of ", absl::StrJoin(words, ", "));
      },
      listed);
}

// A number of `low` to `high`, both included.
template <typename Number>
CLI::Validator Between(Number low, Number high) {
  return CLI::Validator(
      [low, high](std::string& text) {
        Number value = 0;
        if (CLI::detail::lexical_cast(text, value) && low <= value && value <= high) return std::string();
        return high == std::numeric_limits<Number>::max()
                   ? absl::StrCat("must be a number of at least ", low, ", got ", text)
                   : absl::StrCat("must be a number from ", low, " to ", high, ", got ", text);
      },
      "");
}

}  // namespace muster
