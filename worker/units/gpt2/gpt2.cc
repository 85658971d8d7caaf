#include "worker/units/gpt2/gpt2.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "worker/units/language.h"

namespace muster::units {

absl::StatusOr<std::unique_ptr<UnitModule>> MakeGpt2Unit(const Inventory& inventory, const Unit& unit,
                                                         std::vector<Parameter> parameters,
                                                         const UnitOptions& options) {
  std::vector<Parameter>& p = parameters;
  const LanguageShare share = LanguageShareOf(inventory);
  if (unit.kind() == "gpt2.embedding") return MakeTokenEmbedding(p[0], p[1], share, options);
  if (unit.kind() == "gpt2.head") {
    return MakeLanguageHead({.weight = p[0], .bias = p[1], .epsilon = kNormEpsilon}, p[2], unit.piece_rows(), share,
                            options);
  }
  if (unit.kind() != "gpt2.block") return absl::UnimplementedError(absl::StrCat("gpt2 has no unit ", unit.kind()));
  const int64_t heads = unit.attention().heads();
  if (options.portable) return MakePortableGpt2Block(unit, std::move(p), heads, options);
  return MakeGpt2Block(unit, std::move(p), heads, share.sequence_parallel, options);
}

}  // namespace muster::units
