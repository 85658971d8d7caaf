// The blocks of a page, and which of them a reader types.
//
// The language of a block says what it is:
//   sh        commands, typed in the order of the page; the daemons among them run on, as in terminals of their own
//   console   commands after "$ ", and what each prints, where `...` stands for whatever is left out. What follows
//             `$ cat FILE` is that file.
//   yaml      a file, if its first line is `# FILE.yaml`; else a job (`kind: Job`), or fields of one, which must be
//   valid text, json, python, cpp, mermaid: for reading only
// Comments right above a block, in the page's source, change that:
//   <!-- not typed: REASON; DETAIL -->      REASON is one of a few (ReasonsNotToType), for blocks of a certain kind
//   <!-- first: COMMANDS -->                typed before it: what readers have done elsewhere
//   <!-- then: COMMANDS -->                 typed after it, to see that it has worked
//   <!-- typed with: NAME=VALUE ... -->     what readers put something else for; each test has its own values
//   <!-- typed as: COMMANDS -->             commands in place of the block
//   <!-- typed in a job -->                 by the ranks of an exec job
//   <!-- output varies -->                  what a console prints is an example
//   <!-- saved as: FILE -->                 relative to the home folder
//   <!-- beside: FIELDS -->                 of a job whose other fields the block shows
//   <!-- on the second machine -->
//
// type_pages.py reads the same for tools/clean_machine.sh, which has no program of ours yet; commands_test compares
// them.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace muster::docs {

struct Block {
  int line = 0;           // in the page
  std::string not_typed;  // the reason; empty: it is typed
  bool second_machine = false;
  std::string first, then;
  std::string save_as;            // the file that `text` is; "~/..." in the home folder
  std::vector<std::string> jobs;  // whole job files that must be valid; with them `text` is not typed
  std::string text;
  std::optional<std::string> prints;  // exactly, but for `...`
  std::vector<std::string> replaced;  // "HEAD=gpu-head": to be replaced
};

struct Blocks {
  std::vector<Block> blocks;          // in order, without those for reading
  std::vector<std::string> mistakes;  // "12: a block has no language"
};
Blocks BlocksOf(const std::string& page);

// Why a block is not typed, and what it must contain for that, as a regular expression.
const std::map<std::string, std::string>& ReasonsNotToType();

// Whether `printed` is `expected`, in which "..." stands for any text within a line, and a line of it alone for lines.
bool Matches(const std::string& printed, const std::string& expected);

}  // namespace muster::docs
