#!/bin/bash
# Installs libmuster-sdk, headers and a CMake package, to build models outside of this tree (docs/custom_models.md).
#   sdk/install.sh [PREFIX, default /usr/local]
set -euo pipefail
cd "$(dirname "$0")"
prefix=${1:-/usr/local}
install -d "$prefix/include/muster" "$prefix/lib/cmake/muster-sdk"
install -m 644 muster/*.h "$prefix/include/muster"
install -m 644 cmake/*.cmake "$prefix/lib/cmake/muster-sdk"
