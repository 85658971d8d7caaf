#include "worker/exec/event_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <filesystem>
#include <limits>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/event_record.h"

namespace muster::exec {
namespace {

namespace fs = std::filesystem;

constexpr char kPrefix[] = "events.out.tfevents.";
constexpr size_t kMostNamedFolders = 8;
constexpr uint64_t kMostScalarEvent = 1 << 20;  // larger ones are images or sound

std::optional<std::string> ReadAt(int descriptor, uint64_t offset, size_t bytes) {
  std::string buffer(bytes, '\0');
  size_t done = 0;
  while (done < bytes) {
    const ssize_t n = pread(descriptor, buffer.data() + done, bytes - done, static_cast<off_t>(offset + done));
    if (n <= 0) return std::nullopt;
    done += static_cast<size_t>(n);
  }
  return buffer;
}

std::string HostName() {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  return name;
}

}  // namespace

bool WriterIs(absl::string_view name, absl::string_view host, const std::set<pid_t>& processes) {
  if (!absl::ConsumePrefix(&name, kPrefix)) return false;
  const std::pair<absl::string_view, absl::string_view> time_and_rest = absl::StrSplit(name, absl::MaxSplits('.', 1));
  absl::string_view rest = time_and_rest.second;
  if (!absl::ConsumePrefix(&rest, host) || !absl::ConsumePrefix(&rest, ".")) return false;
  const std::vector<absl::string_view> parts = absl::StrSplit(rest, '.');  // TensorFlow's have ".v2" at the end
  pid_t pid = 0;
  int number = 0;
  return parts.size() >= 2 && absl::SimpleAtoi(parts[0], &pid) && absl::SimpleAtoi(parts[1], &number) &&
         processes.contains(pid);
}

std::vector<std::string> FoldersIn(const std::vector<std::string>& arguments) {
  std::vector<std::string> folders;
  for (const std::string& argument : arguments) {
    const size_t begin = argument[0] == '/' ? 0 : argument.find("=/") + 1;  // npos + 1 is 0
    if (argument[begin] == '/' && folders.size() < kMostNamedFolders) folders.push_back(argument.substr(begin));
  }
  return folders;
}

EventFolder::EventFolder(std::vector<std::string> folders, std::function<std::set<pid_t>()> writers)
    : folders_(std::move(folders)), writers_(std::move(writers)), host_(HostName()) {}

template <typename Visit>
void EventFolder::ForEachEventFile(const Visit& visit) {
  for (const std::string& top : folders_) {
    std::deque<std::pair<fs::path, int>> folders = {{top, 1}};  // the nearest first
    for (int entries = 0; !folders.empty() && entries <= kMostEntries; folders.pop_front()) {
      std::error_code error;
      for (fs::directory_iterator it(folders.front().first, error), end; !error && it != end; it.increment(error)) {
        if (++entries > kMostEntries) {
          WarnOfLimit(absl::StrCat("only the nearest ", kMostEntries, " entries of ", top, " are searched"));
          break;
        }
        const std::string name = it->path().filename();
        std::error_code unknown;
        if (it->is_symlink(unknown) || unknown) continue;
        if (it->is_directory(unknown)) {
          if (name[0] != '.' && folders.front().second < kMostLevels) {
            folders.emplace_back(it->path(), folders.front().second + 1);
          }
        } else if (absl::StartsWith(name, kPrefix) && it->is_regular_file(unknown)) {
          visit(it->path().string(), name);
        }
      }
    }
  }
}

void EventFolder::SkipExisting() {
  ForEachEventFile([this](const std::string& path, const std::string&) {
    struct stat found {};
    if (stat(path.c_str(), &found) == 0) existing_[path] = static_cast<uint64_t>(found.st_size);
  });
}

void EventFolder::Scan() {
  const std::set<pid_t> writers = writers_ == nullptr ? std::set<pid_t>() : writers_();
  ForEachEventFile([&](const std::string& path, const std::string& name) {
    if (files_.contains(path) || (writers_ != nullptr && !WriterIs(name, host_, writers))) return;
    if (files_.size() >= kMostFiles) {
      return WarnOfLimit(absl::StrCat("only ", kMostFiles, " event files are read, not ", path));
    }
    // One folder may be in another one, by another path.
    for (const auto& [known, file] : files_) {
      std::error_code error;
      if (fs::equivalent(known, path, error)) return;
    }
    const auto existing = existing_.find(path);
    files_[path].offset = existing == existing_.end() ? 0 : existing->second;
  });
}

bool EventFolder::ReadFile(const std::string& path, File& file, uint64_t& budget) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  struct stat found {};
  if (descriptor < 0) return false;
  const uint64_t size = fstat(descriptor, &found) == 0 ? static_cast<uint64_t>(found.st_size) : 0;
  const uint64_t begin = file.offset;
  const auto give_up = [&](absl::string_view why) {
    file.done = true;
    if (!std::exchange(damaged_, true)) {
      Warn(absl::StrCat("stopped reading ", path, " at byte ", file.offset, ": ", why));
    }
  };
  if (size < file.offset) give_up("it was cut");
  const auto spend = [&](uint64_t bytes) { budget -= std::min(budget, bytes); };
  while (!file.done && budget > 0 && size - file.offset >= kEventHeaderBytes) {
    spend(kEventHeaderBytes);
    const std::optional<std::string> header = ReadAt(descriptor, file.offset, kEventHeaderBytes);
    if (!header.has_value()) break;
    const std::optional<uint64_t> length = EventLength(*header);
    if (!length.has_value()) {
      give_up("not a TensorBoard record");
      break;
    }
    const uint64_t rest = size - file.offset - kEventHeaderBytes;
    if (*length > rest || rest - *length < kEventTrailerBytes) break;  // its end is still to be written
    const uint64_t bytes = kEventHeaderBytes + *length + kEventTrailerBytes;
    if (*length <= kMostScalarEvent) {
      spend(*length + kEventTrailerBytes);
      const std::optional<std::string> body =
          ReadAt(descriptor, file.offset + kEventHeaderBytes, static_cast<size_t>(*length) + kEventTrailerBytes);
      if (!body.has_value()) break;
      const std::string_view event(body->data(), static_cast<size_t>(*length));
      TensorBoardEvent parsed;
      if (!IsTrailerOf(std::string_view(*body).substr(event.size()), event)) {
        give_up("its checksum is wrong");
        break;
      }
      if (parsed.ParseFromArray(event.data(), static_cast<int>(event.size()))) scalars_.Add(parsed);
      if (scalars_.size() > 2 * kMostWaiting) scalars_.ThinTo(kMostWaiting);
    }
    file.offset += bytes;
  }
  close(descriptor);
  return file.offset != begin;
}

std::vector<MetricPoint> EventFolder::Read(bool last) {
  bool grown = false;
  uint64_t budget = kBytesAtOnce;
  auto at = files_.lower_bound(first_);
  for (size_t i = 0; i < files_.size() && budget > 0; ++i) {
    if (at == files_.end()) at = files_.begin();
    auto& [path, file] = *at++;
    if (!file.done && ReadFile(path, file, budget)) grown = true;
  }
  more_ = budget == 0;
  first_ = at == files_.end() ? "" : at->first;
  return scalars_.Take(/*all=*/last ? !more_ : !grown);
}

void EventFolder::Warn(const std::string& warning) {
  absl::StrAppend(&warning_, warning_.empty() ? "" : "; ", warning);
}

void EventFolder::WarnOfLimit(const std::string& warning) {
  if (!std::exchange(limited_, true)) Warn(warning);
}

std::string EventFolder::TakeWarning() { return std::exchange(warning_, ""); }

}  // namespace muster::exec
