#!/bin/bash
# Unpacks torch wheels once, outside the checkout, for WORKSPACE's libtorch(). Quick when they are there.
#   tools/fetch_torch.sh         CPU: builds and tests
#   tools/fetch_torch.sh cuda    CUDA and NCCL: enough to build --config=cuda
#   tools/fetch_torch.sh cuda-run   the same with all libraries that it loads: enough to run on GPUs
#   tools/fetch_torch.sh peer    a Python environment with the same CPU torch, for tests and bench/ beside PyTorch: $cache/peer
# The place is $MUSTER_CACHE, else ~/.cache/muster.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cache=${MUSTER_CACHE:-$HOME/.cache/muster}
want=${1:-cpu}
die() { echo "fetch_torch: $*" >&2; exit 1; }

case $want in
  cpu) list=$here/torch.txt dest=$cache/torch-cpu needed_mib=2500 ;;
  cuda) list=$here/torch_cuda.txt dest=$cache/torch-cuda needed_mib=6000 ;;
  cuda-run) list=$here/torch_cuda_run.txt dest=$cache/torch-cuda-run needed_mib=12000 ;;
  peer) list=$here/peer.txt dest= needed_mib=700 ;;
  *) die "unknown argument '$want': cpu, cuda, cuda-run or peer" ;;
esac
# The stamp holds the list's hash, so that a new pin is fetched again.
lists=("$list")
[ "$want" = peer ] && lists+=("$here/torch.txt" "$here/peer_alone.txt" "$here/peer_peft.txt" "$here/peer_scripts.txt")   # it uses that wheel
pin=$(cat "${lists[@]}" | sha256sum | cut -c1-16)
# Checkouts with other lists have environments of their own; `peer` is the one that was asked for last.
link() {
  [ "$want" = peer ] || return 0
  [ -L "$cache/peer" ] || rm -rf "$cache/peer"
  ln -sfn "peer-$pin" "$cache/peer"
}
# Without compiled modules an import of torch takes twice as long, and tests run where none can be written.
compile_modules() {
  local place done=$dest/.compiled
  [ "$want" = peer ] && [ ! -e "$done" ] && [ -w "$dest" ] || return 0
  for place in "$cache/torch-cpu/torch" "$dest"; do
    [ ! -w "$place" ] || "$dest/bin/python" -m compileall -q -j 0 "$place" >/dev/null || true   # some are templates
  done
  touch "$done"
}
[ -n "$dest" ] || dest=$cache/peer-$pin
stamp=$dest/.done
whole=
[ "$(cat "$stamp" 2>/dev/null)" = "$pin" ] || whole=1
# Packages carry the licenses; wheels that were unpacked before tools/package.sh was there lack them.
[ -n "$whole" ] || [ "$want" != cpu ] || [ -d "$dest/licenses" ] || [ ! -w "$dest" ] || whole=licenses
[ -n "$whole" ] || { compile_modules; link; exit 0; }

# The licenses alone are missing: all works but tools/package.sh, which says so.
give_up() {
  [ "$whole" = licenses ] || die "$*"
  echo "fetch_torch: warning: $dest has no licenses, which only tools/package.sh needs: $*" >&2
  exit 0
}
mkdir -p "$cache" 2>/dev/null || die "cannot create $cache: set MUSTER_CACHE to a folder that you may write"
free_mib=$(df -Pm "$cache" | awk 'NR==2 {print $4}')
[ "$free_mib" -ge "$needed_mib" ] || give_up "$cache has $free_mib MiB free, $needed_mib are needed: free some, or set MUSTER_CACHE"

if [ "$want" = peer ]; then
  "$0" cpu
  echo "fetch_torch: making a Python environment beside the wheel in $dest" >&2
  rm -rf "$dest"
  /usr/bin/python3 -m venv "$dest" || die "python3 -m venv failed: is the package python3-venv installed?"
  "$dest/bin/python" -m pip install -q --disable-pip-version-check -r "$list" \
    || die "pip could not install what $list lists: no network?"
  # In folders of their own: transformers would import them, and torchvision's operators are built for another torch.
  for apart in alone peft scripts; do
    "$dest/bin/python" -m pip install -q --disable-pip-version-check --no-deps --target "$dest/$apart" -r "$here/peer_$apart.txt" \
      || die "pip could not install what $here/peer_$apart.txt lists: no network?"
  done
  site=$("$dest/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
  echo "$cache/torch-cpu" >"$site/torch-cpu.pth"   # the very files that we link
  # accelerate and Lightning ask for torch's version without importing it.
  version=$(sed -n 's/^torch==\([^ ]*\).*/\1/p' "$here/torch.txt")
  mkdir "$site/torch-$version.dist-info"
  printf 'Metadata-Version: 2.1\nName: torch\nVersion: %s\n' "$version" >"$site/torch-$version.dist-info/METADATA"
  "$dest/bin/python" -c 'import torch' || die "the environment in $dest does not import torch"
  compile_modules
  echo "$pin" >"$stamp"
  link
  exit 0
fi

tmp=$(mktemp -d "$cache/tmp.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
echo "fetch_torch: downloading $(grep -o '^[a-z][^ ]*' "$list" | tr '\n' ' ')(once; kept in $dest)" >&2
/usr/bin/python3 -m pip download -q --disable-pip-version-check --no-deps --require-hashes --only-binary=:all: \
  --python-version 3.11 --implementation cp --abi cp311 --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 --platform manylinux_2_25_x86_64 \
  --platform manylinux_2_18_x86_64 --platform manylinux2014_x86_64 \
  -d "$tmp" -r "$list" || give_up "the download failed (see above). No network? Or pip's index has no such wheel: those without CUDA ('+cpu') lie in
  PyTorch's own index, whose address its installation page gives: set PIP_EXTRA_INDEX_URL to it. Or a hash differs from $list"
for wheel in "$tmp"/*.whl; do
  # 11: the wheel has no file that matches a pattern
  unzip -q -o "$wheel" 'torch/*' 'torchgen/*' 'functorch/*' 'nvidia/*' -d "$tmp/out" 2>/dev/null || [ $? = 11 ] || die "cannot unpack $(basename "$wheel"): disk full?"
  unzip -q -o "$wheel" '*.dist-info/licenses/*' '*.dist-info/LICENSE*' '*.dist-info/License*' '*.dist-info/NOTICE' -d "$tmp/out/licenses" 2>/dev/null || [ $? = 11 ] || die "cannot unpack the licenses of $(basename "$wheel"): disk full?"
done
if [ "$whole" = licenses ]; then
  [ -d "$tmp/out/licenses" ] || give_up "the wheels have none"
  mv -T "$tmp/out/licenses" "$dest/licenses"
  exit 0
fi
rm -rf "$dest"
mv "$tmp/out" "$dest"   # one real tree: libtorch_cuda.so finds nvidia/ by $ORIGIN
echo "$pin" >"$stamp"
