#include "common/file/store_files.h"

#include <unistd.h>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/file/durable_file.h"
#include "common/file/read_file.h"

namespace muster {
namespace {

constexpr char kAdopt[] = "adopt", kReset[] = "reset";

std::string IdFile(const std::string& state_dir) { return state_dir + "/store_id"; }
std::string ForeignFile(const std::string& state_dir) { return state_dir + "/foreign_store"; }
std::string ChoiceFile(const std::string& state_dir) { return state_dir + "/store_choice"; }

std::string Line(const std::string& path) {
  return std::string(absl::StripAsciiWhitespace(ReadWhole(path).value_or("")));
}

}  // namespace

absl::StatusOr<std::string> ReadStoreId(const std::string& state_dir) {
  const absl::StatusOr<std::string> text = ReadWhole(IdFile(state_dir));
  if (absl::IsNotFound(text.status())) return "";
  if (!text.ok()) return text.status();
  return std::string(absl::StripAsciiWhitespace(*text));
}

absl::Status WriteStoreId(const std::string& state_dir, const std::string& id) {
  return WriteDurably(IdFile(state_dir), id + "\n");
}

absl::Status WriteForeignStore(const std::string& state_dir, const std::string& message) {
  if (!message.empty()) return WriteDurably(ForeignFile(state_dir), message + "\n");
  unlink(ForeignFile(state_dir).c_str());
  return absl::OkStatus();
}

std::string ReadForeignStore(const std::string& state_dir) { return Line(ForeignFile(state_dir)); }

absl::Status WriteStoreChoice(const std::string& state_dir, StoreChoice choice) {
  return WriteDurably(ChoiceFile(state_dir), absl::StrCat(choice == StoreChoice::kAdopt ? kAdopt : kReset, "\n"));
}

std::optional<StoreChoice> TakeStoreChoice(const std::string& state_dir) {
  const std::string text = Line(ChoiceFile(state_dir));
  if (text.empty()) return std::nullopt;
  unlink(ChoiceFile(state_dir).c_str());
  if (text == kAdopt) return StoreChoice::kAdopt;
  if (text == kReset) return StoreChoice::kReset;
  return std::nullopt;
}

}  // namespace muster
