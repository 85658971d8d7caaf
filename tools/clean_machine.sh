#!/bin/bash
# Types every command of README.md and then of docs/quickstart.md, in the order of the pages, on a new Debian 12 with
# debootstrap's minbase and this checkout's HEAD: ./quickstart.sh and ./test.sh too, as root. The second machine of the
# quickstart is a network, a home and a host name of its own. Prints each command, its output and its time, then
# `N commands typed, N failed`; exit code 0: none failed. Commands that need a Docker engine are not typed, but named.
#   tools/clean_machine.sh [--cache FOLDER] [--copy PATH]... [--bind PATH]... [--env NAME]... [--root FOLDER]
#     --cache FOLDER  keeps Bazel's disk cache there (~/.cache/muster/bazel is the ordinary build's), so that a second
#                     run compiles nothing. Without it a run takes as long as a new user's, over an hour on two cores
#     --copy PATH     copies a file or folder of this machine to the same path before the first command: how packages
#                     are reached (/etc/apt/..., /etc/pip.conf, /usr/local/share/ca-certificates), where that is unusual
#     --bind PATH     the same without a copy, read-only; for example a folder of wheels
#     --env NAME      passes a variable of this shell, for example http_proxy
#     --root FOLDER   copies this folder of `debootstrap --variant=minbase bookworm FOLDER` in place of a new one
# Needs root, python3, `apt-get install --no-install-recommends debootstrap git iproute2 procps`, and 15 GB in /var/tmp.
# README.md's commands use this machine's network, the quickstart's have one without a way out. Its mounts are in a
# namespace of its own; it leaves no process and no folder.
set -euo pipefail

# --- As the first process of a machine, in its namespaces.
if [ "${1:-}" = --machine ]; then
  name=$2 root=$3 folders=$4 cache=$5
  export PATH=/usr/sbin:/usr/bin:/sbin:/bin
  hostname "$name"
  mount --bind "$root" "$root"
  mount -t proc proc "$root/proc"
  mount --rbind /sys "$root/sys"
  mount --rbind /dev "$root/dev"
  mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
  mount -t tmpfs -o mode=755 tmpfs "$root/run"
  while IFS= read -r path; do
    [ -n "$path" ] || continue
    if [ -d "$path" ]; then mkdir -p "$root$path"; else mkdir -p "$root${path%/*}" && touch "$root$path"; fi
    mount --bind "$path" "$root$path"
    mount -o remount,bind,ro "$root$path"
  done <<<"$folders"
  if [ -n "$cache" ]; then
    mkdir -p "$root/root/.cache/muster/bazel"
    mount --bind "$cache" "$root/root/.cache/muster/bazel"
  fi
  if [ "$name" = second ]; then   # where the first machine sees it: /srv/second
    mkdir -p "$root/srv/second/root/.cache/muster/torch-cpu"
    for place in tmp var/tmp; do
      install -d -m 1777 "$root/srv/second/$place"
      mount --bind "$root/srv/second/$place" "$root/$place"
    done
    mount --bind "$root/root/.cache/muster/torch-cpu" "$root/srv/second/root/.cache/muster/torch-cpu"
    mount --bind "$root/etc/hosts.second" "$root/etc/hosts"
    mount --rbind "$root/srv/second/root" "$root/root"
  fi
  mkdir -p "$root/.outside"
  cd "$root"
  pivot_root . .outside
  cd /
  umount -l /.outside
  touch "/run/ready"
  # bash reaps orphans, which `sleep` as the first process would not.
  exec /bin/bash -c 'while :; do sleep 1000 & wait; done' </dev/null >/dev/null 2>&1
fi

cd "$(dirname "$0")/.."
die() { echo "clean_machine: $*" >&2; exit 2; }
say() { echo "== $*" >&2; }
copied=() bound='' passed=() cache='' base=''
while [ $# -gt 0 ]; do
  [ $# -ge 2 ] || { sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" >&2; exit 2; }
  case $1 in
    --cache) mkdir -p "$2"; cache=$(realpath "$2") ;;
    --copy) [ -e "$2" ] || die "no $2 to copy"; copied+=("$(realpath -s "$2")") ;;
    --bind) [ -e "$2" ] || die "no $2 to bind"; bound+=$(realpath -s "$2")$'\n' ;;
    --env) [ -n "${!2+set}" ] || die "no variable $2 to pass"; passed+=("$2=${!2}") ;;
    --root) [ -d "$2/etc" ] || die "no Debian in $2"; base=$(realpath "$2") ;;
    *) die "unknown option $1: --cache, --copy, --bind, --env or --root" ;;
  esac
  shift 2
done
[ "$(id -u)" = 0 ] || die "needs root, for namespaces and debootstrap"
for tool in debootstrap git ip pgrep python3 nsenter unshare; do
  command -v $tool >/dev/null || die "no $tool: the first lines of $0 say what to install"
done
[ -z "$(git status --porcelain)" ] || say "warning: HEAD is typed, without this checkout's uncommitted changes"

