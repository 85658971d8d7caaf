#include "data/tokenizer_file.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/file/read_file.h"
#include "common/file_error.h"
#include "common/sha256.h"
#include "data/regex.h"

namespace muster::data {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr uint64_t kMaxFileBytes = 64 << 20;
constexpr size_t kMaxDepth = 64;
constexpr size_t kMaxSplits = 32;
constexpr size_t kMaxAddedBytes = 1024, kMaxAllAddedBytes = 1 << 20;
// GPT-2's, which ByteLevel has built in.
constexpr char kByteLevelPattern[] = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
// Rust's is_numeric, which has Unicode 17.
constexpr char kDigitPattern[] = R"([\p{N}\x{11de0}-\x{11de9}\x{16ff4}-\x{16ff6}])";

// A parser of nested values takes much memory for them.
bool TooDeep(const std::string& text) {
  size_t depth = 0;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"') quoted = !quoted;
    if (quoted) {
      if (c == '\\') ++i;
      continue;
    }
    if (c == '{' || c == '[') ++depth;
    if ((c == '}' || c == ']') && depth > 0) --depth;
    if (depth > kMaxDepth) return true;
  }
  return false;
}

absl::StatusOr<std::string> ReadText(const std::string& path, Sha256& sum) {
  absl::StatusOr<std::string> text = ReadWhole(path, kMaxFileBytes);
  if (text.ok()) sum.Update(*text);
  return text;
}

// Discarded: not JSON.
absl::StatusOr<json> ReadJson(const std::string& path, Sha256& sum) {
  const absl::StatusOr<std::string> text = ReadText(path, sum);
  if (!text.ok()) return text.status();
  if (TooDeep(*text)) return absl::InvalidArgumentError(absl::StrCat(path, ": nested too deep"));
  return json::parse(*text, nullptr, /*allow_exceptions=*/false);
}

// A field, or null.
const json& Field(const json& object, const char* key) {
  static const auto& none = *new json;
  const auto found = object.is_object() ? object.find(key) : object.end();
  return found == object.end() ? none : *found;
}

std::string TypeOf(const json& part) {
  const json& type = Field(part, "type");
  return type.is_string() ? type.get<std::string>() : "";
}

// Reads tokenizer.json.
class Reader {
 public:
  explicit Reader(const std::string& path) { file_.path = path; }

  absl::StatusOr<TokenizerFile> Read() {
    Sha256 sum;
    const absl::StatusOr<json> root = ReadJson(file_.path, sum);
    if (!root.ok()) return root.status();
    if (!root->is_object() || !Field(*root, "model").is_object()) {
      return Wrong("no tokenizer: expected a JSON object with \"model\"");
    }
    for (const absl::Status& status :
         {Model(Field(*root, "model")), Normalizer(Field(*root, "normalizer")),
          PreTokenizers(Field(*root, "pre_tokenizer")), Decoder(Field(*root, "decoder")),
          AddedTokens(Field(*root, "added_tokens")), PostProcessor(Field(*root, "post_processor"))}) {
      if (!status.ok()) return status;
    }
    file_.sha256 = sum.FinishHex();
    return std::move(file_);
  }

 private:
  template <typename... Parts>
  absl::Status Wrong(const Parts&... what) const {
    return absl::InvalidArgumentError(absl::StrCat(file_.path, ": ", what...));
  }
  absl::Status Unsupported(const char* field, const json& part, const char* supported) const {
    const std::string type = TypeOf(part);
    return Wrong(field, type.empty() ? " has no type" : absl::StrCat(" is \"", type, "\""), "; supported: ", supported);
  }
  absl::StatusOr<bool> Flag(const char* field, const json& part, const char* key) const {
    const json& flag = Field(part, key);
    if (flag.is_boolean()) return flag.get<bool>();
    return Wrong(field, ".", key, " must be true or false");
  }

