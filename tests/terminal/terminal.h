// A terminal as far as `muster` uses one: text in UTF-8, colors, a carriage return, clearing, lines that wrap or are
// cut at the right edge, and a width that changes.
//
//   Terminal terminal(80);
//   terminal.Feed(program_output);
//   terminal.Text();   // what is on it, a line each
//
// Unknown control sequences are test failures.
#pragma once

#include <string>
#include <vector>

namespace muster::terminal {

class Terminal {
 public:
  explicit Terminal(int columns) : columns_(columns) {}

  void Feed(const std::string& bytes);
  // As VTE, kitty and iTerm2 do: lines that are too wide continue in the next row, and the cursor stays at its
  // character.
  void Resize(int columns);

  // The lines, without spaces at their ends.
  std::vector<std::string> Lines() const;
  std::string Text() const;
  // What was written beyond the right edge, and so wrapped into the next line, or was lost where lines do not wrap: the
  // line so far, each time.
  const std::vector<std::string>& Wrapped() const { return wrapped_; }
  const std::vector<std::string>& Lost() const { return lost_; }
  // A picture, in a window with `title`.
  std::string Svg(const std::string& title) const;

 private:
  struct Cell {
    std::string character = " ";  // in UTF-8
    std::string style;            // the last sequence for colors: "32"; empty: plain
  };
  std::vector<Cell>& Row();
  void Put(const std::string& character);
  void Control(const std::string& parameters, char command);

  int columns_;
  std::vector<std::vector<Cell>> rows_;
  int row_ = 0, column_ = 0;
  bool wraps_ = true;
  std::string style_;
  std::string pending_;  // the beginning of a sequence or a character
  std::vector<std::string> wrapped_, lost_;
};

}  // namespace muster::terminal
