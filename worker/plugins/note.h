// The note of a library's file that says which ABI it was built for (sdk/muster/plugin.h), read without loading it.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sdk/muster/plugin.h"

namespace muster::plugins {

// From an open file of any content; the file's offset does not matter. InvalidArgument: no 64-bit ELF shared object, a
// damaged one, or one without a note; the message begins with `path`.
absl::StatusOr<plugin::Note> ReadNote(int fd, const std::string& path);

// FailedPrecondition: the library was built for another ABI, LibTorch or C++ library than this program; names both.
absl::Status CheckNote(const plugin::Note& note, const std::string& path);

}  // namespace muster::plugins
