#!/bin/bash
# Builds the image for CPUs of the packages of tools/package.sh and runs compose.yaml in podman: a job on two workers,
# health checks, containers that are recreated, killed and paused, limits, rotated logs, published ports and, where this
# machine has Debian's package prometheus, the profile for monitoring. Prints each step; exit code 0: all as expected.
# Three minutes, and one more for debootstrap, which alone needs a network.
#   deploy/docker/try.sh [FOLDER OF THE PACKAGES, default dist] [ROOT]
#     ROOT: a folder of debootstrap as the base image, in place of a new one: debootstrap --variant=minbase bookworm ROOT
# Needs root and `apt-get install --no-install-recommends podman runc netavark aardvark-dns iptables catatonit
# docker-compose debootstrap curl`. Runs in namespaces of its own: uses no port, image or container of this machine,
# touches one folder in /var/tmp, and leaves no process behind.
set -euo pipefail
cd "$(dirname "$0")/../.."
if [ "${1:-}" != --inside ]; then
  dist=$(realpath "${1:-dist}") root=${2:+$(realpath "$2")}
  for tool in podman runc catatonit iptables docker-compose debootstrap curl; do
    command -v $tool >/dev/null || { echo "try: no $tool: the first lines of $0 say what to install" >&2; exit 2; }
  done
  ls "$dist"/muster-*-linux-x86_64.tar.gz >/dev/null || { echo "try: no tarball in $dist: run tools/package.sh" >&2; exit 2; }
  (cd "$dist" && sha256sum --quiet -c SHA256SUMS)
  folder=$(mktemp -d /var/tmp/muster-docker-XXXXXX)
  finish() {
    local code=$?
    # podman's groups; those of other containers are in use
    find /sys/fs/cgroup -depth -type d -path '*/libpod_parent*' -exec rmdir {} + 2>/dev/null || true
    rm -rf "$folder"
    [ $code = 0 ] || echo "try: failed" >&2
  }
  trap finish EXIT
  if [ -z "$root" ]; then
    root=$folder/root
    echo "== a new Debian" >&2
    debootstrap --variant=minbase bookworm "$root" http://deb.debian.org/debian >"$folder/debootstrap.log" 2>&1 ||
      { tail "$folder/debootstrap.log" >&2; exit 1; }
  fi
  unshare --mount --net --pid --fork --kill-child --mount-proc \
    env -i PATH="$PATH" HOME="$folder" LANG=C.UTF-8 "$0" --inside "$folder" "$dist" "$root"
  exit
fi

folder=$2 dist=$3 root=$4
say() { echo "== $*" >&2; }
finish() {
  local code=$? id
  [ $code != 0 ] || return 0
  podman ps -a >&2 || true
  for id in $(podman ps -aq); do podman logs --tail 15 "$id" 2>&1 | cut -c 1-200 >&2 || true; done
}
trap finish EXIT

