// -o: how data is printed. JSON field names are those of proto/; they are a stable interface.
#pragma once

#include <google/protobuf/message.h>

#include <CLI/App.hpp>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace muster::cli {

enum class Format { kTable, kWide, kJson, kYaml, kName };

// Adds -o to a command with the formats that it has.
void AddFormat(CLI::App* command, Format& format, const std::vector<std::string>& formats);

// One document: indented JSON, or YAML.
void PrintTree(const nlohmann::ordered_json& tree, Format format);
void PrintMessage(const google::protobuf::Message& message, Format format);
// One item of a stream: a line of JSON.
void PrintLine(const nlohmann::ordered_json& tree);

}  // namespace muster::cli
