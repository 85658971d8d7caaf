#pragma once

#include <google/protobuf/message.h>

#include <string>

namespace muster::spec {

// The first field of the message, or of a message within, that this build does not know: "number 99 in
// train.optimizer". Empty: there is none.
std::string UnknownField(const google::protobuf::Message& message);

}  // namespace muster::spec
