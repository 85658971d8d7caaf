#include "worker/units/custom/custom.h"
#include "worker/units/family.h"
#include "worker/units/gpt2/gpt2.h"
#include "worker/units/llama/llama.h"
#include "worker/units/resnet/resnet.h"

namespace muster::units {

const std::vector<UnitFamily>& UnitFamilies() {
  static const auto& families = *new std::vector<UnitFamily>{
      {"gpt2", MakeGpt2Unit}, {"llama", MakeLlamaUnit}, {"resnet", MakeResnetUnit}, {"custom", MakeCustomUnit}};
  return families;
}

}  // namespace muster::units
