#include "worker/data/prepare.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/file_error.h"
#include "worker/data/output_file.h"
#include "worker/data/token_file.h"

namespace muster::data {
namespace {

constexpr size_t kChunkBytes = 1 << 20;

// The text to read; closes it unless it is standard input.
class Input {
 public:
  static absl::StatusOr<Input> Open(const std::string& path) {
    if (path == "-") return Input("standard input", STDIN_FILENO);
    const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor < 0 && errno == ENOENT) return absl::NotFoundError(absl::StrCat(path, ": no such file"));
    if (descriptor < 0) return FileError(errno, path);
    return Input(path, descriptor);
  }
  Input(Input&& other) noexcept : name_(std::move(other.name_)), descriptor_(std::exchange(other.descriptor_, -1)) {}
  Input& operator=(Input&&) = delete;
  ~Input() {
    if (descriptor_ > STDIN_FILENO) close(descriptor_);
  }

  const std::string& name() const { return name_; }
  struct stat Stat() const {
    struct stat found = {};
    fstat(descriptor_, &found);
    return found;
  }
  // 0: end.
  absl::StatusOr<size_t> Read(absl::Span<unsigned char> out) const {
    while (true) {
      const ssize_t got = read(descriptor_, out.data(), out.size());
      if (got >= 0) return static_cast<size_t>(got);
      if (errno != EINTR) return FileError(errno, absl::StrCat("reading ", name_));
    }
  }

 private:
  Input(std::string name, int descriptor) : name_(std::move(name)), descriptor_(descriptor) {}
  std::string name_;
  int descriptor_;
};

bool SameFile(const struct stat& a, const std::string& path) {
  struct stat b;
  return stat(path.c_str(), &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

absl::Status CheckOptions(const PrepareOptions& options, const Input& input) {
  if (options.out.empty()) return absl::InvalidArgumentError("no name for the token file");
  const struct stat text = input.Stat();
  for (const std::string* out : {&options.out, &options.validation_out}) {
    if (!out->empty() && SameFile(text, *out)) {
      return absl::InvalidArgumentError(absl::StrCat(*out, " is the text itself: it would be lost"));
    }
  }
  if (options.validation_out.empty()) return absl::OkStatus();
  if (options.validation_out == options.out) {
    return absl::InvalidArgumentError(absl::StrCat("training and validation tokens cannot both go to ", options.out));
  }
  if (!(options.validation_fraction > 0 && options.validation_fraction < 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("validation_fraction must lie between 0 and 1, not ", options.validation_fraction));
  }
  return absl::OkStatus();
}

// Two bytes for each byte of the text.
absl::Status WriteTokens(const PrepareOptions& options, const Input& input, OutputFile& out) {
  const struct stat text = input.Stat();
  const uint64_t total = S_ISREG(text.st_mode) ? text.st_size : 0;
  std::vector<unsigned char> bytes(kChunkBytes);
  std::string tokens;
  uint64_t done = 0;
  while (true) {
    absl::StatusOr<size_t> got = input.Read(absl::MakeSpan(bytes));
    if (!got.ok()) return got.status();
    if (*got == 0) break;
    tokens.assign(*got * 2, '\0');
    for (size_t i = 0; i < *got; ++i) tokens[2 * i] = static_cast<char>(bytes[i]);
    if (absl::Status status = out.Write(tokens); !status.ok()) return status;
    done += *got;
    if (options.progress) options.progress(done, total);
  }
  if (done == 0) return absl::InvalidArgumentError(absl::StrCat(input.name(), " is empty"));
  return absl::OkStatus();
}

// Moves the end of `out`, from token `begin` on, to `validation`.
absl::Status Split(OutputFile& out, uint64_t begin, OutputFile& validation) {
  std::string part;
  for (uint64_t offset = begin * 2; offset < out.size(); offset += part.size()) {
    part.resize(std::min<uint64_t>(kChunkBytes, out.size() - offset));
    if (absl::Status status = out.ReadBack(offset, part.size(), part.data()); !status.ok()) return status;
    if (absl::Status status = validation.Write(part); !status.ok()) return status;
  }
  return out.Truncate(begin * 2);
}

}  // namespace

absl::StatusOr<Prepared> Prepare(const PrepareOptions& options) {
  absl::StatusOr<Input> input = Input::Open(options.text);
  if (!input.ok()) return input.status();
  if (absl::Status status = CheckOptions(options, *input); !status.ok()) return status;
  const auto existing = options.force ? OutputFile::Existing::kReplace : OutputFile::Existing::kRefuse;
  absl::StatusOr<OutputFile> out = OutputFile::Create(options.out, existing);
  if (!out.ok()) return out.status();
  std::optional<OutputFile> validation;
  if (!options.validation_out.empty()) {
    absl::StatusOr<OutputFile> second = OutputFile::Create(options.validation_out, existing);
    if (!second.ok()) return second.status();
    validation.emplace(*std::move(second));
  }

  if (absl::Status status = WriteTokens(options, *input, *out); !status.ok()) return status;
  const uint64_t tokens = out->size() / 2;
  if (!validation.has_value()) {
    if (absl::Status status = out->Commit(); !status.ok()) return status;
    return Prepared{.tokens = tokens};
  }
  const uint64_t held_out =
      static_cast<uint64_t>(std::llround(options.validation_fraction * static_cast<double>(tokens)));
  if (held_out == 0 || held_out >= tokens) {
    return absl::InvalidArgumentError(absl::StrCat("a validation fraction of ", options.validation_fraction,
                                                   " leaves one side of ", tokens, " tokens empty"));
  }
  if (absl::Status status = Split(*out, tokens - held_out, *validation); !status.ok()) return status;
  if (absl::Status status = validation->Commit(); !status.ok()) return status;
  if (absl::Status status = out->Commit(); !status.ok()) {
    unlink(options.validation_out.c_str());
    return status;
  }
  return Prepared{.tokens = tokens - held_out, .validation_tokens = held_out};
}

absl::StatusOr<Inspection> Inspect(const std::string& path) {
  absl::StatusOr<TokenFile> file = TokenFile::Open(path, /*context=*/0);
  if (!file.ok()) return file.status();
  std::vector<uint64_t> counts(1 << 16, 0);
  std::vector<uint16_t> part;
  Inspection result{.tokens = file->tokens(), .bytes = file->tokens() * 2};
  for (uint64_t begin = 0; begin < file->tokens(); begin += part.size()) {
    part.resize(std::min<uint64_t>(kChunkBytes, file->tokens() - begin));
    if (absl::Status status = file->Read(begin, absl::MakeSpan(part)); !status.ok()) return status;
    for (const uint16_t token : part) ++counts[token];
    if (begin == 0) {
      for (size_t i = 0; i < std::min<size_t>(part.size(), 256); ++i) {
        const bool printable = (part[i] >= ' ' && part[i] < 127) || part[i] == '\n' || part[i] == '\t';
        result.beginning.push_back(printable ? static_cast<char>(part[i]) : '.');
      }
    }
  }
  bool first = true;
  for (size_t id = 0; id < counts.size(); ++id) {
    if (counts[id] == 0) continue;
    if (std::exchange(first, false)) result.smallest = id;
    result.largest = id;
    ++result.distinct;
    const double share = static_cast<double>(counts[id]) / static_cast<double>(result.tokens);
    result.entropy_bits -= share * std::log2(share);
  }
  if (result.largest > 255) result.beginning.clear();
  return result;
}

}  // namespace muster::data
