// A client for tests: one GET, the whole response.
#pragma once

#include <string>

namespace muster {

// GET /metrics of "127.0.0.1:PORT": the body of a 200, else the whole response. Empty: no server answers.
std::string GetPage(const std::string& address, const std::string& path = "/metrics");

// The value of a series, as text ("muster_jobs{state=\"queued\"}" gives "3"); empty: no such series.
std::string SeriesValue(const std::string& page, const std::string& series);

}  // namespace muster
