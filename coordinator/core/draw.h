// Draws the state machines of transitions.h.
#pragma once

#include <string>

namespace muster::core {

// The content of docs/states.md: the state machines as Mermaid diagrams.
std::string DrawStates();

}  // namespace muster::core