  absl::Status Model(const json& model) {
    if (const std::string type = TypeOf(model);
        type != "BPE" && (!type.empty() || !Field(model, "merges").is_array())) {
      return Unsupported("model.type", model, "byte-level BPE");
    }
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      const json& affix = Field(model, key);
      const bool none = affix.is_null() || (affix.is_string() && affix.get_ref<const std::string&>().empty());
      if (!none) return Wrong("model.", key, " is not supported");
    }
    const json& dropout = Field(model, "dropout");
    if (!dropout.is_null() && dropout != 0.0)
      return Wrong("model.dropout is not supported: the same text would differ");
    const json& fallback = Field(model, "byte_fallback");
    if (!fallback.is_null() && fallback != false) {
      return Wrong("model.byte_fallback is not supported: this is not byte-level BPE, but SentencePiece's");
    }
    const json& ignore = Field(model, "ignore_merges");
    if (!ignore.is_null() && !ignore.is_boolean()) return Wrong("model.ignore_merges must be true or false");
    file_.pairs.ignore_merges = ignore == true;
    // Only what has no token becomes the unknown one.
    file_.every_byte = !Field(model, "unk_token").is_null();
    if (absl::Status status = Vocabulary(Field(model, "vocab"), "model.vocab"); !status.ok()) return status;
    return Merges(Field(model, "merges"));
  }

  absl::Status Vocabulary(const json& names, const char* field) {
    if (!names.is_object() || names.empty()) return Wrong(field, " must be an object of names and ids");
    for (const auto& [name, id] : names.items()) {
      if (!id.is_number_unsigned()) return Wrong(field, ": the id of \"", name, "\" is not a whole number");
      file_.pairs.names.emplace_back(name, id.get<uint64_t>());
    }
    return absl::OkStatus();
  }

  // ["a b", ...], or [["a", "b"], ...].
  absl::Status Merges(const json& merges) {
    if (!merges.is_array()) return Wrong("model.merges must be an array");
    for (const json& merge : merges) {
      std::vector<std::string> parts;
      if (merge.is_string()) {
        const auto& text = merge.get_ref<const std::string&>();
        if (absl::string_view(text).substr(0, 8) == "#version") continue;
        parts = absl::StrSplit(text, ' ');
      } else if (merge.is_array()) {
        for (const json& part : merge) parts.push_back(part.is_string() ? part.get<std::string>() : "");
      }
      if (parts.size() != 2 || parts[0].empty() || parts[1].empty()) {
        return Wrong("model.merges: merge ", file_.pairs.merges.size() + 1, " is not of two names");
      }
      file_.pairs.merges.emplace_back(std::move(parts[0]), std::move(parts[1]));
    }
    return absl::OkStatus();
  }

  absl::Status Normalizer(const json& normalizer) {
    if (normalizer.is_null()) return absl::OkStatus();
    const json& parts = Field(normalizer, "normalizers");
    if (TypeOf(normalizer) == "Sequence" && parts.is_array()) {
      for (const json& part : parts) {
        if (part.is_null()) return Unsupported("normalizer", part, "NFC");
        if (absl::Status status = Normalizer(part); !status.ok()) return status;
      }
      return absl::OkStatus();
    }
    if (TypeOf(normalizer) != "NFC") return Unsupported("normalizer", normalizer, "NFC");
    file_.nfc = true;
    return absl::OkStatus();
  }

  absl::Status PreTokenizers(const json& part) {
    if (absl::Status status = PreTokenizer(part); !status.ok()) return status;
    if (byte_level_) return absl::OkStatus();
    return Wrong("pre_tokenizer has no ByteLevel: only byte-level BPE is supported");
  }

  absl::Status PreTokenizer(const json& part) {
    constexpr char kSupported[] = "ByteLevel, Split, Digits, and a Sequence of them";
    if (part.is_null()) return absl::OkStatus();
    const std::string type = TypeOf(part);
    if (const json& parts = Field(part, "pretokenizers"); type == "Sequence" && parts.is_array()) {
      for (const json& each : parts) {
        if (absl::Status status = PreTokenizer(each); !status.ok()) return status;
      }
      return absl::OkStatus();
    }
    // It turns bytes into other characters, so a later step would not see the text.
    if (byte_level_) return Wrong("pre_tokenizer: a \"", type, "\" after ByteLevel is not supported");
    if (file_.splits.size() >= kMaxSplits) return Wrong("pre_tokenizer: over ", kMaxSplits, " steps");
    if (type == "ByteLevel") return ByteLevel(part);
    if (type == "Digits") {
      const absl::StatusOr<bool> individual = Flag("Digits", part, "individual_digits");
      if (!individual.ok()) return individual.status();
      file_.splits.push_back(
          {.pattern = kDigitPattern, .behavior = *individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous});
      return absl::OkStatus();
    }
    return type == "Split" ? SplitStep(part) : Unsupported("pre_tokenizer", part, kSupported);
  }

  absl::Status ByteLevel(const json& part) {
    byte_level_ = true;
    const absl::StatusOr<bool> prefix = Flag("ByteLevel", part, "add_prefix_space");
    if (!prefix.ok()) return prefix.status();
    if (*prefix) file_.prefix_space = file_.splits.size();
    const json& use_regex = Field(part, "use_regex");  // older files do not have it
    if (!use_regex.is_null() && !use_regex.is_boolean()) return Wrong("ByteLevel.use_regex must be true or false");
    if (use_regex != false) file_.splits.push_back({.pattern = kByteLevelPattern});
    return absl::OkStatus();
  }

  absl::Status SplitStep(const json& part) {
    static constexpr std::pair<const char*, SplitBehavior> kBehaviors[] = {
        {"Isolated", SplitBehavior::kIsolated},
        {"Removed", SplitBehavior::kRemoved},
        {"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
        {"MergedWithNext", SplitBehavior::kMergedWithNext},
        {"Contiguous", SplitBehavior::kContiguous}};
    const json& regex = Field(Field(part, "pattern"), "Regex");
    const json& text = Field(Field(part, "pattern"), "String");
    if (!regex.is_string() && !text.is_string()) return Wrong("Split.pattern must be a Regex or a String");
    const absl::StatusOr<bool> invert = Flag("Split", part, "invert");
    if (!invert.ok()) return invert.status();
    SplitRule rule{.pattern = regex.is_string() ? regex.get<std::string>() : EscapeRegex(text.get<std::string>()),
                   .invert = *invert};
    for (const auto& [name, behavior] : kBehaviors) {
      if (Field(part, "behavior") != name) continue;
      rule.behavior = behavior;
      file_.splits.push_back(std::move(rule));
      return absl::OkStatus();
    }
    return Wrong("Split.behavior must be Isolated, Removed, MergedWithPrevious, MergedWithNext or Contiguous");
  }

  absl::Status Decoder(const json& decoder) {
    const json& parts = Field(decoder, "decoders");
    if (TypeOf(decoder) == "Sequence" && parts.is_array() && parts.size() == 1) return Decoder(parts[0]);
    if (TypeOf(decoder) == "ByteLevel") return absl::OkStatus();
    return Unsupported("decoder", decoder, "ByteLevel");
  }

  absl::Status AddedTokens(const json& tokens) {
    if (tokens.is_null()) return absl::OkStatus();
    if (!tokens.is_array()) return Wrong("added_tokens must be an array");
    size_t all = 0;
    for (const json& token : tokens) {
      const json& content = Field(token, "content");
      const json& id = Field(token, "id");
      if (!content.is_string()) return Wrong("added_tokens: content must be a text");
      AddedToken added{.content = content.get<std::string>()};
      if (added.content.empty()) continue;  // as the package does
      if (!id.is_number_unsigned() || id.get<uint64_t>() >= kMaxTokenIds) {
        return Wrong("added_tokens: the id of \"", added.content, "\" is not a whole number below ", kMaxTokenIds);
      }
      added.id = id.get<uint32_t>();
      for (const auto& [key, flag] : {std::pair("single_word", &added.single_word), std::pair("lstrip", &added.lstrip),
                                      std::pair("rstrip", &added.rstrip), std::pair("normalized", &added.normalized)}) {
        const absl::StatusOr<bool> value = Flag("added_tokens", token, key);
        if (!value.ok()) return value.status();
        *flag = *value;
      }
      all += added.content.size();
      if (added.content.size() > kMaxAddedBytes || all > kMaxAllAddedBytes) {
        return Wrong("added_tokens: more than ", kMaxAddedBytes, " bytes in one, or ", kMaxAllAddedBytes, " in all");
      }
      added.special = Field(token, "special") == true;
      file_.added.push_back(std::move(added));
    }
    return absl::OkStatus();
  }

  absl::Status PostProcessor(const json& processor) {
    if (processor.is_null() || TypeOf(processor) == "ByteLevel") return absl::OkStatus();
    if (const json& parts = Field(processor, "processors"); TypeOf(processor) == "Sequence" && parts.is_array()) {
      for (const json& part : parts) {
        if (absl::Status status = PostProcessor(part); !status.ok()) return status;
      }
      return absl::OkStatus();
    }
    if (TypeOf(processor) != "TemplateProcessing") {
      return Unsupported("post_processor", processor, "ByteLevel, TemplateProcessing, and a Sequence of them");
    }
    return Template(processor);
  }

  absl::Status Template(const json& processor) {
    const json& single = Field(processor, "single");
    if (!single.is_array()) return Wrong("post_processor.single must be an array");
    std::vector<uint32_t> before, after;
    size_t texts = 0;
    for (const json& part : single) {
      if (Field(part, "Sequence").is_object()) {
        ++texts;
        continue;
      }
      const json& name = Field(Field(part, "SpecialToken"), "id");
      const std::string token = name.is_string() ? name.get<std::string>() : "";
      const json& ids = Field(Field(Field(processor, "special_tokens"), token.c_str()), "ids");
      if (!ids.is_array()) return Wrong("post_processor.single: a part is neither text nor a known special token");
      for (const json& id : ids) {
        if (!id.is_number_unsigned() || id.get<uint64_t>() >= kMaxTokenIds) return Wrong("post_processor: a wrong id");
        (texts == 0 ? before : after).push_back(id.get<uint32_t>());
      }
    }
    if (texts != 1) return Wrong("post_processor.single must have one text");
    // A later step puts its tokens around those of an earlier one.
    file_.before_text.insert(file_.before_text.begin(), before.begin(), before.end());
    file_.after_text.insert(file_.after_text.end(), after.begin(), after.end());
    return absl::OkStatus();
  }

  TokenizerFile file_;
  bool byte_level_ = false;
};

