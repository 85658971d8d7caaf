#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/spec/reader.h"
#include "docs/generate/pages.h"
#include "docs/generate/spec_fields.h"

namespace muster::docs {
namespace {

absl::StatusOr<std::string> ReadRunfile(const std::string& path) {
  std::ifstream in(path);
  if (!in) return absl::NotFoundError(path);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

TEST(Generated, PagesAreCurrent) {
  const auto pages = GeneratedPages(RunFromRunfiles, ReadRunfile);
  ASSERT_TRUE(pages.ok()) << pages.status();
  ASSERT_EQ(pages->size(), 4u);
  for (const Page& page : *pages) {
    EXPECT_EQ(ReadRunfile(page.path).value_or(""), page.text) << page.path << " is stale: bazel run //docs:update";
  }
}

TEST(Generated, AProgramThatFailsIsAnError) {
  const auto broken = [](const std::string&, const std::string&) -> absl::StatusOr<std::string> {
    return absl::InternalError("no such program");
  };
  EXPECT_EQ(GeneratedPages(broken, ReadRunfile).status(), absl::InternalError("no such program"));
  const auto empty = [](const std::string&) -> absl::StatusOr<std::string> { return "# Configuration\n"; };
  EXPECT_EQ(GeneratedPages(RunFromRunfiles, empty).status().code(), absl::StatusCode::kFailedPrecondition);
}

std::map<std::string, SpecField> FieldsByPath() {
  std::map<std::string, SpecField> fields;
  for (const SpecSection& section : SpecSections()) {
    for (const SpecField& field : section.fields) fields.emplace(field.path, field);
  }
  return fields;
}

// What a reader copies from the page must be read as that field. Entries of lists of maps have no path.
TEST(SpecFields, EveryExampleIsReadAsItsField) {
  int tried = 0;
  for (const SpecSection& section : SpecSections()) {
    for (const SpecField& field : section.fields) {
      if (field.example.empty() || absl::StartsWith(field.path, "env.") ||
          absl::StartsWith(field.path, "model.options.")) {
        continue;
      }
      std::vector<cli::Assignment> assignments = {{"--set " + field.path, field.path, field.example}};
      if (!section.choice.empty()) {
        const size_t colon = section.choice.find(": ");
        const std::string path =
            absl::StrCat(section.path, section.path.empty() ? "" : ".", section.choice.substr(0, colon));
        assignments.push_back({"--set " + path, path, section.choice.substr(colon + 2)});
      } else if (absl::StartsWith(field.path, "model.rope_scaling.")) {
        assignments.push_back({"--set model.family", "model.family", "llama"});
      } else if (absl::StartsWith(field.path, "model.") && field.path != "model.family") {
        assignments.push_back({"--set model.family", "model.family", "gpt2"});
      }
      const bool trains = std::none_of(assignments.begin(), assignments.end(),
                                       [](const cli::Assignment& a) { return a.path == "workload"; });
      const std::string job =
          absl::StrCat("apiVersion: muster/v1\nkind: Job\n", trains ? "model: {family: gpt2}\n" : "");
      const cli::Reading reading = cli::ReadSpec(job, "job.yaml", assignments);
      for (const cli::Problem& problem : reading.problems) {
        ADD_FAILURE() << field.path << ": " << field.example << ": " << problem.ToString();
      }
      ++tried;
    }
  }
  EXPECT_GT(tried, 150);
}

TEST(SpecFields, EveryFieldSaysWhatItMeans) {
  for (const auto& [path, field] : FieldsByPath()) {
    EXPECT_TRUE(!field.meaning.empty() || !field.link.empty() || absl::StartsWith(field.type, "map"))
        << path << ": proto/spec.proto has no comment on this field";
  }
}

// A comment that states a default as a number or a word agrees with what the resolver fills in.
TEST(SpecFields, DefaultsInCommentsAreTheResolvers) {
  const std::regex stated(R"([Dd]efault:? (-?[0-9][0-9.e+-]*[0-9]|[0-9]|true|false|[a-z][a-z0-9_]*)(?=$|[;.,)]( |$)))");
  const std::set<std::string> words = {"required", "none", "depends", "of the service", ""};
  int compared = 0;
  for (const auto& [path, field] : FieldsByPath()) {
    std::smatch found;
    if (words.contains(field.fallback) || field.fallback[0] == '[' || !std::regex_search(field.meaning, found, stated))
      continue;
    const std::string text = found[1];
    const bool number = std::isdigit(static_cast<unsigned char>(text.back())) != 0 && text.find('_') == text.npos &&
                        (std::isdigit(static_cast<unsigned char>(text[0])) != 0 || text[0] == '-');
    const bool value = number || text == "true" || text == "false" ||
                       absl::StrContains(absl::StrCat(" ", field.type, ","), absl::StrCat(" ", text, ",")) ||
                       absl::StrContains(field.type, text + " or ") || absl::StrContains(field.type, " or " + text);
    if (!value) continue;
    if (number) {
      EXPECT_NEAR(std::stod(text), std::stod(field.fallback), 1e-6 * std::abs(std::stod(text)))
          << path << ": " << field.meaning;
    } else {
      EXPECT_EQ(text, field.fallback) << path << ": " << field.meaning;
    }
    ++compared;
  }
  EXPECT_GT(compared, 60);
}

TEST(SpecFields, TheResolverDecides) {
  const auto fields = FieldsByPath();
  EXPECT_EQ(fields.at("optimizer.weight_decay").fallback, "0.1");
  EXPECT_EQ(fields.at("pipeline.schedule").fallback, "1f1b");
  EXPECT_EQ(fields.at("data.mean").fallback, "[0.5, 0.5, 0.5]");
  EXPECT_EQ(fields.at("precision.loss_scaling.initial").fallback, "65536");
  EXPECT_EQ(fields.at("batch.microbatch").fallback, "depends");
  EXPECT_EQ(fields.at("steps").fallback, "required");
  EXPECT_EQ(fields.at("steps").unit, "steps");
}

}  // namespace
}  // namespace muster::docs
