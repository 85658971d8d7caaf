#include "worker/exec/report_tail.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"

namespace muster::exec {
namespace {

constexpr size_t kReadAtOnce = 1 << 20;
constexpr uint64_t kFreeEvery = 4 << 20;

}  // namespace

ReportTail::ReportTail(std::string path, double per_second, double burst)
    : path_(std::move(path)), per_second_(per_second), burst_(burst), tokens_(burst) {}

ReportTail::~ReportTail() {
  if (descriptor_ >= 0) close(descriptor_);
}

absl::Status ReportTail::Create() {
  descriptor_ = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (descriptor_ >= 0) return absl::OkStatus();
  return absl::ErrnoToStatus(errno, absl::StrCat("cannot make ", path_));
}

bool ReportTail::MaySend(SteadyTime now) {
  if (filled_at_ != SteadyTime()) tokens_ += absl::ToDoubleSeconds(now - filled_at_) * per_second_;
  tokens_ = std::min(tokens_, burst_);
  filled_at_ = now;
  if (tokens_ < 1) return false;
  tokens_ -= 1;
  return true;
}

void ReportTail::Take(absl::string_view line, SteadyTime now, std::vector<Report>& reports) {
  if (line.empty()) return;
  absl::StatusOr<Report> report = ParseReport(line);
  if (!report.ok()) {
    if (!std::exchange(malformed_, true)) {
      warning_ =
          absl::StrCat("a line of the report file is ignored, as later ones like it: ", report.status().message());
    }
  } else if (MaySend(now)) {
    reports.push_back(*std::move(report));
  } else if (!std::exchange(dropped_, true)) {
    warning_ = absl::StrCat("the script reports more than ", per_second_, " times a second: some reports are dropped");
  }
}

std::vector<Report> ReportTail::Read(SteadyTime now) {
  std::vector<Report> reports;
  if (descriptor_ < 0) return reports;
  std::string buffer(kReadAtOnce, '\0');
  const ssize_t n = pread(descriptor_, buffer.data(), buffer.size(), static_cast<off_t>(offset_));
  if (n <= 0) {
    // Whoever cut the file starts it anew.
    struct stat found {};
    if (n == 0 && fstat(descriptor_, &found) == 0 && static_cast<uint64_t>(found.st_size) < offset_) offset_ = 0;
    return reports;
  }
  buffer.resize(static_cast<size_t>(n));
  offset_ += buffer.size();
  for (size_t begin = 0; begin < buffer.size();) {
    const size_t end = buffer.find('\n', begin);
    const size_t stop = std::min(end, buffer.size());
    if (!skipping_) rest_.append(buffer, begin, stop - begin);
    if (rest_.size() > kMaxReportLine) {  // reported as malformed, once
      Take(rest_, now, reports);
      rest_.clear();
      skipping_ = true;
    }
    begin = stop + 1;
    if (end == std::string::npos) break;
    if (!std::exchange(skipping_, false)) Take(rest_, now, reports);
    rest_.clear();
  }
  if (offset_ - freed_ >= kFreeEvery) {
    // Where the file system cannot, the file stays as large as the script makes it.
    fallocate(descriptor_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(offset_));
    freed_ = offset_;
  }
  return reports;
}

std::string ReportTail::TakeWarning() { return std::exchange(warning_, ""); }

}  // namespace muster::exec
