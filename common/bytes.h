#pragma once

#include <cstdint>
#include <string>

#include "absl/time/time.h"

namespace muster {

// A readable size in binary units, with three significant digits and no trailing zeros: "0 B", "1.5 GiB", "61.2 GiB",
// "80 GiB". Values from 999.5 use the next unit, so 1000 bytes are "0.98 KiB".
std::string FormatBytes(uint64_t bytes);

// Of a link, as networks are sold: decimal bits with three significant digits, "96.2 Mbit/s", "10 Gbit/s".
std::string FormatBitRate(double bytes_per_second);
// "85 us", "1.08 ms", "2.5 s".
std::string FormatLatency(double seconds);
// Of what takes seconds or longer, in at most two units: "48s", "1m 20s", "2h 05m", "3d 4h".
std::string FormatSpan(absl::Duration span);

}  // namespace muster