folder=$(mktemp -d /var/tmp/muster-clean-XXXXXX)
root=$folder/root
started=()
groups() { find /sys/fs/cgroup -depth -type d -path '*/libpod_parent*' 2>/dev/null; }
groups >"$folder/groups"
finish() {
  local code=$? pid
  trap - EXIT
  # --kill-child ends all that they began.
  for pid in "${started[@]}"; do { kill -KILL "$pid" && wait "$pid"; } 2>/dev/null || true; done
  # podman's groups that began here
  groups | grep -vxFf "$folder/groups" | xargs -r -n1 rmdir 2>/dev/null || true
  rm -rf --one-file-system "$folder"
  exit $code
}
trap finish EXIT
trap 'exit 1' INT TERM

say "a new Debian"
if [ -n "$base" ]; then
  cp -a --one-file-system "$base" "$root"
else
  debootstrap --variant=minbase bookworm "$root" http://deb.debian.org/debian >"$folder/debootstrap.log" 2>&1 ||
    { tail "$folder/debootstrap.log" >&2; exit 1; }
fi
# As Debian's installer and its images have it: updates, a host name that is an address, no daemons of packages.
cat >"$root/etc/apt/sources.list" <<'END'
deb http://deb.debian.org/debian bookworm main
deb http://deb.debian.org/debian bookworm-updates main
deb http://deb.debian.org/debian-security bookworm-security main
END
printf '127.0.0.1 localhost\n127.0.1.1 gpu-head\n192.168.77.2 second\n' >"$root/etc/hosts"
printf '127.0.0.1 localhost\n127.0.1.1 second\n192.168.77.1 gpu-head\n' >"$root/etc/hosts.second"
printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
chmod +x "$root/usr/sbin/policy-rc.d"
cp -L /etc/resolv.conf "$root/etc/resolv.conf"
for path in "${copied[@]}"; do
  mkdir -p "$root${path%/*}"
  rm -rf --one-file-system "$root${path:?}"
  cp -a "$path" "$root$path"
done
mkdir -p "$root/mnt/muster" "$root/srv/second/root"
git clone -q --no-local --no-checkout . "$root/root/muster"
git -C "$root/root/muster" checkout -q --detach "$(git rev-parse HEAD)"
say "commit $(git -C "$root/root/muster" log -1 --format='%h %s')"

# start NAME WORDS...: a machine, where the namespaces that WORDS enter are; sets `leader`
start() {
  local name=$1 began
  shift
  rm -f "$root/run/ready"
  "$@" unshare --mount --uts --ipc --pid --fork --kill-child --mount-proc "$PWD/tools/clean_machine.sh" \
    --machine "$name" "$root" "$bound" "$cache" </dev/null &
  began=$!
  started+=("$began")
  for _ in $(seq 300); do
    leader=$(pgrep -P "$began" || true)
    [ -z "$leader" ] || [ ! -e "/proc/$leader/root/run/ready" ] || return 0
    sleep 0.1
  done
  die "the machine $name does not start"
}
# entered PID: words that enter a machine
entered() {
  echo "nsenter -t $1 -m -u -i -n -p -r -w -- env -i HOME=/root USER=root TERM=dumb LANG=C.UTF-8" \
    "PATH=$2/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin $(printf '%q ' "${passed[@]}")"
}
counts=$folder/counts
type_() {
  python3 "$root/root/muster/tests/docs/type_pages.py" --root "$root/root/muster" --counts "$counts" "$@" || true
}
start gpu-head
head=$leader
in_checkout="$(entered "$head" '') bash -c 'cd ~/muster; exec \"\$@\"' -"
say "README.md"
type_ --shell "$in_checkout" README.md

say "docs/quickstart.md, on two machines"
# The programs are on both, as the page has it.
mkdir -p "$root/srv/second/root/bin"
[ ! -d "$root/root/muster/bin" ] || cp "$root/root/muster/bin"/* "$root/srv/second/root/bin"
start second unshare --net
second=$leader
unshare --net sleep infinity &
network=$!
started+=("$network")
until [ "$(readlink "/proc/$network/ns/net")" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.1; done
nsenter -t "$second" -n ip link add eth0 type veth peer name eth0 netns "$network"
number=0
for pid in "$network" "$second"; do
  number=$((number + 1))
  nsenter -t "$pid" -n ip link set lo up
  nsenter -t "$pid" -n ip addr add 192.168.77.$number/24 dev eth0
  nsenter -t "$pid" -n ip link set eth0 up
done
type_ --shell "nsenter --net=/proc/$network/ns/net -- ${in_checkout/ -n / } env SECOND_HOME=/srv/second/root" \
  --second "$(entered "$second" /root/bin:) bash -c 'cd; exec \"\$@\"' -" \
  --has HEAD=gpu-head --has SHARED=/mnt/muster docs/quickstart.md

awk '{typed += $1; failed += $2; left += $3} END {
  printf "%d commands are not typed: see \"not typed\" above\n%d commands typed, %d failed\n", left, typed, failed
  exit (failed > 0 || NR != 2)
}' "$counts"
