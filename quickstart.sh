#!/bin/bash
# From a bare Debian 12 to a trained model: sets the machine up, builds Muster, starts a coordinator and a worker on this
# machine, trains a small GPT-2 on the King James Bible, draws its loss and lets it write. Run it again at any time: it
# is quick when everything is there.
#   ./quickstart.sh          stops the service at the end
#   ./quickstart.sh --keep   leaves it running, to submit more
set -euo pipefail
cd "$(dirname "$0")"
keep=
case ${1:-} in
  '') ;;
  --keep) keep=1 ;;
  *) echo "usage: ./quickstart.sh [--keep]" >&2; exit 2 ;;
esac
began=$(date +%s.%N)
say() { printf '\n== %s\n' "$*" >&2; }

say "1. The machine: packages and LibTorch"
tools/setup.sh

say "2. Build (about four minutes on two cores the first time, seconds later)"
tools/install.sh bin

say "3. Text: the King James Bible of the Debian package bible-kjv-text, a byte a token, the last tenth held out"
work=$PWD/runs/quickstart
mkdir -p "$work"
if [ ! -s "$work/val.bin" ]; then
  bible gen1:1-rev22:21 </dev/null >"$work/text.txt"
  bin/muster data prepare "$work/text.txt" "$work/train.bin" --validation "$work/val.bin" --force
fi
cp examples/gpt2_tiny.yaml "$work/job.yaml"

say "4. The service: a coordinator and a worker daemon on this machine"
bin/muster local up
finish() { [ -n "$keep" ] || { say "The service stops (./quickstart.sh --keep leaves it running)"; bin/muster local down || true; }; }
trap finish EXIT

say "5. The job: submitted, and followed to its end"
bin/muster submit -f "$work/job.yaml"

# The time of the first metric, beside that of this script's first line.
bin/muster metrics @last -o json | python3 -c "
import datetime, json, sys
first = json.load(sys.stdin)[0]['time'].rstrip('Z')[:26]
at = datetime.datetime.fromisoformat(first).replace(tzinfo=datetime.timezone.utc).timestamp()
print(f'first training step {at - $began:.1f} s after this script began', file=sys.stderr)"

say "6. What it writes: greedily, then with temperature 0.8"
bin/muster sample @last --prompt "And God said" --tokens 120 --temperature 0
bin/muster sample @last --prompt "And God said" --tokens 400 --temperature 0.8 --seed 1

say "Next: bin/muster --help, examples/gpt2_tiny.yaml, README.md"
