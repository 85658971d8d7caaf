// The predicted step of a plan as a picture, for browsers and documents.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "proto/jobs.pb.h"

namespace muster::cli {

// Rows in a page of `left` + `width` pixels and a note to the right: for each stage of a pipeline, or for all ranks
// without one, what it computes when, with microbatches as labels, and below it what it communicates.
struct TimelineRows {
  std::string svg;
  double bottom = 0;
};
// REQUIRES: the plan has ops.
TimelineRows DrawTimeline(const v1::PlanReply& plan, double left, double width, double top);

// SVG 1.1: a title with the step's time and the hardware it is predicted on, the rows, a scale in milliseconds, and
// what the colors mean. Of a plan that shows only its first ops, as far as these go. NotFound: the plan has no ops.
absl::StatusOr<std::string> TimelineSvg(const v1::PlanReply& plan);

}  // namespace muster::cli
