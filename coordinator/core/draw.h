#pragma once

#include <string>

namespace muster::core {

// docs/states.md: the three state machines as Mermaid diagrams.
std::string DrawStates();

}  // namespace muster::core
