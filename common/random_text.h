// Names that differ, chosen by the kernel's random bytes.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace muster {

// 32 letters that are hard to confuse: five bits each, for names and secrets.
inline constexpr absl::string_view kPlainLetters = "abcdefghijkmnpqrstuvwxyz23456789";
static_assert(kPlainLetters.size() == 32);

// `length` letters of `alphabet`, which has 1 to 256. Uniform if their number divides 256. Other errors than those of
// getrandom(2) do not occur.
absl::StatusOr<std::string> RandomText(size_t length, absl::string_view alphabet = kPlainLetters);

}  // namespace muster
