// A plan's partition table as a picture, for browsers and documents.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "proto/jobs.pb.h"

namespace muster::cli {

// SVG 1.1: of a pipeline whose plan has ops, first a row for each stage with what it computes when; then a row for each
// unit, as high as its bytes (with a minimum, so that small ones stay readable), divided into what each shard owns of
// it, in the order of its flat buffer; below, each shard's bytes and ranks. Parts too narrow to see are merged with
// their neighbors. Bytes are of parameters in fp32, padding included. NotFound: the coordinator sent no table, because
// it is too large or the coordinator too old.
absl::StatusOr<std::string> OwnershipSvg(const v1::PlanReply& plan);

}  // namespace muster::cli
