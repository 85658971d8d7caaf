// The proto files of a job spec as a serialized FileDescriptorSet with their comments; made by the build.
#pragma once

#include <cstddef>

namespace muster::cli {

extern const unsigned char kCommentedDescriptors[];
extern const size_t kCommentedDescriptorsSize;

}  // namespace muster::cli
