#!/bin/bash
# Builds the six programs and puts them side by side.   tools/install.sh [FOLDER, default bin] [bazel options]
set -euo pipefail
cd "$(dirname "$0")/.."
to=${1:-bin}
shift || true
targets=(//cli:muster //coordinator:muster-coordinator //worker/agent:muster-worker //worker/shim:muster-step //worker/exec:muster-exec //worker/trainer:muster-trainer)
bazel build "$@" "${targets[@]}"
mkdir -p "$to"
for t in "${targets[@]}"; do
  name=${t##*:} package=${t%%:*}
  # Renamed into place: a running program keeps its file.
  cp -f "bazel-bin/${package#//}/$name" "$to/.$name.new"
  chmod 755 "$to/.$name.new"
  cmp -s "$to/.$name.new" "$to/$name" && rm "$to/.$name.new" || mv -f "$to/.$name.new" "$to/$name"
done
