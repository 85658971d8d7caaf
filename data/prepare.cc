#include "data/prepare.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/file/durable_file.h"
#include "common/file_error.h"
#include "data/token_file.h"
#include "data/tokenizer_origin.h"

namespace muster::data {
namespace {

constexpr size_t kChunkBytes = 1 << 20;
constexpr size_t kShownTokens = 256;

// An input text; the destructor closes it unless it is standard input.
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
  // False: nothing to read in that time, or a signal came.
  bool Ready(int milliseconds) const {
    pollfd waiting = {descriptor_, POLLIN, 0};
    return poll(&waiting, 1, milliseconds) > 0;  // a signal ends it with -1
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

// Whether it is a token file for sure: `muster data prepare` made it, or it has llm.c's header.
bool IsTokenFile(const std::string& path) {
  const auto origin = ReadTokenizerOrigin(path);
  if (origin.ok() && origin->has_value()) return true;
  const absl::StatusOr<TokenShard> shard = TokenShard::Open(path);
  return shard.ok() && shard->format() == TokenFormat::kLlmC;
}

absl::Status CheckTexts(const PrepareOptions& options) {
  if (options.texts.empty()) return absl::InvalidArgumentError("no input text");
  if (options.out.empty()) return absl::InvalidArgumentError("no name for the token file");
  for (const std::string& text : options.texts) {
    const absl::StatusOr<Input> input = Input::Open(text);
    if (!input.ok()) return input.status();
    if (text != "-" && S_ISREG(input->Stat().st_mode) && IsTokenFile(text)) {
      return absl::InvalidArgumentError(absl::StrCat(text, " is a token file, not text"));
    }
    for (const std::string* out : {&options.out, &options.validation_out}) {
      if (!out->empty() && SameFile(input->Stat(), *out)) {
        return absl::InvalidArgumentError(absl::StrCat(*out, " is the input text, which would be overwritten"));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status CheckOptions(const PrepareOptions& options) {
  if (options.format == TokenFormat::kMegatron) return absl::InvalidArgumentError("format: write nanogpt or llmc");
  if (options.end_of_text && (options.tokenizer == nullptr || !options.tokenizer->end_of_text().has_value())) {
    return absl::InvalidArgumentError("--end-of-text: the tokenizer has no token for the end of a text");
  }
  if (options.format == TokenFormat::kNanoGpt && options.tokenizer != nullptr &&
      options.tokenizer->vocabulary() > 65536) {
    return absl::InvalidArgumentError(absl::StrCat("format: a vocabulary of ", options.tokenizer->vocabulary(),
                                                   " does not fit nanoGPT's two bytes a token: use llmc"));
  }
  if (options.validation_out.empty()) return absl::OkStatus();
  if (options.validation_out == options.out) {
    return absl::InvalidArgumentError(absl::StrCat("training and validation tokens cannot both go to ", options.out));
  }
  if (!(options.validation_fraction > 0 && options.validation_fraction < 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the fraction for validation must lie between 0 and 1, not ", options.validation_fraction));
  }
  return absl::OkStatus();
}

// The layout of tokens in the output file.
struct Layout {
  explicit Layout(const PrepareOptions& options) {
    if (options.format != TokenFormat::kLlmC) return;
    header = kLlmCHeaderBytes;
    if (options.tokenizer != nullptr && options.tokenizer->vocabulary() > 65536) width = 4;
  }
  uint64_t TokensIn(const DurableFile& file) const { return (file.size() - header) / width; }

  uint64_t header = 0;  // bytes
  uint64_t width = 2;
};

// Written at the end, when the count is known.
absl::Status WriteHeader(const Layout& layout, DurableFile& file, bool first) {
  if (layout.header == 0) return absl::OkStatus();
  const uint64_t tokens = first ? 0 : layout.TokensIn(file);
  if (tokens > INT32_MAX) {
    return absl::OutOfRangeError(absl::StrCat(tokens, " tokens are more than the header of llm.c's format can hold (",
                                              INT32_MAX, "): make several files, or use nanogpt"));
  }
  std::string header(layout.header, '\0');
  const bool wide = layout.width == 4;
  const uint32_t words[] = {wide ? kLlmCMagic32 : kLlmCMagic16, wide ? kLlmCVersion32 : kLlmCVersion16,
                            static_cast<uint32_t>(tokens)};
  std::memcpy(header.data(), words, sizeof words);
  return first ? file.Write(header) : file.Overwrite(0, header);
}

// Streams texts as tokens into `out`.
class Writer {
 public:
  Writer(const PrepareOptions& options, const Layout& layout, DurableFile& out)
      : options_(options), layout_(layout), out_(out) {}

  absl::Status Run() {
    for (const std::string& text : options_.texts) {
      const absl::StatusOr<Input> input = Input::Open(text);
      if (!input.ok()) return input.status();
      const struct stat found = input->Stat();
      total_ += S_ISREG(found.st_mode) ? found.st_size : 0;
      known_ &= S_ISREG(found.st_mode);
    }
    for (const std::string& text : options_.texts) {
      if (absl::Status status = Text(text); !status.ok()) return status;
    }
    if (done_ > 0) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(options_.texts.size() > 1  ? "every text"
                                                   : options_.texts[0] == "-" ? "standard input"
                                                                              : options_.texts[0],
                                                   " is empty"));
  }

 private:
  // A pipe may stay silent for long.
  absl::Status AwaitInput(const Input& input) const {
    if (!options_.interrupted) return absl::OkStatus();
    constexpr int kMilliseconds = 100;
    while (!options_.interrupted()) {
      if (input.Ready(kMilliseconds)) return absl::OkStatus();
    }
    return absl::CancelledError("interrupted: nothing was written");
  }

  absl::Status Text(const std::string& path) {
    const absl::StatusOr<Input> input = Input::Open(path);
    if (!input.ok()) return input.status();
    std::vector<unsigned char> bytes(kChunkBytes);
    for (bool first = true; true; first = false) {
      if (absl::Status status = AwaitInput(*input); !status.ok()) return status;
      absl::StatusOr<size_t> got = input->Read(absl::MakeSpan(bytes));
      if (!got.ok()) return got.status();
      absl::Status status = Encode(absl::MakeConstSpan(bytes).first(*got), first, /*last=*/*got == 0);
      if (!status.ok()) return status;
      if (*got == 0) return absl::OkStatus();
      done_ += *got;
      if (options_.progress) options_.progress(done_, known_ ? total_ : 0);
    }
  }

  absl::Status Encode(absl::Span<const unsigned char> part, bool first, bool last) {
    ids_.clear();
    if (options_.tokenizer == nullptr) {
      ids_.assign(part.begin(), part.end());
    } else if (absl::Status status = EncodePart(part, first, last); !status.ok()) {
      return status;
    }
    std::string raw(ids_.size() * layout_.width, '\0');
    for (size_t i = 0; i < ids_.size(); ++i) std::memcpy(&raw[i * layout_.width], &ids_[i], layout_.width);
    return out_.Write(raw);
  }

  absl::Status EncodePart(absl::Span<const unsigned char> part, bool first, bool last) {
    Tokenizer& tokenizer = *options_.tokenizer;
    if (first) ids_ = tokenizer.before_text();
    absl::Status status = tokenizer.EncodePart({reinterpret_cast<const char*>(part.data()), part.size()}, last, ids_);
    if (!status.ok() || !last) return status;
    const std::vector<uint32_t>& after = tokenizer.after_text();
    ids_.insert(ids_.end(), after.begin(), after.end());
    const bool ended = !after.empty() && after.back() == tokenizer.end_of_text();
    if (options_.end_of_text && !ended) ids_.push_back(*tokenizer.end_of_text());
    return absl::OkStatus();
  }

  const PrepareOptions& options_;
  const Layout& layout_;
  DurableFile& out_;
  std::vector<uint32_t> ids_;
  uint64_t done_ = 0, total_ = 0;
  bool known_ = true;
};

// Moves the end of `out`, from token `begin` on, to `validation`.
absl::Status Split(const Layout& layout, DurableFile& out, uint64_t begin, DurableFile& validation) {
  const uint64_t cut = layout.header + begin * layout.width;
  std::string chunk;
  for (uint64_t offset = cut; offset < out.size(); offset += chunk.size()) {
    chunk.resize(std::min<uint64_t>(kChunkBytes, out.size() - offset));
    if (absl::Status status = out.ReadBack(offset, chunk.size(), chunk.data()); !status.ok()) return status;
    if (absl::Status status = validation.Write(chunk); !status.ok()) return status;
  }
  return out.Truncate(cut);
}

// Moves the validation tokens; returns their number.
absl::StatusOr<uint64_t> HoldOut(const PrepareOptions& options, const Layout& layout, DurableFile& out,
                                 DurableFile& validation) {
  const uint64_t tokens = layout.TokensIn(out);
  const auto held_out = static_cast<uint64_t>(std::llround(options.validation_fraction * static_cast<double>(tokens)));
  if (held_out == 0 || held_out >= tokens) {
    return absl::InvalidArgumentError(absl::StrCat("a validation fraction of ", options.validation_fraction,
                                                   " leaves one side of ", tokens, " tokens empty"));
  }
  if (absl::Status status = Split(layout, out, tokens - held_out, validation); !status.ok()) return status;
  if (absl::Status status = WriteHeader(layout, validation, /*first=*/false); !status.ok()) return status;
  return held_out;
}

}  // namespace

absl::StatusOr<Prepared> Prepare(const PrepareOptions& options) {
  if (absl::Status status = CheckTexts(options); !status.ok()) return status;
  if (absl::Status status = CheckOptions(options); !status.ok()) return status;
  const FileOptions file_options{.existing = options.force ? FileOptions::kReplace : FileOptions::kRefuse};
  const Layout layout(options);
  absl::StatusOr<DurableFile> out = DurableFile::Create(options.out, file_options);
  if (!out.ok()) return out.status();
  if (absl::Status status = WriteHeader(layout, *out, /*first=*/true); !status.ok()) return status;
  std::optional<DurableFile> validation;
  if (!options.validation_out.empty()) {
    absl::StatusOr<DurableFile> second = DurableFile::Create(options.validation_out, file_options);
    if (!second.ok()) return second.status();
    validation.emplace(*std::move(second));
    if (absl::Status status = WriteHeader(layout, *validation, /*first=*/true); !status.ok()) return status;
  }

  if (absl::Status status = Writer(options, layout, *out).Run(); !status.ok()) return status;
  Prepared prepared;
  if (validation.has_value()) {
    const absl::StatusOr<uint64_t> held_out = HoldOut(options, layout, *out, *validation);
    if (!held_out.ok()) return held_out.status();
    prepared.validation_tokens = *held_out;
  }
  prepared.tokens = layout.TokensIn(*out);
  if (options.tokenizer != nullptr) prepared.bytes_left_out = options.tokenizer->bytes_left_out();
  if (absl::Status status = WriteHeader(layout, *out, /*first=*/false); !status.ok()) return status;
  if (validation.has_value()) {
    if (absl::Status status = validation->Commit(); !status.ok()) return status;
  }
  absl::Status status = out->Commit();
  const TokenizerOrigin origin = options.tokenizer == nullptr ? TokenizerOrigin() : options.tokenizer->origin();
  if (status.ok() && validation.has_value()) status = WriteTokenizerOrigin(options.validation_out, origin);
  if (status.ok()) status = WriteTokenizerOrigin(options.out, origin);
  if (status.ok()) return prepared;
  for (const std::string& path : {options.validation_out, options.out}) {
    if (path.empty()) continue;
    unlink(path.c_str());
    unlink(absl::StrCat(path, kOriginEnding).c_str());
  }
  return status;
}

absl::StatusOr<Inspection> Inspect(const std::string& pattern) {
  const absl::StatusOr<TokenFile> file = TokenFile::Open(pattern, /*context=*/0);
  if (!file.ok()) return file.status();
  Inspection result{.tokens = file->tokens()};
  for (const TokenShard& shard : file->shards()) {
    result.bytes += shard.bytes();
    result.shards.push_back(
        {shard.path(), FormatName(shard.format()), shard.width(), shard.tokens(), shard.documents()});
  }
  constexpr size_t kUsual = 1 << 20;  // ids above are few, or the file is no token file
  std::vector<uint64_t> counts(kUsual, 0);
  std::map<uint32_t, uint64_t> others;
  std::vector<uint32_t> chunk;
  for (uint64_t begin = 0; begin < file->tokens(); begin += chunk.size()) {
    chunk.resize(std::min<uint64_t>(kChunkBytes, file->tokens() - begin));
    if (absl::Status status = file->Read(begin, absl::MakeSpan(chunk)); !status.ok()) return status;
    for (const uint32_t token : chunk) ++(token < kUsual ? counts[token] : others[token]);
    if (begin == 0) result.first.assign(chunk.begin(), chunk.begin() + std::min<size_t>(chunk.size(), kShownTokens));
  }
  bool first = true;
  const auto add = [&](uint32_t id, uint64_t count) {
    if (count == 0) return;
    if (std::exchange(first, false)) result.smallest = id;
    result.largest = id;
    ++result.distinct;
    const double share = static_cast<double>(count) / static_cast<double>(result.tokens);
    result.entropy_bits -= share * std::log2(share);
  };
  for (size_t id = 0; id < kUsual; ++id) add(static_cast<uint32_t>(id), counts[id]);
  for (const auto& [id, count] : others) add(id, count);
  return result;
}

std::string Readable(absl::Span<const uint32_t> tokens, const Tokenizer* tokenizer) {
  const uint64_t vocabulary = tokenizer == nullptr ? 256 : tokenizer->vocabulary();
  std::string text;
  for (const uint32_t token : tokens) {
    if (token >= vocabulary) return "";
    text += tokenizer == nullptr ? std::string(1, static_cast<char>(token)) : tokenizer->Decode({&token, 1});
  }
  for (char& c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool printable =
        (byte >= ' ' && byte < 127) || c == '\n' || c == '\t' || (tokenizer != nullptr && byte >= 0x80);
    if (!printable) c = '.';
  }
  return text;
}

}  // namespace muster::data
