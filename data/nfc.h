// Unicode's normalization form C, as the `tokenizers` package has it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace muster::data {

// Valid UTF-8 in form C; `copy` holds it if it differs. Characters newer than Unicode 9 neither reorder nor combine,
// because the package's tables are of that version. Linear but for a sort of each run of combining marks.
std::string_view Nfc(std::string_view text, std::string& copy);

// The longest prefix that normalizes by itself whatever follows it, and what follows it likewise.
size_t SettledForNfc(std::string_view text);

}  // namespace muster::data
