#!/bin/bash
# Fetches GPT-2's vocabulary and merges (encoder.json, vocab.bpe) into $MUSTER_CACHE/gpt2-vocabulary, else
# ~/.cache/muster/..., for the tests that compare our byte pairs with the reference. Quick if they exist.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cache=${MUSTER_CACHE:-$HOME/.cache/muster}
dest=$cache/gpt2-vocabulary list=$here/gpt2_vocabulary.txt
die() { echo "fetch_gpt2_vocabulary: $*" >&2; exit 1; }
whole() {  # whether folder $1 holds the two files as OpenAI published them
  (cd "$1" && sha256sum --quiet --status -c -) 2>/dev/null <<'SUMS'
196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783  encoder.json
1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5  vocab.bpe
SUMS
}

if whole "$dest"; then exit 0; fi
mkdir -p "$cache" 2>/dev/null || die "cannot create $cache: set MUSTER_CACHE to a folder that you may write"
tmp=$(mktemp -d "$cache/tmp.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
echo "fetch_gpt2_vocabulary: downloading GPT-2's vocabulary (once; kept in $dest)" >&2
/usr/bin/python3 -m pip download -q --disable-pip-version-check --no-deps --require-hashes --only-binary=:all: \
  -d "$tmp" -r "$list" || die "the download failed (see above): no network, or pip's index lacks what $list names"
unzip -q -j "$tmp"/*.whl '*/encoder.json' '*/vocab.bpe' -d "$tmp/out" || die "the package does not hold the two files, or the disk is full"
whole "$tmp/out" || die "the package's files differ from those that OpenAI published (by SHA-256)"
rm -rf "$dest"
mv "$tmp/out" "$dest"
