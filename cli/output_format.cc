#include "cli/output_format.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/command.h"
#include "cli/output/format.h"
#include "cli/spec/writer.h"

namespace muster::cli {
namespace {

const std::map<std::string, Format>& Formats() {
  static const auto& formats =
      *new std::map<std::string, Format>{{"table", Format::kTable}, {"wide", Format::kWide}, {"json", Format::kJson},
                                         {"yaml", Format::kYaml},   {"name", Format::kName}, {"svg", Format::kSvg}};
  return formats;
}

std::string Json(const nlohmann::ordered_json& tree, int indent) {
  // Replaces bytes that are not UTF-8 (a log line of another program) instead of throwing.
  return tree.dump(indent, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace

void AddFormat(CLI::App* command, Format& format, const std::vector<std::string>& formats) {
  command
      ->add_option_function<std::string>(
          "-o,--output",
          [&format, formats](const std::string& text) {
            const auto found = Formats().find(text);
            if (found == Formats().end() || std::find(formats.begin(), formats.end(), text) == formats.end()) {
              throw CLI::ValidationError("--output",
                                         absl::StrCat("\"", text, "\" is not one of ", absl::StrJoin(formats, ", ")));
            }
            format = found->second;
          },
          absl::StrJoin(formats, "|"))
      ->type_name("FORMAT");
}

void PrintTree(const nlohmann::ordered_json& tree, Format format) {
  Print(format == Format::kYaml ? ToYaml(tree) : Json(tree, 2));
}

void PrintMessage(const google::protobuf::Message& message, Format format) { PrintTree(MessageTree(message), format); }

void PrintJob(const v1::Job& job, Format format) {
  if (format == Format::kName) return Print(job.id() + "\n");
  if (format != Format::kTable) return PrintMessage(job, format);
  const std::string state = StateName(job.state()), reason = OneLine(job.reason());
  // "cancelled before it started" says the state already.
  const bool said = absl::StartsWith(reason, state);
  Say(absl::StrCat(OneLine(job.id()), ": ", said ? "" : state, said || reason.empty() ? "" : ", ", reason));
}

void PrintChange(const v1::Job& job, const std::string& what, Format format) {
  if (format != Format::kTable) return PrintJob(job, format);
  Say(absl::StrCat(OneLine(job.id()), ": ", OneLine(what)));
}

void PrintNode(const v1::Node& node, Format format) {
  if (format == Format::kName) return Print(node.id() + "\n");
  if (format != Format::kTable) return PrintMessage(node, format);
  Say(absl::StrCat(OneLine(node.id()), ": ", StateName(node.state()), node.draining() ? ", draining" : "",
                   node.leaving() ? ", leaving" : ""));
}

std::string LineOf(const nlohmann::ordered_json& tree) { return Json(tree, -1); }

void PrintLine(const nlohmann::ordered_json& tree) { Print(LineOf(tree)); }

}  // namespace muster::cli
