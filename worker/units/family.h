// The tensor half of a model family: it makes the family's units. The other half is models/family.h.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/inventory.pb.h"
#include "worker/units/unit.h"

namespace muster::units {

// Makes `unit` of `inventory`, whose model is resolved. The parameters are as many as the unit has and borrows.
// Unimplemented: not a kind of the family's.
using UnitMaker = absl::StatusOr<std::unique_ptr<UnitModule>> (*)(const Inventory& inventory, const Unit& unit,
                                                                  std::vector<Parameter> parameters,
                                                                  const UnitOptions& options);

struct UnitFamily {
  const char* name;  // as models::ModelFamily::name
  UnitMaker make;
};

// All that this build has.
const std::vector<UnitFamily>& UnitFamilies();

}  // namespace muster::units
