#include "cli/check_job.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "checkpoint/check_start.h"
#include "cli/command.h"
#include "cli/spec/paths.h"
#include "common/checkpoint_names.h"
#include "common/file/beneath.h"
#include "common/file_error.h"
#include "data/file_pattern.h"
#include "data/images/image_file.h"
#include "data/tensors/tensor_file.h"
#include "data/token_file.h"
#include "data/tokenizer_origin.h"
#include "models/inventory.h"

namespace muster::cli {
namespace {

constexpr uint64_t kMostCheckedBytes = 256 << 20;  // of tokens; the trainer reads all
constexpr uint64_t kMostCheckedLabels = 1 << 16;   // as many bytes from the disk, of large images

// Whether the coordinator is on this machine, and every node of it, too: workers elsewhere have other files.
bool IsAllHere(Client& client) {
  if (!absl::StartsWith(client.connection().address, "unix:")) return false;
  char name[256] = "";
  gethostname(name, sizeof(name) - 1);
  const absl::StatusOr<v1::ListNodesReply> nodes = client.ListNodes();
  return nodes.ok() && !nodes->nodes().empty() &&
         std::all_of(nodes->nodes().begin(), nodes->nodes().end(),
                     [&](const v1::Node& node) { return node.hostname() == name; });
}

// Why the file cannot be read; empty: it can.
std::string WhyUnreadable(const std::string& path) {
  struct stat found {};
  if (stat(path.c_str(), &found) != 0) {
    return absl::StrCat(errno == ENOENT ? "no such file" : std::strerror(errno), ": ", path);
  }
  if (S_ISDIR(found.st_mode)) return absl::StrCat("is a folder, not a file: ", path);
  return access(path.c_str(), R_OK) == 0 ? "" : absl::StrCat(std::strerror(errno), ": ", path);
}

std::string WhyNoData(const std::string& pattern) {
  const absl::StatusOr<std::vector<std::string>> files = data::FilesOf(pattern);
  if (!files.ok()) return absl::StrCat("no such files: ", pattern);
  for (const std::string& file : *files) {
    if (std::string why = WhyUnreadable(file); !why.empty()) return why;
  }
  return "";
}

// As the trainer opens it, but for what the model asks for: its context and vocabulary.
std::string WhyNoTokens(const std::string& pattern) {
  if (std::string why = WhyNoData(pattern); !why.empty()) return why;
  const absl::Status opened = data::TokenFile::Open(pattern, /*context=*/0).status();
  return std::string(opened.ok() ? data::ReadTokenizerOrigin(pattern).status().message() : opened.message());
}

// The same of what is evaluated beside `tokens`.
std::string WhyNotBeside(const std::string& pattern, const std::string& tokens) {
  if (std::string why = WhyNoTokens(pattern); !why.empty()) return why;
  const auto origin = data::ReadTokenizerOrigin(tokens);
  return origin.ok() ? std::string(data::CheckTokenizer(pattern, tokens, *origin).message()) : "";
}

// As the trainer opens it for the model.
std::string WhyNotTokensOf(const v1::Inventory& inventory, const std::string& pattern) {
  if (pattern.empty()) return "";
  const absl::StatusOr<data::TokenFile> file = data::TokenFile::Open(pattern, models::WholeTargetsPerSample(inventory));
  if (!file.ok()) return std::string(file.status().message());
  const uint64_t vocabulary = models::Find(inventory.task(), models::kTargets).bound();
  return std::string(file->CheckVocabulary(vocabulary, kMostCheckedBytes).message());
}

// As the trainer opens them, but for what the model asks for: its shape and classes.
std::string WhyNoImages(const std::string& pattern) {
  if (std::string why = WhyNoData(pattern); !why.empty()) return why;
  return std::string(data::ImageFile::Open(pattern).status().message());
}

// As the trainer opens them for the model.
std::string WhyNotImagesOf(const v1::Inventory& inventory, const std::string& pattern) {
  if (pattern.empty()) return "";
  const absl::StatusOr<data::ImageFile> file = data::ImageFile::Open(pattern);
  if (!file.ok()) return std::string(file.status().message());
  const auto& shape = models::Find(inventory.task(), models::kInputs).shape();
  if (absl::Status s = file->CheckShape(shape[0], shape[1], shape[2]); !s.ok()) return std::string(s.message());
  const uint64_t classes = models::Find(inventory.task(), models::kTargets).bound();
  return std::string(file->CheckLabels(classes, kMostCheckedLabels).message());
}

// As the trainer opens them for the model, which also reads all integers.
std::string WhyNotTensorsOf(const v1::Inventory& inventory, const std::string& pattern) {
  if (pattern.empty()) return "";
  return std::string(data::TensorFile::Open(pattern, inventory.task()).status().message());
}

// Why a job with `tokens` cannot start from a folder. What `waits` for other jobs may find there what they will have
// written, and ranks of another user what this one may not read.
std::string WhyNoStart(const std::string& path, const absl::StatusOr<v1::Manifest>& found, const std::string& tokens,
                       bool waits) {
  if (absl::IsPermissionDenied(found.status()) || (waits && absl::IsNotFound(found.status()))) return "";
  if (!found.ok()) return std::string(found.status().message());
  const absl::Status same =
      data::CheckTokenizer(tokens, absl::StrCat("the data of ", path), checkpoint::TokenizerOf(*found));
  return std::string(same.message());
}

std::string WhyNoFolder(const std::string& path) {
  struct stat found {};
  if (stat(path.c_str(), &found) != 0) {
    return absl::StrCat(errno == ENOENT ? "no such folder" : std::strerror(errno), ": ", path);
  }
  return S_ISDIR(found.st_mode) ? "" : absl::StrCat("is not a folder: ", path);
}

// Of a folder that is there already, to write files into.
std::string WhyNotWritable(const std::string& path) {
  if (std::string why = WhyNoFolder(path); !why.empty()) return why;
  if (IsKernelFolder(path)) return absl::StrCat("cannot create files in ", path, ", which the kernel provides");
  if (access(path.c_str(), W_OK | X_OK) == 0) return "";
  return std::string(FileError(errno, absl::StrCat("cannot write to ", path)).message());
}

std::string WhyNoNewFolder(const std::string& path) {
  const std::string existing = ExistingPart(path.substr(0, path.find('{')));  // before the first placeholder
  // The coordinator, which checks names, does not see where a link leads, and creating what it names would not help.
  const std::string place = PlaceOf(existing);
  if (const std::string why = checkpoint::WhyReserved(place); !why.empty() && checkpoint::WhyReserved(path).empty()) {
    return absl::StrCat(existing, " (through a symbolic link: ", place, ") ", why);
  }
  if (const std::string why = WhyBroken(existing); !why.empty()) return absl::StrCat(existing, " ", why);
  if (std::string why = WhyNoFolder(existing); !why.empty()) return why;
  if (IsKernelFolder(existing)) {
    return absl::StrCat("cannot create folders in ", existing, ", which the kernel provides");
  }
  if (access(existing.c_str(), W_OK | X_OK) == 0) return "";
  return std::string(FileError(errno, absl::StrCat("cannot write to ", existing)).message());
}

bool StartsFromFiles(const v1::Train& train) {
  return !train.data().tokens().empty() || !train.data().images().empty() || !train.data().tensors().empty() ||
         !train.model().from().empty() || !train.checkpoint().resume_from().empty();
}

}  // namespace

std::vector<Problem> PathProblems(const Reading& reading) {
  std::vector<Problem> problems;
  const v1::Train& train = reading.spec.train();
  const std::string &tokens = train.data().tokens(), &images = train.data().images();
  const auto check = [&](const char* path, const std::string& value,
                         const std::function<std::string(const std::string&)>& why) {
    if (value.empty()) return;
    if (std::string message = why(value); !message.empty()) {
      problems.push_back(Problem{reading.sources.Find(path), path, std::move(message), ""});
    }
  };
  check("workdir", reading.spec.exec().workdir(), WhyNoFolder);
  check("data.tokens", tokens, WhyNoTokens);
  check("data.images", images, WhyNoImages);
  check("data.tensors", train.data().tensors(), WhyNoData);
  check("data.validation", train.data().validation(), [&](const std::string& path) {
    if (!tokens.empty()) return WhyNotBeside(path, tokens);
    return images.empty() ? WhyNoData(path) : WhyNoImages(path);
  });
  check("model.library", LibraryOf(reading.spec), WhyUnreadable);
  check("model.from", train.model().from(), WhyNoFolder);
  check("checkpoint.path", train.checkpoint().path(), WhyNoNewFolder);
  check("offload.to", train.offload().to(), WhyNotWritable);
  if (!absl::StrContains(train.checkpoint().resume_from(), "{")) {
    check("checkpoint.resume_from", train.checkpoint().resume_from(), WhyNoFolder);
  }
  return problems;
}

std::vector<Problem> FitProblems(const v1::Train& resolved, const SourceMap& sources, bool waits) {
  std::vector<Problem> problems;
  v1::Train job = resolved;
  const absl::StatusOr<v1::Model> model = models::Resolve(job.model());
  if (!model.ok()) return problems;  // the plan says so
  *job.mutable_model() = *model;
  const absl::StatusOr<v1::Inventory> inventory = models::MakeInventory(*model);
  if (!inventory.ok()) return problems;
  const auto add = [&](const char* path, std::string message) {
    if (!message.empty()) problems.push_back(Problem{sources.Find(path), path, std::move(message), ""});
  };
  const std::string &tokens = job.data().tokens(), &validation = job.data().validation();
  if (inventory->task().name() == models::kLanguageModel) {
    add("data.tokens", WhyNotTokensOf(*inventory, tokens));
    add("data.validation", WhyNotTokensOf(*inventory, validation));
  } else if (inventory->task().name() == models::kImageClassification) {
    add("data.images", WhyNotImagesOf(*inventory, job.data().images()));
    add("data.validation", WhyNotImagesOf(*inventory, validation));
  } else if (inventory->task().name() == models::kTensors) {
    add("data.tensors", WhyNotTensorsOf(*inventory, job.data().tensors()));
    add("data.validation", WhyNotTensorsOf(*inventory, validation));
  }
  if (const std::string& from = job.model().from(); !from.empty()) {
    add("model.from", WhyNoStart(from, checkpoint::CheckModelFrom(from, job), tokens, waits));
  }
  const std::string& from = job.checkpoint().resume_from();
  if (!from.empty() && !absl::StrContains(from, "{")) {
    add("checkpoint.resume_from", WhyNoStart(from, checkpoint::CheckResumeFrom(from, job), tokens, waits));
  }
  return problems;
}

std::vector<Problem> WithoutConsequences(std::vector<Problem> found, const std::vector<Problem>& known) {
  const auto follows = [&](const Problem& problem) {
    return std::any_of(known.begin(), known.end(), [&](const Problem& cause) {
      if (cause.path.empty() || problem.path.empty()) return false;  // about a whole file
      const bool misspelled = problem.path == cause.suggestion && absl::StartsWith(problem.message, "missing");
      // A size fills in the model's other numbers.
      const bool of_size = cause.path == "model.size" && absl::StartsWith(problem.path, "model.") &&
                           absl::StartsWith(problem.message, "missing");
      return problem.path == cause.path || misspelled || of_size || absl::StartsWith(problem.path, cause.path + ".") ||
             absl::StartsWith(problem.path, cause.path + "[");
    });
  };
  found.erase(std::remove_if(found.begin(), found.end(), follows), found.end());
  return found;
}

absl::Status CheckJob(const Reading& reading, const absl::StatusOr<std::unique_ptr<Client>>& client, bool waits) {
  std::vector<Problem> problems = reading.problems;
  const auto add = [&](std::vector<Problem> found) {
    for (Problem& problem : WithoutConsequences(std::move(found), problems)) problems.push_back(std::move(problem));
  };
  const bool here = client.ok() && IsAllHere(**client);
  if (here) add(PathProblems(reading));
  // What does not fit a field that is misspelled may fit the field.
  const bool fits = here && reading.problems.empty() && StartsFromFiles(reading.spec.train());
  // Of a file with broken syntax values are missing that it may have.
  if (client.ok() && reading.complete && (fits || !problems.empty())) {
    v1::PlanRequest request;
    *request.mutable_spec() = reading.spec;
    const absl::StatusOr<v1::PlanReply> planned = (*client)->Plan(request);
    // Alone, they are what the caller's own request is answered with.
    if (!problems.empty() && absl::IsInvalidArgument(planned.status())) {
      add(Locate(SpecErrorsOf(planned.status()), reading.sources));
    } else if (!problems.empty() && !planned.ok()) {
      Say(absl::StrCat("note: values were not checked: ", std::string(planned.status().message())));
    }
    waits = waits || reading.spec.after_size() > 0;
    if (planned.ok() && fits) add(FitProblems(planned->resolved().train(), reading.sources, waits));
  }
  if (problems.empty()) return absl::OkStatus();
  SortProblems(problems);
  return ToStatus(problems);
}

}  // namespace muster::cli
