#!/bin/bash
# Installs the packages of tools/package.sh on a new Debian 12 without a compiler or a network, under its own systemd:
# `muster local`, the units over TLS, an upgrade during a job, remove, purge, and the tarball in two folders. Prints each
# step; exit code 0: all as expected. Two and a half minutes, half of them for debootstrap.
#   deploy/debian/try.sh [FOLDER OF THE PACKAGES, default dist] [ROOT]
#     ROOT: a folder of debootstrap to copy, in place of a new one: debootstrap --variant=minbase
#     --include=systemd,systemd-sysv bookworm ROOT
# Needs root and `apt-get install --no-install-recommends debootstrap systemd-container`. Touches one folder in /var/tmp,
# and leaves no process behind.
set -euo pipefail
cd "$(dirname "$0")/../.."
dist=$(realpath "${1:-dist}")
for tool in debootstrap systemd-nspawn nsenter; do
  command -v $tool >/dev/null || { echo "try: no $tool: apt-get install --no-install-recommends debootstrap systemd-container" >&2; exit 2; }
done
ls "$dist"/muster-trainer_*.deb >/dev/null || { echo "try: no packages in $dist: run tools/package.sh" >&2; exit 2; }
(cd "$dist" && sha256sum --quiet -c SHA256SUMS)

folder=$(mktemp -d /var/tmp/muster-debian-XXXXXX)
root=$folder/root
nspawn=
finish() {
  local code=$?
  if [ -n "$nspawn" ]; then
    [ $code = 0 ] || inside journalctl -q --no-pager -n 40 -u 'muster-*' >&2 || true
    kill -TERM "$nspawn" 2>/dev/null || true   # a clean shutdown
    wait "$nspawn" 2>/dev/null || true
  fi
  rm -rf "$folder"
  [ $code = 0 ] || echo "try: failed" >&2
}
trap finish EXIT
say() { echo "== $*" >&2; }

say "a new Debian"
if [ -n "${2:-}" ]; then
  cp -a "$2" "$root"
else
  debootstrap --variant=minbase --include=systemd,systemd-sysv bookworm "$root" http://deb.debian.org/debian >"$folder/debootstrap.log" 2>&1 ||
    { tail "$folder/debootstrap.log" >&2; exit 1; }
fi
echo "127.0.0.1 localhost" >"$root/etc/hosts"   # as Debian's installer does
mkdir -p "$root/packages" "$root/next"
cp "$dist"/*.deb "$dist"/*.tar.gz "$root/packages"
# The next version: the same files.
version=$(dpkg-deb -f "$dist"/muster-cli_*.deb Version)
for deb in "$dist"/*.deb; do
  dpkg-deb -R "$deb" "$folder/next"
  sed -i "s/$version/$version+next/" "$folder/next/DEBIAN/control"
  dpkg-deb --root-owner-group -Zzstd -z1 -b "$folder/next" "$root/next" >/dev/null
  rm -rf "$folder/next"
done

systemd-nspawn -q -D "$root" --boot --private-network --register=no --keep-unit --kill-signal=SIGRTMIN+3 --console=pipe \
  </dev/null >"$folder/console" 2>&1 &
nspawn=$!
leader=
for _ in $(seq 300); do
  leader=$(pgrep -P "$nspawn" || true)
  [ -n "$leader" ] && [ -e "/proc/$leader/root/run/systemd/system" ] && break
  sleep 0.1
done
inside() { nsenter -t "$leader" -m -u -i -n -p -r -w -- env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin TERM=dumb LANG=C.UTF-8 "$@"; }
# What must not be is written as `none COMMAND`: with -e bash ignores a failing `! COMMAND`.
helpers='
  none() { local found; if found=$("$@" 2>/dev/null); then echo "unexpected: $*: $found" >&2; exit 1; fi; }
  pids() { grep -lE "^$1" /proc/[0-9]*/comm; }   # minbase has no procps
'
script() { inside bash -euo pipefail -c "$helpers$1"; }
for _ in $(seq 300); do
  state=$(inside systemctl is-system-running 2>/dev/null || true)
  case $state in running | degraded) break ;; esac
  sleep 0.1
done

