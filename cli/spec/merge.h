// Job files over each other: a file over a template, or one file over another.
#pragma once

#include <google/protobuf/descriptor.h>

#include "cli/spec/tree.h"

namespace muster::cli {

// Merges `over` into `into`, two maps that are written for a message of `type` (null: any). Maps are merged key by key,
// deeply; everything else of `over` replaces what is there, and merged maps count as written in `over`.
//
// Where `over` says the kind of a oneof (`optimizer: {kind: sgd}`), the fields of other kinds go from `into`: all of
// its kind's if it says another one, so that no value is taken for a field of the same name of another kind; if it says
// none, those that the new kind does not have. Fields that every kind has stay.
void Merge(const google::protobuf::Descriptor* type, Node over, Node& into);

}  // namespace muster::cli