# --- podman with its state in the folder, and nothing of this machine's
ip link set lo up
mount -t tmpfs tmpfs /run
mkdir -p /var/lib/containers
mount -t tmpfs tmpfs /var/lib/containers
mkdir -p "$folder/tmp" "$folder/networks"
export TMPDIR=$folder/tmp CONTAINERS_CONF=$folder/containers.conf CONTAINERS_STORAGE_CONF=$folder/storage.conf
cat >"$CONTAINERS_CONF" <<END
[containers]
default_ulimits = ["nofile=$(ulimit -Hn):$(ulimit -Hn)", "nproc=10000:10000"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
[network]
network_backend = "netavark"
network_config_dir = "$folder/networks"
END
printf '[storage]\ndriver = "overlay"\ngraphroot = "%s"\nrunroot = "/run/containers/storage"\n' "$folder/storage" \
  >"$CONTAINERS_STORAGE_CONF"
export DISABLE_HC_SYSTEMD=true DOCKER_HOST=unix:///run/podman.sock
# conmon writes a file into the working folder.
(cd "$folder" && exec podman system service --time 0 $DOCKER_HOST) >"$folder/service.log" 2>&1 &

# --- compose.yaml, with its variables
export MUSTER_DATA=$folder/data MUSTER_WORKER_MEMORY=1g MUSTER_PROMETHEUS_IMAGE=localhost/prometheus
files=(-f deploy/docker/compose.yaml)
if ! (ulimit -Hn 1048576 && ulimit -Hl unlimited) 2>/dev/null; then
  say "this user may not raise the limits of open files and locked memory: both stay as they are"
  ulimits="nofile: $(ulimit -Hn), nproc: 10000, memlock: $(($(ulimit -Hl) * 1024))"
  printf 'services:\n' >"$folder/ulimits.yaml"
  printf '  %s: {ulimits: {%s}}\n' coordinator "$ulimits" worker-1 "$ulimits" worker-2 "$ulimits" >>"$folder/ulimits.yaml"
  files+=(-f "$folder/ulimits.yaml")
fi
compose() { timeout 180 docker-compose "${files[@]}" "$@"; }
quiet() { "$@" >"$folder/log" 2>&1 || { cat "$folder/log" >&2; return 1; }; }
container() { echo "muster_$1_1"; }   # of docker-compose 1
in_() { local service=$1; shift; timeout 180 podman exec "$(container "$service")" "$@"; }
muster() { in_ coordinator muster "$@"; }
value() { podman inspect --format "$2" "$(container "$1")"; }
found() { grep "$@" >/dev/null; }   # reads all: grep -q would end what writes
# equal WHAT IS EXPECTED
equal() { [ "$2" = "$3" ] || { echo "$1: $2, not $3" >&2; return 1; }; }
# until_ SECONDS COMMAND...: repeats it until it succeeds
until_() {
  local end=$((SECONDS + $1))
  shift
  until "$@"; do
    [ $SECONDS -lt $end ] || { echo "still not so: $*" >&2; return 1; }
    sleep 0.5
  done
}
health_is() { [ "$(value "$1" '{{.State.Health.Status}}')" = "$2" ]; }
all_healthy() { local s; for s in coordinator worker-1 worker-2; do until_ 60 health_is $s healthy; done; }
nodes() { muster nodes -o name | sort; }
live() { [ "$(muster nodes -o json 2>/dev/null | grep -c '"state": *"live"')" = "$1" ]; }
step() { muster ps | sed -n "s,^$1-.* \([0-9]*\)/[0-9]* .*,\1,p"; }
# Whether the job has done a step since it was at step $2.
beyond() { [ "$(step "$1" 2>/dev/null || true)" -gt "$2" ] 2>/dev/null; }
# The step that the job is at, once it has done one.
at() { until_ 60 beyond "$1" 0 && step "$1"; }
# Podman has systemd's timers run the health checks. Here this loop does.
while sleep 3; do for id in $(podman ps -q); do podman healthcheck run "$id" || true; done; done >/dev/null 2>&1 &

say "the image"
tar -C "$root" --exclude './var/cache/apt/archives/*.deb' -c . | podman import -q - localhost/debian >/dev/null
mkdir "$folder/programs"
tar -C "$folder/programs" --strip-components=1 -xzf "$dist"/muster-*-linux-x86_64.tar.gz
# image NAME REVISION
image() {
  podman build --network none -f deploy/docker/Dockerfile --build-arg DEBIAN=localhost/debian --build-arg REVISION="$2" \
    --build-context programs="$folder/programs" -t "$1" .
}
quiet image muster:cpu first
equal user "$(podman inspect --format '{{.Config.User}}' muster:cpu)" muster
equal revision "$(podman inspect --format '{{index .Config.Labels "org.opencontainers.image.revision"}}' muster:cpu)" first
equal version "muster $(podman inspect --format '{{index .Config.Labels "org.opencontainers.image.version"}}' muster:cpu)" \
  "$(podman run --rm --network none muster:cpu muster --version | head -n 1 | cut -d ' ' -f 1-2)"
say "a new revision makes no layer again, a new program only that of the programs"
layers() { podman inspect --format '{{range .RootFS.Layers}}{{println .}}{{end}}' "$1" | sed '/^$/d'; }
quiet image muster:next second
equal layers "$(layers muster:next)" "$(layers muster:cpu)"
echo >>"$folder/programs/bin/muster-step"
quiet image muster:next third
# Above the programs' layer is that of the self-check.
equal "layers below the programs" "$(layers muster:next | head -n -2)" "$(layers muster:cpu | head -n -2)"
[ "$(layers muster:next)" != "$(layers muster:cpu)" ]

say "up: two workers"
install -d -o 10001 "$MUSTER_DATA"
quiet compose up -d
all_healthy
live 2
quiet compose exec -T coordinator muster nodes
had=$(nodes)
for once in trust token; do equal "exit code of $once" "$(value $once '{{.State.ExitCode}}')" 0; done

say "a job on both, as in docs/quickstart.md"
sed -n '/^# job.yaml/,/^```/p' docs/quickstart.md | sed '/^```/,$d' >"$MUSTER_DATA/job.yaml"
cp /usr/share/common-licenses/GPL-3 "$MUSTER_DATA/book.txt"
quiet muster data prepare /data/book.txt /data/train.bin --validation /data/val.bin
quiet muster submit -f /data/job.yaml --set resources.ranks=2 --set steps=20 --set optimizer.lr_schedule.warmup_steps=5 \
  --set checkpoint.every_steps=10
muster ps --all | found '^first-.* completed  *20/20'
ls "$MUSTER_DATA"/runs/first-*/step-0000000020-g1/manifest.json >/dev/null

say "the container's rights and limits"
# rights SERVICE: user, capabilities, whether it may gain more, what is PID 1, bytes of memory, processes
rights() {
  in_ "$1" sh -c 'id -u; sed -n "s/^CapEff:[[:space:]]*//p; s/^NoNewPrivs:[[:space:]]*//p" /proc/self/status; cat /proc/1/comm
    cat /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null || cat /sys/fs/cgroup/memory.max
    cat /sys/fs/cgroup/pids/pids.max 2>/dev/null || cat /sys/fs/cgroup/pids.max' | tr '\n' ' '
}
equal "rights of the coordinator" "$(rights coordinator)" "10001 0000000000000000 1 podman-init $((2 << 30)) 512 "
equal "rights of a worker" "$(rights worker-1)" "10001 0000000000000000 1 podman-init $((1 << 30)) 4096 "
muster nodes -o json | found '"memory_bytes": 1073741824'
before=$(value worker-1 '{{.State.Pid}}')
if in_ worker-1 sh -c 'head -c 4G /dev/zero | tail -n 1 >/dev/null; exit $?' 2>/dev/null; then
  echo "4 GiB fit into a container of 1 GiB" >&2
  exit 1
fi
live 2   # what asked for too much was killed, and nothing else
equal "worker-1's process" "$(value worker-1 '{{.State.Pid}}')" "$before"

say "the log is rotated"
in_ worker-1 sh -c 'yes "$(printf %100s x)" | head -n 200000 >/proc/1/fd/1'
log=$(value worker-1 '{{.HostConfig.LogConfig.Path}}')
[ "$(stat -c %s "$log")" -le 11000000 ] || { ls -l "$log"* >&2; exit 1; }   # of more than 20 MB

say "published ports, over TLS and for this machine only"
in_ coordinator cat /var/lib/muster/coordinator/trust/ca.crt >"$folder/ca.pem"
curl -sSf --cacert "$folder/ca.pem" https://localhost:7443/ >"$folder/page"
grep -qi '<title>.*muster' "$folder/page"
curl -sSf http://127.0.0.1:9464/metrics | found ^muster_
muster coordinator token create --role submitter --user ann >"$folder/ann.token" 2>/dev/null
chmod 600 "$folder/ann.token"
"$folder/programs/bin/muster" --address localhost:7070 --token-file "$folder/ann.token" ps --all | found '^first-'
ip address add 192.0.2.1/32 dev lo   # another address of this machine
opens() { (exec 3<>"/dev/tcp/$1/$2") 2>/dev/null; }
for port in 7070 7443 9464; do
  opens 127.0.0.1 $port
  if opens 192.0.2.1 $port; then echo "port $port is open beyond loopback" >&2; exit 1; fi
done

say "a worker's container is recreated during a job: the same node"
quiet muster submit -d -f /data/job.yaml --set name=long --set resources.ranks=2 --set steps=1000000 \
  --set checkpoint.every_steps=10
until_ 60 beyond long 10
quiet compose up -d --force-recreate --no-deps worker-1
at=$(at long)
until_ 60 health_is worker-1 healthy
until_ 60 live 2
equal nodes "$(nodes)" "$had"
until_ 60 beyond long "$at"

say "the coordinator is killed: it starts again, and the job goes on"
kill -9 "$(pgrep -f '^muster-coordinator ')"
until_ 60 live 2
at=$(at long)
until_ 60 beyond long "$at"

if command -v prometheus >/dev/null; then
  say "monitoring: Prometheus of Debian in place of its image (Grafana was not tried)"
  mkdir "$folder/prometheus"
  cp "$(command -v prometheus)" "$(command -v promtool)" "$folder/prometheus"
  # As the image that compose.yaml names has it.
  printf '%s\n' 'FROM localhost/debian' 'COPY prometheus promtool /bin/' 'RUN install -d -o 65534 /prometheus' 'USER 65534' \
    'ENTRYPOINT ["/bin/prometheus"]' >"$folder/prometheus/Dockerfile"
  quiet podman build --network none -t localhost/prometheus "$folder/prometheus"
  quiet compose --profile monitoring up -d --no-deps prometheus
  until_ 60 health_is prometheus healthy
  ask() { curl -sSf --get http://127.0.0.1:9090/api/v1/query --data-urlencode "query=$1"; }
  up() { ask 'sum(up)' | found '"3"'; }
  until_ 60 up
  curl -sSf http://127.0.0.1:9090/api/v1/rules | found '"type":"alerting"'
fi

say "the coordinator is paused: the workers become unhealthy, and healthy after it"
podman pause "$(container coordinator)" >/dev/null
until_ 120 health_is worker-2 unhealthy
podman unpause "$(container coordinator)" >/dev/null
all_healthy
muster cancel -y long >/dev/null 2>&1

say "down and up: the volumes have the jobs and the nodes"
quiet compose down
[ -z "$(podman ps -aq --filter label=com.docker.compose.project=muster)" ]
quiet compose up -d
all_healthy
until_ 60 live 2
equal nodes "$(nodes)" "$had"
muster ps --all | found '^first-.* completed'
quiet compose down -v
[ -z "$(podman volume ls -q)" ]

say "the profile for GPUs: its syntax"
compose --profile gpu config | found 'driver: nvidia'
say "all as expected"
