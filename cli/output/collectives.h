// The results of `muster bench --communication`, as nccl-tests prints them: a row for each measurement. Pure.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "cli/output/table.h"
#include "proto/job.pb.h"

namespace muster::cli {

// "all_reduce", "flat".
std::string CollectiveName(v1::Collective collective);
std::string CollectiveModeName(v1::CollectiveMode mode);

// nccl-tests' columns and units (a GB is 10^9 bytes), after the collective, the mode and the number of ranks.
Table CollectivesTable(const std::vector<v1::CollectiveTime>& rows);
nlohmann::ordered_json CollectivesTree(const std::vector<v1::CollectiveTime>& rows);
// Mean of all rows, as nccl-tests' last line. 0: no rows.
double MeanBusBandwidth(const std::vector<v1::CollectiveTime>& rows);
// Bus bandwidth over size, both axes logarithmic, with a line for each collective, mode and number of ranks.
std::string CollectivesSvg(const std::vector<v1::CollectiveTime>& rows, const std::string& title);

}  // namespace muster::cli