say "install, without a network"
script '
  for tool in cc gcc g++ bazel python3 pip; do none command -v $tool; done
  apt-get install -y -q --no-install-recommends /packages/*.deb >/tmp/apt.log 2>&1 || { cat /tmp/apt.log; exit 1; }
  none grep -iE "^Get:.*http" /tmp/apt.log
  for unit in muster-coordinator muster-worker; do
    [ "$(systemctl is-enabled $unit)" = disabled ]
    [ "$(systemctl is-active $unit)" = inactive ]
  done
  [ "$(stat -c "%U %a" /var/lib/muster/coordinator)" = "muster-coordinator 700" ]
  muster --version
  muster-trainer() { /opt/muster/bin/muster-trainer "$@"; }
  muster-trainer --self-check
  ldd /opt/muster/bin/* >/tmp/libraries
  none grep "not found" /tmp/libraries
  useradd -m tester'

# A job of an example file, on text that every installation has.
job='
  [ -s train.bin ] || command muster data prepare /usr/share/common-licenses/GPL-3 train.bin --validation val.bin
  chmod a+r train.bin val.bin
  cp "$EXAMPLES/gpt2_tiny.yaml" job.yaml'

say "muster local, as a user"
local_service='
  muster local up
  muster submit -d -f job.yaml --set steps=20 --set optimizer.lr_schedule.warmup_steps=5 --set checkpoint.every_steps=10
  muster watch @last >/dev/null
  muster sample @last --prompt "The license" --tokens 20 >/dev/null
  muster local down'
script "cd /home/tester; runuser -u tester -- env HOME=/home/tester EXAMPLES=/opt/muster/share/muster/examples bash -euo pipefail -c '$job;$local_service'"

say "the units, over TLS"
script '
  as_it() { runuser -u muster-coordinator -- muster "$@"; }
  as_it coordinator init --state-dir /var/lib/muster/coordinator --host localhost
  echo "MUSTER_COORDINATOR_FLAGS=--listen 127.0.0.1:7070 --metrics-address 127.0.0.1:9464" >/etc/muster/coordinator.env
  systemctl enable --now muster-coordinator
  install -m 0600 -o muster-worker -g muster-worker /dev/null /etc/muster/join.token
  for _ in $(seq 100); do
    as_it --address unix:/run/muster-coordinator/coordinator.sock coordinator token create --role worker >/etc/muster/join.token && break
    sleep 0.1
  done
  printf "MUSTER_COORDINATOR=localhost:7070\nMUSTER_WORKER_FLAGS=--join-token /etc/muster/join.token --metrics-address 127.0.0.1:9465\n" >/etc/muster/worker.env
  systemctl enable --now muster-worker
  for _ in $(seq 300); do muster worker health 2>/dev/null && break; sleep 0.1; done
  muster worker health'
admin='
  export MUSTER_ADDRESS=unix:/run/muster-coordinator/coordinator.sock
  muster() { runuser -u muster-coordinator -- env HOME=/tmp XDG_STATE_HOME=/tmp/admin muster "$@"; }
  # more JOB: waits until the job has done another step
  steps() { muster ps | sed -n "s,^$1-.* \([0-9]*\)/[0-9]* .*,\1,p"; }
  more() {
    local had now
    had=$(steps "$1")
    for _ in $(seq 600); do
      now=$(steps "$1")
      [ "${now:-0}" -gt "${had:-0}" ] && return
      sleep 0.1
    done
    echo "$1 stays at step ${had:-0}" >&2
    return 1
  }
'
script "$admin"'
  install -d -m 1777 /srv/jobs
  install -d -m 0700 -o muster-coordinator /tmp/admin
  cd /srv/jobs
  EXAMPLES=/opt/muster/share/muster/examples
'"$job"'
  muster submit -d -f job.yaml --set steps=20 --set optimizer.lr_schedule.warmup_steps=5 --set name=first --set checkpoint.path=/srv/jobs/{job}
  muster watch @last >/dev/null
  muster ps --all | grep "first.*completed"
  muster submit -d -f job.yaml --set steps=100000000 --set name=long --set checkpoint.path=/srv/jobs/{job}
  more long'

say "an upgrade during a job"
script "$admin"'
  coordinator=$(systemctl show -P MainPID muster-coordinator) worker=$(systemctl show -P MainPID muster-worker)
  trainer=$(pids "muster-trainer$")
  apt-get install -y -q --no-install-recommends -o Dpkg::Options::=--force-confold /next/*.deb >/tmp/apt.log 2>&1 || { cat /tmp/apt.log; exit 1; }
  grep "the old daemon is still running" /tmp/apt.log
  dpkg-query -W -f "\${Version}\n" muster-coordinator | grep next
  [ "$(systemctl show -P MainPID muster-coordinator)" != "$coordinator" ]
  [ "$(systemctl show -P MainPID muster-worker)" = "$worker" ]
  for _ in $(seq 100); do muster version >/dev/null 2>&1 && break; sleep 0.1; done
  muster ps --all | grep "first.*completed"
  more long
  [ "$(pids "muster-trainer$")" = "$trainer" ]
  systemctl restart muster-worker
  [ "$(systemctl show -P MainPID muster-worker)" != "$worker" ]
  more long
  grep -q 7070 /etc/muster/coordinator.env'

say "remove keeps state and configuration; a second installation finds them"
script "$admin"'
  systemctl stop muster-worker
  apt-get remove -y -q "muster-*" >/dev/null 2>&1
  [ ! -e /opt/muster ]
  [ ! -e /usr/bin/muster ]
  none pids muster
  [ -s /var/lib/muster/coordinator/state.db ]
  [ -d /var/lib/muster/coordinator/trust ]
  grep -q localhost:7070 /etc/muster/worker.env
  apt-get install -y -q --no-install-recommends /packages/*.deb >/tmp/apt.log 2>&1 || { cat /tmp/apt.log; exit 1; }
  systemctl start muster-coordinator muster-worker
  for _ in $(seq 100); do muster version >/dev/null 2>&1 && break; sleep 0.1; done
  muster ps --all | grep "first.*completed"
  more long
  muster cancel -y long'

say "purge leaves no file"
script '
  apt-get purge -y -q "muster-*" >/dev/null 2>&1
  none pids muster
  left=$(find / -xdev -name "*muster*" ! -path "/proc/*" ! -path "/packages/*" ! -path "/next/*" ! -path "/home/*" ! -path "/tmp/*" ! -path "/srv/*" ! -path "/run/*" ! -path "/var/log/*")
  [ -z "$left" ] || { echo "left: $left"; exit 1; }
  [ ! -e /etc/muster ]'

say "the tarball, in one folder and then in another"
script '
  cd /home/tester
  runuser -u tester -- tar -xzf /packages/muster-*.tar.gz
  mv muster-*-x86_64 "here it is"
  run() { runuser -u tester -- env HOME=/home/tester PATH="/home/tester/$1/bin:$PATH" EXAMPLES="/home/tester/$1/share/muster/examples" bash -euo pipefail -c '"'$job;$local_service'"'; }
  run "here it is"
  mv "here it is" moved
  run moved'
say "all as expected"
