// A client for tests: one GET, the whole answer.
#pragma once

#include <string>

namespace muster {

// Of "127.0.0.1:PORT"; the body of a 200, else the whole answer. Empty: nobody answers.
std::string GetPage(const std::string& address, const std::string& path = "/metrics");

// The value of a series in a page, as it is written ("muster_jobs{state=\"queued\"}" gives "3"); empty: there is none.
std::string SeriesValue(const std::string& page, const std::string& series);

}  // namespace muster
