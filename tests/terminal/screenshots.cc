// Writes what `muster` shows in terminals of 60, 80 and 120 columns, as text and as pictures, into the folder
// $MUSTER_SCREENSHOTS: docs/monitoring.md shows some.
//   MUSTER_SCREENSHOTS=$PWD/docs/images/terminal bazel run //tests/terminal:screenshots
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "tests/terminal/shows.h"

namespace muster::terminal {
namespace {

TEST(Screenshots, OfEachWidth) {
  const char* const folder = std::getenv("MUSTER_SCREENSHOTS");
  ASSERT_NE(folder, nullptr)
      << "say where: MUSTER_SCREENSHOTS=$PWD/docs/images/terminal bazel run //tests/terminal:screenshots";
  Shows shows;
  for (const int columns : {60, 80, 120}) {
    for (const Shows::Show& show : shows.All(columns)) {
      const std::string file = absl::StrCat(folder, "/", show.name, "-", columns);
      std::ofstream(file + ".txt") << show.terminal.Text();
      std::ofstream picture(file + ".svg");
      picture << show.terminal.Svg(show.command);
      EXPECT_TRUE(picture.good()) << file;
    }
  }
}

}  // namespace
}  // namespace muster::terminal
