#include "cli/job_file.h"

#include <unistd.h>

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "checkpoint/hugging_face.h"
#include "cli/client.h"
#include "cli/config.h"
#include "cli/spec/paths.h"
#include "cli/spec/set.h"
#include "common/file/read_file.h"
#include "models/family.h"

namespace muster::cli {
namespace {

absl::StatusOr<std::string> WorkingFolder() {
  char folder[4096];
  if (getcwd(folder, sizeof(folder)) == nullptr) return absl::ErrnoToStatus(errno, "cannot get the working folder");
  return std::string(folder);
}

// --template first, so that --set comes last.
absl::StatusOr<std::vector<Assignment>> AssignmentsOf(const SetFlags& set) {
  std::vector<Assignment> assignments;
  if (!set.template_name.empty()) assignments.push_back({"--template", "template", set.template_name});
  for (const std::string& text : set.sets) {
    absl::StatusOr<Assignment> assignment = ParseAssignment(text);
    if (!assignment.ok()) return assignment.status();
    assignments.push_back(*std::move(assignment));
  }
  assignments.insert(assignments.end(), set.varied.begin(), set.varied.end());
  return assignments;
}

constexpr char kStandardInput[] = "stdin";
constexpr uint64_t kMaxInventoryBytes = 4 << 20;  // the coordinator takes a tenth of it

bool SameOptions(const v1::Custom& a, const v1::Custom& b) {
  const auto values = [](const v1::Custom& custom) {
    std::map<std::string, std::string> all;
    for (const v1::ModelOption& option : custom.options()) all[option.name()] = option.value();
    return all;
  };
  return values(a) == values(b);
}

// The coordinator plans from the spec alone, so numbers that a spec with model.from or checkpoint.resume_from omits are
// filled in from the folder's config.json or manifest. If only the workers see the folder, nothing changes, and the
// coordinator reports what is missing.
void FillFromConfig(Reading& reading) {
  v1::Train& train = *reading.spec.mutable_train();
  const bool resumes = train.model().from().empty();
  const std::string from =
      resumes ? absl::StrReplaceAll(train.checkpoint().resume_from(), {{"{name}", reading.spec.name()}})
              : train.model().from();
  const models::ModelFamily* const family = models::FamilyOf(train.model());
  if (from.empty() || family == nullptr || models::HasSize(train.model())) return;
  if (train.model().custom().units_size() > 0) return;  // an inventory has every number
  const absl::StatusOr<v1::Model> config = checkpoint::ReadModel(from);
  if (absl::IsNotFound(config.status()) || absl::IsPermissionDenied(config.status())) return;
  const bool another = config.ok() && models::FamilyOf(*config) != family;
  if (!config.ok() || another) {
    const char* field = resumes ? "checkpoint.resume_from" : "model.from";
    const Location& where = reading.sources.Find(field);
    const std::string why = another ? absl::StrCat(from, " is a ", models::Describe(*config),
                                                   ", this job's model.family is ", family->name())
                                    : std::string(config.status().message());
    reading.problems.push_back(Problem{where, field, why, ""});
    return;
  }
  // The spec takes precedence; the trainer reports differences.
  *train.mutable_model() = models::Overlaid(*config, train.model());
}

// Reads model.inventory, what `muster model inspect` printed, into the spec; what the spec says itself wins.
void ReadInventory(Reading& reading) {
  if (!reading.spec.train().model().has_custom()) return;
  v1::Custom& custom = *reading.spec.mutable_train()->mutable_model()->mutable_custom();
  const std::string file = custom.inventory();
  if (file.empty()) return;
  const auto problem = [&](absl::string_view why) {
    reading.problems.push_back(
        Problem{reading.sources.Find("model.inventory"), "model.inventory", absl::StrCat(file, ": ", why), ""});
  };
  const absl::StatusOr<std::string> text = ReadWhole(file, kMaxInventoryBytes);
  if (!text.ok()) return problem(text.status().message());
  v1::Custom inspected;
  if (const auto read = google::protobuf::util::JsonStringToMessage(*text, &inspected); !read.ok()) {
    return problem(absl::StrCat("is not what `muster model inspect` prints: ", std::string(read.message())));
  }
  inspected.clear_inventory();
  custom.clear_inventory();
  if (custom.options_size() > 0 && !SameOptions(custom, inspected)) {
    return problem("was made with other options than model.options: give `muster model inspect` the same, by --option");
  }
  custom.clear_options();
  inspected.MergeFrom(custom);
  custom = std::move(inspected);
}

// How errors call a template, and the key under which its paths are found.
std::string NameOfTemplate(const std::string& name) { return absl::StrCat("template ", name); }

// `read`: the spec, over a template if one is given.
using ReadOver = std::function<Reading(const std::optional<SpecText>& below)>;
absl::StatusOr<Reading> ReadOverItsTemplate(const ReadOver& read, const TemplateText& templates) {
  Reading alone = read(std::nullopt);
  const std::string& name = alone.spec.template_();
  if (name.empty()) return alone;
  absl::StatusOr<std::string> text = templates(name);
  if (absl::IsNotFound(text.status())) {
    const Location& where = alone.sources.Find("template");
    return ToStatus({{where, where.line > 0 ? "template" : "", std::string(text.status().message()), ""}});
  }
  if (!text.ok()) return text.status();
  return read(SpecText{*std::move(text), NameOfTemplate(name)});
}

// Relative paths in a file start from the file's folder; the default for checkpoints from that of `first_file`, which
// is empty if there are only flags. Those in a template start where they would if they stood in that file.
absl::StatusOr<Reading> Finish(Reading reading, const std::string& first_file, const std::string& working_folder) {
  const std::string of_template = NameOfTemplate(reading.spec.template_());
  const auto folder_of = [&](const std::string& named) {
    const std::string& file = named == of_template ? first_file : named;
    if (file == kStandardInput || file.empty()) return working_folder;
    const std::string absolute = AbsolutePath(file, working_folder);
    return absolute.substr(0, std::max<size_t>(absolute.rfind('/'), 1));
  };
  MakePathsAbsolute(folder_of, working_folder, reading);
  AddDefaultPath(folder_of(first_file), reading);
  if (!reading.spec.has_exec()) {
    ReadInventory(reading);
    FillFromConfig(reading);
  }
  SortProblems(reading.problems);
  return reading;
}

}  // namespace

TemplateText TemplatesOf(const Invocation& invocation) {
  return [&invocation, texts = std::map<std::string, std::string>()](
             const std::string& name) mutable -> absl::StatusOr<std::string> {
    if (const auto known = texts.find(name); known != texts.end()) return known->second;
    const absl::StatusOr<std::unique_ptr<Client>> client = invocation.Connect();
    if (!client.ok()) return client.status();
    const absl::StatusOr<v1::Template> found = (*client)->GetTemplate(name);
    if (!found.ok()) return found.status();
    return texts[name] = found->text();
  };
}

void AddSetFlags(CLI::App* command, SetFlags& flags) {
  command->add_option("--template", flags.template_name, "template that the job is merged over (muster templates)")
      ->type_name("TEMPLATE");
  command->add_option("--set", flags.sets, "PATH=VALUE: set a field of the spec; may be repeated")
      ->type_name("PATH=VALUE")
      ->allow_extra_args(false);
}

absl::StatusOr<SpecText> ReadJobFile(const std::string& file) {
  // One byte more than the reader accepts, so that the reader refuses an oversized file.
  absl::StatusOr<std::string> text = ReadWhole(file == "-" ? "/dev/stdin" : file, kMaxYamlBytes + 1);
  if (!text.ok()) return text.status();
  return SpecText{*std::move(text), file == "-" ? kStandardInput : file};
}

absl::StatusOr<Reading> LoadJobFiles(const std::vector<std::string>& files, const SetFlags& set,
                                     const std::vector<Assignment>& flags, const TemplateText& templates) {
  const absl::StatusOr<std::vector<Assignment>> sets = AssignmentsOf(set);
  if (!sets.ok()) return sets.status();
  std::vector<Assignment> assignments = flags;
  assignments.insert(assignments.end(), sets->begin(), sets->end());
  const absl::StatusOr<std::string> working_folder = WorkingFolder();
  if (!working_folder.ok()) return working_folder.status();
  if (std::count(files.begin(), files.end(), "-") > 1) {
    return absl::InvalidArgumentError("standard input (-) can be given only once");
  }
  std::vector<SpecText> texts;
  for (const std::string& file : files) {
    absl::StatusOr<SpecText> text = ReadJobFile(file);
    if (!text.ok()) return text.status();
    texts.push_back(*std::move(text));
  }
  absl::StatusOr<Reading> reading = ReadOverItsTemplate(
      [&](const std::optional<SpecText>& below) {
        std::vector<SpecText> all = texts;
        if (below.has_value()) all.insert(all.begin(), *below);
        return ReadSpecs(all, assignments);
      },
      templates);
  if (!reading.ok()) return reading;
  return Finish(*std::move(reading), texts.front().name, *working_folder);
}

absl::StatusOr<Reading> LoadFlags(const std::vector<Assignment>& flags, const SetFlags& set,
                                  const TemplateText& templates) {
  const absl::StatusOr<std::vector<Assignment>> sets = AssignmentsOf(set);
  if (!sets.ok()) return sets.status();
  const absl::StatusOr<std::string> working_folder = WorkingFolder();
  if (!working_folder.ok()) return working_folder.status();
  absl::StatusOr<Reading> reading = ReadOverItsTemplate(
      [&](const std::optional<SpecText>& below) { return ReadFlags(flags, *sets, below); }, templates);
  if (!reading.ok()) return reading;
  return Finish(*std::move(reading), "", *working_folder);
}

absl::Status WithPlaces(const absl::Status& status, const SourceMap& sources) {
  if (!absl::IsInvalidArgument(status)) return status;
  const std::vector<Problem> problems = Locate(SpecErrorsOf(status), sources);
  return problems.empty() ? status : ToStatus(problems);
}

}  // namespace muster::cli