// Reads OpenAI's two files, which Hugging Face published under other names.
absl::StatusOr<TokenizerFile> ReadPair(const std::string& vocabulary, const std::string& merges) {
  TokenizerFile file{.every_byte = true, .splits = {{.pattern = kByteLevelPattern}}, .path = vocabulary};
  Sha256 sum;
  const absl::StatusOr<json> names = ReadJson(vocabulary, sum);
  if (!names.ok()) return names.status();
  if (!names->is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(
        vocabulary, " is not a JSON object of names and ids: expected GPT-2's encoder.json or vocab.json"));
  }
  for (const auto& [name, id] : names->items()) {
    if (!id.is_number_unsigned()) {
      return absl::InvalidArgumentError(absl::StrCat(vocabulary, ": the id of \"", name, "\" is not a whole number"));
    }
    file.pairs.names.emplace_back(name, id.get<uint64_t>());
  }
  const absl::StatusOr<std::string> text = ReadText(merges, sum);
  if (!text.ok()) return text.status();
  size_t number = 0;
  for (absl::string_view line : absl::StrSplit(*text, '\n')) {
    ++number;
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (line.empty() || (number == 1 && line.substr(0, 8) == "#version")) continue;
    std::vector<std::string> parts = absl::StrSplit(line, ' ');
    if (parts.size() != 2) {
      return absl::InvalidArgumentError(absl::StrCat(
          merges, ":", number, ": expected two names with a space between them, as GPT-2's vocab.bpe or merges.txt"));
    }
    file.pairs.merges.emplace_back(std::move(parts[0]), std::move(parts[1]));
  }
  file.sha256 = sum.FinishHex();
  return file;
}

