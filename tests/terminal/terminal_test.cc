// No line that `muster` shows is wider than its terminal, also while that is resized.
#include "tests/terminal/terminal.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <memory>
#include <regex>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cli/testing/program.h"
#include "tests/terminal/shows.h"

namespace muster::terminal {
namespace {

TEST(Terminal, WrapsCutsAndClears) {
  Terminal terminal(4);
  terminal.Feed("\x1b[32mabcd\x1b[0m\r\nabcdef\r\n");
  EXPECT_EQ(terminal.Text(), "abcd\nabcd\nef\n");
  EXPECT_EQ(terminal.Wrapped(), std::vector<std::string>{"abcd"});
  terminal.Feed("\x1b[?7lx\xc3\xa4yzz");
  EXPECT_EQ(terminal.Lines().back(), "x\xc3\xa4yz");
  EXPECT_EQ(terminal.Lost(), std::vector<std::string>{"x\xc3\xa4yz"});
  EXPECT_EQ(terminal.Wrapped().size(), 1u);
  terminal.Feed("\r\x1b[Jq\x1b[");
  EXPECT_EQ(terminal.Lines().back(), "q");
  terminal.Feed("H\x1b[2Jnew");
  EXPECT_EQ(terminal.Text(), "new\n");
}

TEST(Terminal, ReflowsWhenItIsResized) {
  Terminal terminal(8);
  terminal.Feed("first\r\nabcdefg\r");
  terminal.Resize(4);
  EXPECT_EQ(terminal.Text(), "firs\nt\nabcd\nefg\n");
  EXPECT_TRUE(terminal.Wrapped().empty()) << "the program did not do it";
  // The cursor is where the line begins, so that clearing from there leaves nothing of it.
  terminal.Feed("\r\x1b[Jxy\r");
  EXPECT_EQ(terminal.Text(), "firs\nt\nxy\n");
  // From the end of a line it does not.
  terminal.Feed("abcd");
  terminal.Resize(2);
  terminal.Feed("\r\x1b[Jz");
  EXPECT_EQ(terminal.Lines().back(), "z");
  EXPECT_NE(terminal.Text().find("ab\n"), std::string::npos) << terminal.Text();
}

class ShowsTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { shows_ = new Shows; }
  static void TearDownTestSuite() { delete std::exchange(shows_, nullptr); }

  static Shows* shows_;
};

Shows* ShowsTest::shows_ = nullptr;

// In characters, of UTF-8.
int WidestOf(const Terminal& terminal) {
  ptrdiff_t widest = 0;
  for (const std::string& line : terminal.Lines()) {
    widest = std::max(widest, std::count_if(line.begin(), line.end(), [](char c) { return (c & 0xc0) != 0x80; }));
  }
  return static_cast<int>(widest);
}

// A program that redraws itself, on a terminal that is resized.
class Redrawn {
 public:
  // `frame`: how each of its redraws begins. `mark`: a part of what each draws.
  Redrawn(std::unique_ptr<cli::Program> program, int columns, std::string frame, std::string mark)
      : program_(std::move(program)),
        frame_(std::move(frame)),
        mark_(std::move(mark)),
        columns_(columns),
        terminal_(columns),
        drawn_(columns) {}

  // Until it has drawn itself after `from`, in at least so many columns and without wrapping or losing anything.
  bool WaitForFrame(int at_least, size_t from = 0) {
    const absl::Time deadline = absl::Now() + absl::Seconds(30);
    while (absl::Now() < deadline) {
      const bool running = program_->Read(absl::Milliseconds(20));
      const std::string& out = program_->out();
      terminal_.Feed(out.substr(std::exchange(fed_, out.size())));
      const size_t begin = out.rfind(frame_);
      if (begin != std::string::npos && begin >= from) {
        drawn_ = Terminal(columns_);
        drawn_.Feed(out.substr(begin));
        const bool fits = drawn_.Wrapped().empty() && drawn_.Lost().empty();
        if (fits && absl::StrContains(drawn_.Text(), mark_) && WidestOf(drawn_) >= at_least) return true;
      }
      if (!running) return false;
    }
    return false;
  }

  // It draws itself anew; where the terminal becomes wider, wider than before.
  bool Resize(int columns, int rows) {
    program_->Resize(columns, rows);
    terminal_.Resize(columns);
    const int before = std::exchange(columns_, columns);
    return WaitForFrame(columns > before ? before + 1 : 0, program_->out().size());
  }

