// -o: the output format. JSON field names are those of proto/; they are a stable interface.
#pragma once

#include <google/protobuf/message.h>

#include <CLI/App.hpp>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "proto/job.pb.h"

namespace muster::cli {

enum class Format { kTable, kWide, kJson, kYaml, kName, kSvg };

// Adds -o with the formats that the command supports.
void AddFormat(CLI::App* command, Format& format, const std::vector<std::string>& formats);

// One document: indented JSON, or YAML.
void PrintTree(const nlohmann::ordered_json& tree, Format format);
void PrintMessage(const google::protobuf::Message& message, Format format);
// The result of a command that changed a job: "gpt2-x7f2 stopping: reason" on stderr, or the whole job.
void PrintJob(const v1::Job& job, Format format);
// Of a reply: its job, and the other replicas of the job's run.
template <typename Reply>
void PrintJobs(const Reply& reply, Format format) {
  PrintJob(reply.job(), format);
  for (const v1::Job& other : reply.others()) PrintJob(other, format);
}
// A job of which `what` was changed: that alone in a table.
void PrintChange(const v1::Job& job, const std::string& what, Format format);
void PrintNode(const v1::Node& node, Format format);
// One item of a stream: a line of JSON.
std::string LineOf(const nlohmann::ordered_json& tree);
void PrintLine(const nlohmann::ordered_json& tree);

}  // namespace muster::cli
