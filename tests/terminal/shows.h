// A cluster with a completed, a running and two waiting jobs, and what `muster` shows of it on terminals.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cli/testing/program.h"
#include "tests/cluster/cluster.h"
#include "tests/terminal/terminal.h"

namespace muster::terminal {

class Shows {
 public:
  Shows();

  struct Show {
    std::string name;     // "ps"
    std::string command;  // "muster ps --all"
    Terminal terminal;
    Terminal after;  // as Ctrl-C leaves it
  };
  // ps, describe, top, and submit -f of a job until it has made some steps: on a terminal of so many columns.
  std::vector<Show> All(int columns);
  // The program, which runs on a terminal of so many columns.
  std::unique_ptr<cli::Program> Start(std::vector<std::string> command, int columns) const;
  // The running job's id.
  const std::string& running() const { return running_; }

 private:
  // Until it ends, or until it has printed `until` and Ctrl-C ends it.
  Show Run(const std::string& name, const std::vector<std::string>& command, int columns,
           const std::string& until = "");

  cluster::Cluster cluster_;
  std::string running_;
  std::string job_;  // the file that `submit` is given
};

}  // namespace muster::terminal