  // Ctrl-C.
  void Interrupt() {
    program_->Signal(SIGINT);
    const cli::Ended ended = program_->Wait();
    terminal_.Feed(ended.out.substr(std::exchange(fed_, ended.out.size())));
  }

  const Terminal& terminal() const { return terminal_; }  // all that it printed
  const Terminal& drawn() const { return drawn_; }        // its last frame alone

 private:
  const std::unique_ptr<cli::Program> program_;
  const std::string frame_, mark_;
  int columns_;
  Terminal terminal_, drawn_;
  size_t fed_ = 0;
};

// Lines of the terminal that are, or begin as, a live line of the job.
std::vector<std::string> LiveLines(const Terminal& terminal, const std::string& job) {
  std::vector<std::string> lines;
  for (const std::string& line : terminal.Lines()) {
    if (absl::StartsWith(line, job + "  ") || absl::EndsWith(line, " left")) lines.push_back(line);
  }
  return lines;
}

TEST_F(ShowsTest, ALiveLineFollowsItsTerminalsWidth) {
  const std::string job = shows_->running();
  Redrawn watch(shows_->Start({"muster", "watch", job}, 100), 100, "\r\x1b[J\x1b[?7l", " left");
  ASSERT_TRUE(watch.WaitForFrame(0)) << watch.terminal().Text();
  for (const int columns : {60, 120, 70, 100}) {
    ASSERT_TRUE(watch.Resize(columns, 40)) << columns << "\n" << watch.drawn().Text();
    EXPECT_EQ(LiveLines(watch.terminal(), job), watch.drawn().Lines()) << "in " << columns << " columns:\n"
                                                                       << watch.terminal().Text();
    EXPECT_EQ(watch.terminal().Lines().back(), watch.drawn().Lines().back());
  }
  watch.Interrupt();
  EXPECT_TRUE(LiveLines(watch.terminal(), job).empty()) << watch.terminal().Text();
  EXPECT_TRUE(watch.terminal().Wrapped().empty()) << watch.terminal().Wrapped().front();
  EXPECT_TRUE(absl::EndsWith(watch.terminal().Text(), "muster cancel " + job + "\n")) << watch.terminal().Text();
}

TEST_F(ShowsTest, TopFollowsItsTerminalsSize) {
  Redrawn top(shows_->Start({"muster", "top"}, 100), 100, "\x1b[H\x1b[J", "q quit");
  ASSERT_TRUE(top.WaitForFrame(0)) << top.terminal().Text();
  struct Size {
    int columns, rows;
  };
  for (const Size size : {Size{60, 40}, Size{120, 40}, Size{60, 12}, Size{100, 24}}) {
    ASSERT_TRUE(top.Resize(size.columns, size.rows)) << size.columns << "\n" << top.drawn().Text();
    EXPECT_EQ(top.terminal().Text(), top.drawn().Text()) << "something else is left on it";
    EXPECT_LE(top.drawn().Lines().size(), static_cast<size_t>(size.rows)) << top.drawn().Text();
    EXPECT_TRUE(absl::StrContains(top.drawn().Text(), "\nNODE ")) << top.drawn().Text();
  }
  top.Interrupt();
}

TEST_F(ShowsTest, FitTheirTerminals) {
  for (const int columns : {60, 80, 120}) {
    for (const Shows::Show& show : shows_->All(columns)) {
      const std::string where = absl::StrCat(show.command, " in ", columns, " columns:\n");
      EXPECT_TRUE(show.terminal.Lost().empty()) << where << show.terminal.Lost().front();
      for (const Terminal* terminal : {&show.terminal, &show.after}) {
        EXPECT_TRUE(terminal->Wrapped().empty()) << where << terminal->Wrapped().front() << "\n\n" << terminal->Text();
      }
      if (show.name == "submit") {
        // The live line is gone, also to the right of the message. The command can be copied.
        EXPECT_TRUE(std::regex_search(show.after.Lines().back(), std::regex("muster cancel followed-[a-z0-9]{4}$")))
            << show.after.Text();
      }
      EXPECT_TRUE(absl::StrContains(show.terminal.Text(), show.name == "submit" ? "followed" : "language-model"))
          << show.terminal.Text();
    }
  }
}

}  // namespace
}  // namespace muster::terminal
