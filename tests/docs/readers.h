// What a reader of a page has before the first block, and what stands on the page for something of theirs.
#pragma once

#include <map>
#include <string>

namespace muster::docs {

struct Reader {
  std::string before;  // commands, typed first
  // Words of the page, and what readers have in their place: as it stands between double quotes in a shell.
  std::map<std::string, std::string> stands_for;
};

// `page`: "docs/checkpoints.md". In the shell that types `before`, $SOURCES is the folder of the checkout, and $HOST
// the machine's address.
Reader ReaderOf(const std::string& page);

}  // namespace muster::docs
