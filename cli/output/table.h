// Tables for users: aligned columns, two spaces between them, no borders.
#pragma once

#include <string>
#include <vector>

#include "cli/output/screen.h"

namespace muster::cli {

// What becomes of a column on a terminal that is too narrow. Ids, names and times are kept whole.
enum class Narrow {
  kWhole,
  // Free text, of the last column, which also moves below the row where little room is left:
  kCut,   // cut, "…" marks it
  kWrap,  // continues on the next line
};

struct Column {
  std::string title;   // upper case
  bool right = false;  // numbers
  int optional = 0;    // left out of a narrow terminal, the highest first; 0: never; not for the first column
  Narrow narrow = Narrow::kWhole;
};

struct Cell {
  std::string text;  // cleaned by Render
  Colour colour = Colour::kNone;

  Cell(std::string value) : text(std::move(value)) {}  // NOLINT: rows are written as lists of strings
  Cell(const char* value) : text(value) {}             // NOLINT
  Cell(std::string value, Colour c) : text(std::move(value)), colour(c) {}
};

class Table {
 public:
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // As many cells as columns.
  void Add(std::vector<Cell> row) { rows_.push_back(std::move(row)); }
  size_t rows() const { return rows_.size(); }

  // On a terminal, makes rows fit the width: leaves out optional columns (of those that are equally optional, the right
  // ones first), then cuts or wraps free text. Rows that are still too wide overflow. Empty cells print as "-";
  // trailing blanks are removed.
  std::string Render(const Screen& screen) const;
  // The same, but rows that would overflow print as blocks with a line for each cell that is not empty. For tables of
  // many columns and few rows.
  std::string RenderOrBlocks(const Screen& screen) const;

 private:
  std::string Blocks(const Screen& screen) const;
  std::string Render(const Screen& screen, bool or_blocks) const;

  std::vector<Column> columns_;
  std::vector<std::vector<Cell>> rows_;
};

}  // namespace muster::cli
