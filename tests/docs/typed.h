// The blocks of a page that a reader types, and a machine to type them on.
//
// A block ```sh is typed. A block ```yaml whose first line is `# FILE.yaml` is saved as that file. Comments right above
// a block, in the page's source, change that:
//   <!-- not typed: REASON -->              the block is left out
//   <!-- typed with: NAME=VALUE ... -->     what readers put something else for; each test has its own values
//   <!-- typed as: COMMANDS -->             commands in place of the block
//   <!-- on the second machine -->
#pragma once

#include <map>
#include <string>
#include <vector>

namespace muster::docs {

struct Block {
  int line = 0;  // in the page
  bool second_machine = false;
  std::string save_as;  // the file of a YAML block; empty: `text` is typed
  std::string text;
  std::vector<std::string> replaced;  // "HEAD=gpu-head": to be replaced
};

// All blocks in order; those that are not typed are left out.
std::vector<Block> BlocksOf(const std::string& page);

// A shell of its own home. Variables that a block exports and its working folder are there for the next one. Processes
// that blocks leave in the background end with the object.
class Machine {
 public:
  // `home` and `programs` exist. `prefix`: words before the shell's command, such as those that enter another network.
  Machine(std::string home, std::string programs, std::vector<std::string> prefix = {});
  ~Machine();
  Machine(const Machine&) = delete;

  struct Typed {
    int exit_code = -1;
    std::string output;  // both streams; at a failure the command that failed
  };
  // Ends at the first command that fails.
  Typed Type(const std::string& commands);
  void Save(const std::string& file, const std::string& text) const;
  // The working folder.
  std::string Folder() const;

 private:
  const std::string home_, programs_;
  const std::vector<std::string> prefix_;
  int blocks_ = 0;
};

// Copies the five programs into a folder: a worker looks for the others beside itself.
void CopyPrograms(const std::string& folder);

}  // namespace muster::docs
