#!/bin/bash
# Prepares a Debian 12 machine for `bazel build //...`: packages and the LibTorch wheel. Prints what it installs; quick
# if everything is there.   tools/setup.sh [test|packages]   (test: also what only the tests need; packages: no wheel)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
die() { echo "setup: $*" >&2; exit 1; }

[ "$(uname -s)-$(uname -m)" = Linux-x86_64 ] || die "this is $(uname -s) on $(uname -m); Muster builds on x86-64 Linux (Debian 12)"
. /etc/os-release 2>/dev/null || true
[ "${ID:-}" = debian ] && [ "${VERSION_ID:-}" = 12 ] ||
  die "this is ${PRETTY_NAME:-an unknown system}; only Debian 12 is supported. In a container: debian:12"

packages="bazel-bootstrap bazel-rules-java bazel-rules-proto bazel-skylib g++ binutils ca-certificates git unzip
  libgrpc++-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc libspdlog-dev libfmt-dev libgtest-dev libgmock-dev
  libabsl-dev libcli11-dev libyaml-cpp-dev nlohmann-json3-dev libsqlite3-dev libssl-dev libpcre2-dev libutf8proc-dev librapidcheck-dev libgloo-dev libboost1.81-dev
  libjemalloc-dev dpkg-dev chrpath libpng-dev libjpeg62-turbo-dev zlib1g-dev python3 python3-pip bible-kjv bible-kjv-text"
[ "${1:-}" = test ] && packages="$packages python3-venv cmake prometheus jq curl zsh fish iproute2 chromium chromium-driver openssl dataset-fashion-mnist podman runc catatonit busybox-static"
[ "${1:-}" = lint ] && packages="$packages clang-14 clang-format-14 clang-tidy-14"

missing=
for p in $packages; do
  [ "$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null)" = installed ] || missing="$missing $p"
done
if [ -n "$missing" ]; then
  echo "setup: installing Debian packages:$missing" >&2
  run=
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || die "not root and no sudo. As root: apt-get install --no-install-recommends$missing"
    run=sudo
  fi
  free_mib=$(df -Pm /usr | awk 'NR==2 {print $4}')
  [ "$free_mib" -ge 1500 ] || die "/usr has $free_mib MiB free; the packages need about 1500"
  log=$(mktemp)
  # shellcheck disable=SC2086
  if ! { $run apt-get update -q && $run env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $missing; } >"$log" 2>&1; then
    tail -n 15 "$log" >&2
    die "apt-get failed (its last lines are above): no network, or another package manager at work? Whole log: $log"
  fi
  rm -f "$log"
fi
[ "${1:-}" != packages ] || exit 0
"$here/fetch_torch.sh" cpu
if [ "${1:-}" = test ]; then
  "$here/fetch_torch.sh" peer
  "$here/fetch_gpt2_vocabulary.sh"
  "$here/fetch_trackers.sh"
fi
