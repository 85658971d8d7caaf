#!/bin/bash
# Makes a Python environment with an MLflow server and wandb, which only tests/tracking needs, outside the checkout:
# $cache/trackers. About 60 MB to download, 170 on disk; quick when it is there.   tools/fetch_trackers.sh
# The place is $MUSTER_CACHE, else ~/.cache/muster.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cache=${MUSTER_CACHE:-$HOME/.cache/muster}
die() { echo "fetch_trackers: $*" >&2; exit 1; }

list=$here/trackers.txt
# The name holds the list's hash, so that checkouts with other lists have environments of their own.
pin=$(sha256sum "$list" | cut -c1-16)
dest=$cache/trackers-$pin
if [ ! -e "$dest/.done" ]; then
  mkdir -p "$cache" 2>/dev/null || die "cannot create $cache: set MUSTER_CACHE to a folder that you may write"
  free_mib=$(df -Pm "$cache" | awk 'NR==2 {print $4}')
  [ "$free_mib" -ge 400 ] || die "$cache has $free_mib MiB free, 400 are needed: free some, or set MUSTER_CACHE"
  echo "fetch_trackers: making a Python environment with MLflow and wandb in $dest (once)" >&2
  rm -rf "$dest"
  /usr/bin/python3 -m venv "$dest" || die "python3 -m venv failed: is the package python3-venv installed?"
  "$dest/bin/python" -m pip install -q --disable-pip-version-check --no-deps --require-hashes --only-binary=:all: --no-compile -r "$list" \
    || die "pip could not install what $list lists: no network? Or a hash differs"
  "$dest/bin/python" -c 'import mlflow.server, wandb' || die "the environment in $dest does not import mlflow.server and wandb"
  touch "$dest/.done"
fi
ln -sfn "trackers-$pin" "$cache/trackers"
