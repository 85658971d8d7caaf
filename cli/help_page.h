// How help pages look: values in our own words rather than the parser's types, and on every page the global flags.
#pragma once

#include <CLI/App.hpp>
#include <CLI/Formatter.hpp>
#include <string>
#include <vector>

namespace muster::cli {

// The group of the flags that every command takes.
inline constexpr char kGroupGlobal[] = "Everywhere";

// Where descriptions begin.
inline constexpr int kHelpColumn = 30;

// The page with lines that are wider broken at words; commands to copy stay whole.
std::string FittedPage(const std::string& page, int columns);

class HelpPage final : public CLI::Formatter {
 public:
  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override;
  std::string make_option_name(const CLI::Option* option, bool positional) const override;
  std::string make_option_opts(const CLI::Option* option) const override;
  std::string make_option_desc(const CLI::Option* option) const override;
  std::string make_option_usage(const CLI::Option* option) const override;
  std::string make_usage(const CLI::App* app, std::string name) const override;
};

}  // namespace muster::cli
