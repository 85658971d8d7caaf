#!/bin/bash
# Runs muster.sbatch under a real Slurm (Debian's), on this machine alone: three hosts in network namespaces on one
# bridge, slurmctld on the first, a slurmd on each. Tries a job on one node, one on three, one that fails, an
# allocation that is asked to end and the next one that continues from its checkpoint, and a plain scancel. Prints the
# results; exit code 0: all as expected. About half a minute.
#   deploy/slurm/try.sh [FOLDER OF THE FIVE PROGRAMS]      (default: bin, which tools/install.sh fills)
# Needs root (namespaces), `apt-get install --no-install-recommends slurm-wlm munge iproute2`. Touches only its own
# namespaces and one folder in /tmp, and leaves no process behind.
set -euo pipefail
cd "$(dirname "$0")/../.."
if [ -z "${MUSTER_TRY_INSIDE:-}" ]; then
  for program in slurmctld slurmd sbatch munged ip; do
    command -v $program >/dev/null || PATH=$PATH:/usr/sbin command -v $program >/dev/null ||
      { echo "try: no $program: apt-get install --no-install-recommends slurm-wlm munge iproute2" >&2; exit 2; }
  done
  bin=$(realpath "${1:-bin}")
  [ -x "$bin/muster" ] || { echo "try: no $bin/muster: run tools/install.sh bin" >&2; exit 2; }
  folder=$(mktemp -d /tmp/muster-slurm-XXXXXX)
  trap 'rm -rf "$folder"' EXIT
  # When the first process of the PID namespace ends, all others do.
  MUSTER_TRY_INSIDE=$folder MUSTER_BIN=$bin unshare --net --uts --mount --pid --fork --kill-child --mount-proc "$0" && exit 0
  echo "try: the logs:" >&2
  tail -n 15 "$folder"/*.log "$folder"/*/*.log "$folder"/*.out >&2 2>/dev/null || true
  exit 1
fi

export PATH=$PATH:/usr/sbin
folder=$MUSTER_TRY_INSIDE
hosts=3
mount -t tmpfs tmpfs /run
mkdir -p /run/munge /run/slurm "$folder/spool"
chmod 755 "$folder"
{ echo "127.0.0.1 localhost"; for h in $(seq $hosts); do echo "10.78.0.$h n$h"; done; } >"$folder/hosts"
mount --bind "$folder/hosts" /etc/hosts

ip link set lo up
ip link add wire type bridge
ip link set wire up
for h in $(seq $hosts); do
  unshare --net --uts sleep infinity &
  holders[h]=$!
  until [ "$(readlink "/proc/${holders[h]}/ns/net")" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.05; done
done
on() { local host=$1; shift; nsenter -t "${holders[host]}" --net --uts -- "$@"; }
for h in $(seq $hosts); do
  ip link add "cable$h" type veth peer name eth0 netns "${holders[h]}"
  ip link set "cable$h" master wire up
  on "$h" hostname "n$h"
  on "$h" ip link set lo up
  on "$h" ip addr add "10.78.0.$h/24" dev eth0
  on "$h" ip link set eth0 up
done

head -c 1024 /dev/urandom >"$folder/munge.key"
chmod 400 "$folder/munge.key"
munged --force --key-file="$folder/munge.key" --pid-file=/run/munge/munged.pid --log-file="$folder/munged.log" \
  --seed-file="$folder/munge.seed" --socket=/run/munge/munge.socket.2
cat >"$folder/slurm.conf" <<CONF
ClusterName=try
SlurmctldHost=n1
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=/run/munge/munge.socket.2
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool/%n
SlurmctldPidFile=/run/slurm/slurmctld.pid
SlurmdPidFile=/run/slurm/slurmd-%n.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=batch_sched_delay=0,sched_interval=1
ReturnToService=2
KillWait=30
NodeName=n[1-$hosts] CPUs=$(nproc) State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONF
export SLURM_CONF=$folder/slurm.conf
mkdir "$folder/state"
on 1 slurmctld -D >/dev/null 2>&1 &
for h in $(seq $hosts); do on "$h" slurmd -D -N "n$h" >/dev/null 2>&1 & done
ready() { [ "$(on 1 sinfo -h -t idle -o %D 2>/dev/null)" = $hosts ]; }
for _ in $(seq 300); do ready && break; sleep 0.1; done
ready || { echo "try: Slurm did not start" >&2; exit 1; }
echo "try: $(on 1 sinfo -V): $(on 1 sinfo -h -o '%D nodes %T: %N')"

# The data: a byte a token.
cd "$folder"
head -c 200000 /usr/share/common-licenses/GPL-3 >text.txt
"$MUSTER_BIN/muster" data prepare text.txt train.bin >/dev/null 2>&1
job() {   # NAME RANKS STEPS
  cat >"$1.yaml" <<YAML
apiVersion: muster/v1
kind: Job
name: $1
model: {family: gpt2, size: tiny}
data: {tokens: $folder/train.bin}
strategy: {kind: ddp}
resources: {ranks: $2}
batch: {sequences: 6}
optimizer: {kind: adamw, lr: 1e-3}
steps: $3
checkpoint: {path: $folder/checkpoints/$1, every_steps: 100000}
YAML
}
failed=0
check() { if eval "$2"; then echo "  yes: $1"; else echo "  NO:  $1 ($2)"; failed=1; fi; }
submit() { on 1 sbatch --parsable --output="$folder/%x-%j.out" "$@"; }
sbatch_file=$OLDPWD/deploy/slurm/muster.sbatch
state() { on 1 scontrol show job "$1" 2>/dev/null | grep -oE 'JobState=[A-Z_]+' | cut -d= -f2; }
# Waits until allocation $1 has ended; at most $2 seconds.
ended() {
  for _ in $(seq $(($2 * 5))); do
    case $(state "$1") in PENDING | RUNNING | COMPLETING) sleep 0.2 ;; *) return 0 ;; esac
  done
  return 1
}
# Waits until a line of the output of allocation $2 (named $1) contains $3.
says() {
  for _ in $(seq 300); do grep -q "$3" "$folder/$1-$2.out" 2>/dev/null && return 0; sleep 0.2; done
  return 1
}
left() { pgrep -c "^muster" || true; }   # in this PID namespace
export MUSTER_BIN

echo "one node, one rank"
job one 1 20
id=$(submit --job-name=one --nodes=1 "$sbatch_file" one.yaml)
check "it ends" "ended $id 60"
check "COMPLETED" '[ "$(state '"$id"')" = COMPLETED ]'
check "its output has the last step" "grep -q '20/20' one-$id.out"
check "nothing is left" '[ "$(left)" = 0 ]'

echo "three nodes, three ranks, over TLS"
job three 3 20
id=$(submit --job-name=three --nodes=3 "$sbatch_file" three.yaml)
check "it ends" "ended $id 120"
check "COMPLETED" '[ "$(state '"$id"')" = COMPLETED ]'
check "its output has the last step" "grep -q '20/20' three-$id.out"
check "a worker daemon on each node" '[ "$(ls muster-'"$id"'/worker-n?.log | wc -l)" = 3 ]'
check "nothing is left" '[ "$(left)" = 0 ]'

echo "a job that fails"
job wrong 1 20
sed -i "s/train.bin/nowhere.bin/" wrong.yaml
id=$(submit --job-name=wrong --nodes=1 "$sbatch_file" wrong.yaml)
check "it ends" "ended $id 60"
check "FAILED" '[ "$(state '"$id"')" = FAILED ]'
check "its output names the file" "grep -q nowhere.bin wrong-$id.out"
check "nothing is left" '[ "$(left)" = 0 ]'

echo "an allocation that is asked to end, and the next one"
job long 3 100000
export MUSTER_STATE=$folder/long-state
id=$(submit --job-name=long --nodes=3 "$sbatch_file" long.yaml)
check "it trains" "says long $id 'step'"
sleep 5
on 1 scancel --batch --signal=TERM "$id"
check "it ends" "ended $id 90"
check "a checkpoint was written" 'ls -d checkpoints/long/step-* >/dev/null'
newest=$(ls -d checkpoints/long/step-* | sed -E 's/.*step-0*([0-9]+).*/\1/' | sort -n | tail -n 1)
check "nothing is left" '[ "$(left)" = 0 ]'
id=$(submit --job-name=long --nodes=3 "$sbatch_file" long.yaml)
check "the next allocation says that it continues" "says long $id 'continuing long'"
check "it resumes from step $newest" "says long $id 'step $newest\\b'"

echo "a plain scancel"
sleep 5
on 1 scancel "$id"
check "it ends" "ended $id 120"
check "CANCELLED" '[ "$(state '"$id"')" = CANCELLED ]'
check "nothing is left" '[ "$(left)" = 0 ]'
[ $failed = 0 ] && echo "try: all as expected" || { echo "try: something is not as expected" >&2; exit 1; }
