// Tables for users: aligned columns, two spaces between them, no borders.
#pragma once

#include <string>
#include <vector>

#include "cli/output/screen.h"

namespace muster::cli {

struct Column {
  std::string title;      // upper case
  bool right = false;     // numbers
  bool optional = false;  // left out of a narrow terminal; neither the first column nor the last
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

  // On a terminal, makes rows fit the width: leaves out optional columns, from the right, cuts the last column, then
  // the first. Empty cells print as "-"; trailing blanks are removed.
  std::string Render(const Screen& screen) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<Cell>> rows_;
};

}  // namespace muster::cli
