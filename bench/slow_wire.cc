// A wire between two network namespaces for bench/networks.py. Reads lines "MBIT MILLISECONDS" (0 Mbit/s: as fast as
// this program is), answers each with "set", and ends with its input.
#include <cstdio>
#include <iostream>
#include <memory>

#include "testing/slow_wire.h"

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: slow_wire NAMESPACE NAMESPACE\n");
    return 2;
  }
  const auto wire = muster::SlowWire::Make({argv[1], argv[2]});
  if (!wire.ok()) {
    std::fprintf(stderr, "%s\n", wire.status().ToString().c_str());
    return 1;
  }
  double mbit = 0, milliseconds = 0;
  while (std::cin >> mbit >> milliseconds) {
    (*wire)->Set({.bits_per_second = mbit > 0 ? mbit * 1e6 : 1e12, .one_way = absl::Milliseconds(milliseconds)});
    std::printf("set\n");
    std::fflush(stdout);
  }
}
