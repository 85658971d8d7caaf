// No line that `muster` shows is wider than its terminal.
#include "tests/terminal/terminal.h"

#include <gtest/gtest.h>

#include <regex>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
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

TEST(Shows, FitTheirTerminals) {
  Shows shows;
  for (const int columns : {60, 80, 120}) {
    for (const Shows::Show& show : shows.All(columns)) {
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
