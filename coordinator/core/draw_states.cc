// Prints docs/states.md from the transition tables:   bazel run //coordinator/core:draw_states > docs/states.md
#include <cstdio>

#include "coordinator/core/draw.h"

int main() { std::fputs(muster::core::DrawStates().c_str(), stdout); }
