#include "worker/plugins/note.h"

#include <elf.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/version.h"

namespace muster::plugins {
namespace {

constexpr size_t kMaxSections = 1 << 16;
constexpr size_t kMaxNamesBytes = 1 << 20;

// False: the file has no such bytes.
bool ReadAt(int fd, uint64_t offset, void* to, size_t bytes) {
  if (offset > INT64_MAX) return false;
  for (size_t done = 0; done < bytes;) {
    const ssize_t got = pread(fd, static_cast<char*>(to) + done, bytes - done, static_cast<off_t>(offset + done));
    if (got <= 0) return false;
    done += static_cast<size_t>(got);
  }
  return true;
}

// The text of a fixed field, which a damaged file need not end.
std::string TorchOf(const plugin::Note& note) {
  const std::string text(note.torch, strnlen(note.torch, sizeof note.torch));
  std::string shown;
  for (const char c : text) shown += absl::ascii_isgraph(static_cast<unsigned char>(c)) ? c : '?';
  return shown;
}

}  // namespace

absl::StatusOr<plugin::Note> ReadNote(int fd, const std::string& path) {
  const auto bad = [&](absl::string_view what) { return absl::InvalidArgumentError(absl::StrCat(path, " ", what)); };
  Elf64_Ehdr header;
  if (!ReadAt(fd, 0, &header, sizeof header) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
      header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_type != ET_DYN || header.e_machine != EM_X86_64) {
    return bad("is not a shared object for this kind of machine");
  }
  if (header.e_shentsize != sizeof(Elf64_Shdr) || header.e_shnum == 0 || header.e_shnum > kMaxSections ||
      header.e_shstrndx >= header.e_shnum) {
    return bad("has no section headers: it was stripped of them, or is damaged");
  }
  std::vector<Elf64_Shdr> sections(header.e_shnum);
  if (!ReadAt(fd, header.e_shoff, sections.data(), sections.size() * sizeof(Elf64_Shdr))) {
    return bad("is damaged: it ends before its section headers");
  }
  const Elf64_Shdr& table = sections[header.e_shstrndx];
  std::string names(std::min<uint64_t>(table.sh_size, kMaxNamesBytes), '\0');
  if (!ReadAt(fd, table.sh_offset, names.data(), names.size())) return bad("is damaged: its section names are cut");
  for (const Elf64_Shdr& section : sections) {
    if (section.sh_name >= names.size()) continue;
    if (std::strncmp(names.data() + section.sh_name, plugin::kNoteSection, names.size() - section.sh_name) != 0)
      continue;
    plugin::Note note;
    const plugin::Note ours;
    if (section.sh_size != sizeof note || !ReadAt(fd, section.sh_offset, &note, sizeof note) ||
        note.name_bytes != ours.name_bytes || note.description_bytes != ours.description_bytes ||
        std::memcmp(note.name, ours.name, sizeof note.name) != 0) {
      return bad("has a note of Muster that is damaged, or of a later build");
    }
    return note;
  }
  return bad("holds no model for Muster: it has no MUSTER_MODEL (muster/model.h)");
}

absl::Status CheckNote(const plugin::Note& note, const std::string& path) {
  const plugin::Note ours;
  std::string why;
  if (note.abi != ours.abi) {
    why = absl::StrCat("version ", note.abi, " of libmuster-sdk's ABI; this trainer (muster ", kVersion,
                       ") has version ", ours.abi);
  } else if (TorchOf(note) != TorchOf(ours)) {
    why = absl::StrCat("LibTorch ", TorchOf(note), "; this trainer has LibTorch ", TorchOf(ours));
  } else if (note.cxx11_abi != ours.cxx11_abi) {
    why = absl::StrCat("_GLIBCXX_USE_CXX11_ABI=", note.cxx11_abi, "; this trainer has ", ours.cxx11_abi);
  }
  if (why.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(path, " was built for ", why, ": build it again"));
}

}  // namespace muster::plugins
