#!/bin/bash
# Runs every decoder of untrusted bytes under libFuzzer, with ASan and UBSan. docs/internals/reliability.md promises ten minutes
# each without a finding. Runs one for each core at a time. A failing input is kept in the folder that is named at the
# end.
#   bench/fuzz.sh            ten minutes each, then as long random calls of every method of the services (no libFuzzer there)
#   bench/fuzz.sh 60 //cli/spec:reader_fuzz //worker/rundir:outbox_fuzz      a minute each of these
# Needs Debian's clang-14 and libclang-rt-14-dev. Builds into a folder of its own, so that the ordinary build stays warm.
set -euo pipefail
cd "$(dirname "$0")/.."
command -v clang++-14 >/dev/null ||
  { echo "fuzz: no clang++-14: apt-get install --no-install-recommends clang-14 libclang-rt-14-dev" >&2; exit 1; }
seconds=${1:-600}
shift || true
targets=("$@")
[ ${#targets[@]} -gt 0 ] && all=0 || all=1
[ ${#targets[@]} -gt 0 ] || targets=(//cli/spec:reader_fuzz //cli/output:trace_fuzz //checkpoint:manifest_fuzz
  //checkpoint:safetensors_fuzz //data:token_header_fuzz //data/images:image_file_fuzz
  //data/images/prepare:decode_fuzz //data/images/prepare:idx_fuzz //worker/rundir:outbox_fuzz //coordinator/server:plan_fuzz)

out=${MUSTER_FUZZ_OUT:-$(mktemp -d)}
base=${MUSTER_CACHE:-$HOME/.cache/muster}/fuzz-build
fuzz_bazel() { bazel --output_base="$base" "$@"; }
bazel build "${targets[@]/%/_test}"
fuzz_bazel build --config=fuzz --experimental_convenience_symlinks=ignore "${targets[@]}"
bin=$(fuzz_bazel info --config=fuzz bazel-bin)
fuzz_bazel shutdown

# One target; fails with a finding.
fuzz() {
  local path=${1#//}
  path=${path/://}
  local name=${path##*/}
  MUSTER_FUZZ_SEEDS=$out/$name "bazel-bin/${path}_test" --gtest_filter='Fuzz.Seeded*' >/dev/null
  if (cd "$out" && "$bin/$path" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=16384 -print_final_stats=1 \
      -artifact_prefix="$out/$name-" -dict="$out/$name.dict" "$out/$name") >"$out/$name.log" 2>&1; then
    echo "== $1, $seconds s: $(grep -oE 'number_of_executed_units: *[0-9]+' "$out/$name.log" | tr -s ' ') without a finding"
  else
    echo "== $1: A FINDING" && tail -n 40 "$out/$name.log"
    return 1
  fi
}

failed=0 running=0
for target in "${targets[@]}"; do
  if [ $running -ge "$(nproc)" ]; then
    wait -n || failed=1
    running=$((running - 1))
  fi
  fuzz "$target" &
  running=$((running + 1))
done
while [ $running -gt 0 ]; do
  wait -n || failed=1
  running=$((running - 1))
done
# Random messages to running servers: the ordinary tests, for longer.
if [ $all = 1 ]; then
  bazel build //coordinator/daemon:daemon_test //worker/agent:agent_test
  for test in coordinator/daemon/daemon_test worker/agent/agent_test; do
    log=$out/${test##*/}.log
    if MUSTER_FUZZ_SECONDS=$seconds "bazel-bin/$test" --gtest_filter='Random*Calls.*' >"$log" 2>&1; then
      echo "== random calls of //$test, $seconds s: without a finding"
    else
      echo "== random calls of //$test: A FINDING" && tail -n 40 "$log"
      failed=1
    fi
  done
fi
[ $failed = 0 ] && echo "fuzz: ${#targets[@]} decoders, no finding" || { echo "fuzz: findings in $out" >&2; exit 1; }
