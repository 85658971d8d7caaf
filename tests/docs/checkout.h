// The files of the checkout, for tests that run outside the sandbox, where runfiles are links to the real sources.
#pragma once

#include <filesystem>
#include <set>
#include <string>
#include <vector>

namespace muster::docs {

std::filesystem::path Root();

// Empty if there is no such file.
std::string ReadFile(const std::filesystem::path& path);
// The same of a file that has to be there; `name` is relative to Root().
std::string ReadPage(const std::string& name);

// Files with these endings (".md"), relative to Root(), without those of others and what is built.
std::vector<std::filesystem::path> Files(const std::set<std::string>& endings);
bool IsTest(const std::filesystem::path& file);

// The lines of a page without those of code blocks.
std::vector<std::string> Prose(const std::string& page);

}  // namespace muster::docs
