#include "common/file_error.h"

#include <errno.h>
#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace muster {

absl::Status FileError(int error, std::string_view what) {
  const std::string message(what);
  switch (error) {
    case EFBIG:
      return absl::ResourceExhaustedError(absl::StrCat(message, ": file size limit reached (see ulimit -f)"));
    case ENOSPC:
      return absl::ResourceExhaustedError(absl::StrCat(message, ": no space left on the device (see df)"));
    case EDQUOT:
      return absl::ResourceExhaustedError(absl::StrCat(message, ": disk quota exceeded (see quota)"));
    case EIO:
      return absl::DataLossError(absl::StrCat(message, ": the disk reports an input/output error (see dmesg)"));
    case EACCES:
      return absl::PermissionDeniedError(absl::StrCat(message, ": Permission denied, this process runs as user ",
                                                      geteuid(), " (see ls -l, also of the folders above)"));
    default:
      return absl::ErrnoToStatus(error, message);
  }
}

}  // namespace muster
