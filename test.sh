#!/bin/bash
# Sets up, builds and runs every test that needs no GPU; .ci/run builds the programs that no test needs. Last line: `N passed,
# N failed`, in test cases.
#   ./test.sh                  all
#   ./test.sh //strategies/... a part;  further arguments go to `bazel test`, e.g. --config=asan
set -uo pipefail
cd "$(dirname "$0")" || exit 1
tools/setup.sh test || exit 1

targets=() options=()
for a in "$@"; do
  case $a in -*) options+=("$a") ;; *) targets+=("$a") ;; esac
done
# Bazel begins with what is named first. Tests of processes mostly wait, so they run beside what is compiled later; at the
# end they would wait alone.
[ ${#targets[@]} -gt 0 ] || targets=(//tests/cluster/... //tests/faults/... //worker/agent/... //...)
events=$(mktemp)
trap 'rm -f "$events"' EXIT
echo "test: bazel test ${targets[*]} ${options[*]:-} (the first build takes minutes on two cores)" >&2
bazel test --keep_going --build_tests_only --build_event_json_file="$events" \
  --test_env=MUSTER_PEER_PYTHON="$(readlink -f "${MUSTER_CACHE:-$HOME/.cache/muster}/peer")/bin/python" \
  --test_env=MUSTER_GPT2_VOCABULARY="${MUSTER_CACHE:-$HOME/.cache/muster}/gpt2-vocabulary" \
  --test_env=MUSTER_TORCH_CPU="${MUSTER_TORCH_CPU:-${MUSTER_CACHE:-$HOME/.cache/muster}/torch-cpu}" \
  "${options[@]}" -- "${targets[@]}"
built=$?
[ $built = 8 ] && { echo "test: interrupted" >&2; exit 1; }
# 0: all passed, 3: some failed, 4: no tests; anything else: something did not build
/usr/bin/python3 tools/count_tests.py "$events"
counted=$?
if [ $built != 0 ]; then
  [ $built = 3 ] || echo "test: bazel ended with status $built: something did not build, see above" >&2
  exit 1
fi
exit $counted
