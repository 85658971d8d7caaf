// A plan's partition table as a picture, for browsers and documents.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "proto/jobs.pb.h"

namespace muster::cli {

// SVG 1.1: a row per unit, as high as its bytes (a minimum keeps small ones readable), cut into what each shard owns of
// it, in the order of its flat buffer; below, each shard's bytes and ranks. Parts too narrow to see share one with
// their neighbours. Bytes are of parameters in fp32, padding included. NotFound: the coordinator sent no table, as it
// is too large, or the coordinator too old.
absl::StatusOr<std::string> OwnershipSvg(const v1::PlanReply& plan);

}  // namespace muster::cli
