// A client for tests: one GET, the whole response.
#pragma once

#include <string>

#include "common/metrics/exposition.h"  // SeriesValue

namespace muster {

// GET /metrics of "127.0.0.1:PORT": the body of a 200, else the whole response. Empty: no server answers.
std::string GetPage(const std::string& address, const std::string& path = "/metrics");

}  // namespace muster
