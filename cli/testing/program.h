// The real program as a process, with its streams.
#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "testing/temporary_folder.h"

namespace muster::cli {

// A folder below /tmp (socket paths are short) that the destructor removes with its contents.
struct Ended {
  int code = -1;  // 128 + signal for one that was killed
  std::string out, err;
};

// The path of one of this repository's programs under `bazel test`: "cli/muster".
std::string ProgramPath(const std::string& target);

class Program {
 public:
  using Environment = std::map<std::string, std::string>;

  // Starts it. The environment is PATH and `environment` alone. With `terminal`, standard output and error are one
  // pseudo-terminal of so many columns and 40 rows, read as `out`.
  Program(const std::vector<std::string>& command, const Environment& environment, const std::string& input = "",
          bool terminal = false, int columns = 100);
  ~Program();  // kills it if it still runs
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  // Reads until `text` appears. False: the program ended or the time is over.
  bool WaitForOut(const std::string& text, absl::Duration at_most = absl::Seconds(30));
  bool WaitForErr(const std::string& text, absl::Duration at_most = absl::Seconds(30));
  // Reads what comes within this time into out(). False: its streams have ended.
  bool Read(absl::Duration at_most) { return Pump(at_most); }
  const std::string& out() const { return ended_.out; }
  void Signal(int signal);
  // Resizes its terminal and sends SIGWINCH. REQUIRES: it has one.
  void Resize(int columns, int rows);
  // Waits for the exit; kills the program when the time is over.
  Ended Wait(absl::Duration at_most = absl::Seconds(60));
  pid_t pid() const { return pid_; }

 private:
  bool Pump(absl::Duration at_most);
  bool WaitFor(const std::string& text, const std::string& stream, absl::Duration at_most);

  pid_t pid_ = 0;
  bool over_ = false;
  int out_fd_ = -1, err_fd_ = -1;
  Ended ended_;
};

// Start, then Wait.
Ended RunToEnd(const std::vector<std::string>& command, const Program::Environment& environment,
               const std::string& input = "");

}  // namespace muster::cli