// The folder's eos_token: a name, or an object with its content.
std::optional<std::string> EndOfText(const fs::path& folder) {
  Sha256 unused;
  const absl::StatusOr<json> config = ReadJson((folder / "tokenizer_config.json").string(), unused);
  if (!config.ok()) return std::nullopt;
  const json& token = Field(*config, "eos_token");
  const json& name = token.is_object() ? Field(token, "content") : token;
  if (!name.is_string()) return std::nullopt;
  return name.get<std::string>();
}

}  // namespace

absl::StatusOr<TokenizerFile> ReadTokenizer(const std::string& path) {
  std::error_code error;
  const bool folder = fs::is_directory(path, error);
  if (error == std::errc::permission_denied) return FileError(EACCES, path);
  if (!folder && !fs::exists(path, error)) {
    return absl::NotFoundError(absl::StrCat(path,
                                            ": no such file or folder: expected a tokenizer.json, or a folder with ",
                                            "one or with vocab.json and merges.txt"));
  }
  const fs::path in = folder ? fs::path(path) : fs::path(path).parent_path();
  absl::StatusOr<TokenizerFile> file;
  if (!folder || fs::exists(in / "tokenizer.json", error)) {
    file = Reader(folder ? (in / "tokenizer.json").string() : path).Read();
  } else {
    const bool openai = !fs::exists(in / "vocab.json", error) && fs::exists(in / "encoder.json", error);
    const fs::path vocabulary = in / (openai ? "encoder.json" : "vocab.json");
    const fs::path merges = in / (openai ? "vocab.bpe" : "merges.txt");
    if (!fs::exists(vocabulary, error) || !fs::exists(merges, error)) {
      return absl::NotFoundError(
          absl::StrCat(path, " holds no tokenizer: expected tokenizer.json, or vocab.json and merges.txt"));
    }
    file = ReadPair(vocabulary.string(), merges.string());
  }
  if (file.ok()) file->end_of_text = EndOfText(in);
  return file;
}

}  // namespace muster::data
