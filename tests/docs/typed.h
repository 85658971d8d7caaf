// A machine to type the commands of a page on.
#pragma once

#include <string>
#include <vector>

namespace muster::docs {

// A shell of its own home. Variables that a block exports and its working folder are there for the next one. Processes
// that blocks leave in the background end with the object.
//
// `muster-coordinator` and `muster-worker` without a `&` return once they serve and run on, until another one with the
// same --state-dir takes their place, or `stop PROGRAM`.
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
  // `file` is relative to the working folder, or "~/...", whose folders are made.
  void Save(const std::string& file, const std::string& text) const;
  // The working folder.
  std::string Folder() const;

 private:
  const std::string home_, programs_;
  const std::vector<std::string> prefix_;
  int blocks_ = 0;
};

// Copies the programs into a folder: a worker looks for the others beside itself.
void CopyPrograms(const std::string& folder);

}  // namespace muster::docs
