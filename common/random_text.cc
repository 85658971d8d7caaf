#include "common/random_text.h"

#include <sys/random.h>

#include <cerrno>

namespace muster {

absl::StatusOr<std::string> RandomText(size_t length, absl::string_view alphabet) {
  std::string bytes(length, '\0');
  if (getrandom(bytes.data(), length, 0) != static_cast<ssize_t>(length)) {
    return absl::ErrnoToStatus(errno, "the kernel gives no random bytes");
  }
  for (char& c : bytes) c = alphabet[static_cast<unsigned char>(c) % alphabet.size()];
  return bytes;
}

}  // namespace muster
