#!/bin/bash
#SBATCH --job-name=starling
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --time=08:00:00
#SBATCH --signal=B:TERM@120
# A Ray cluster inside one Slurm job: the first node holds the head and the learner, all nodes hold actors.
# The run's folder must lie on a disk that outlives the job: a job that is sent again goes on with it.
#
#   sbatch slurm.sh impala-pong actors=30 run=pong
set -euo pipefail

PORT=${PORT:-6379}
RUNS=${RUNS:-$PWD/runs}
SECRET=$(mktemp -d "$HOME/.starling-job-XXXXXX") # the home folder is seen by all nodes, and by nobody else
trap 'rm -rf "$SECRET"' EXIT
(umask 077 && head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' > "$SECRET/token")
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH="$SECRET/token"
export RAY_health_check_period_ms=1000 RAY_health_check_timeout_ms=5000 RAY_health_check_failure_threshold=3
export RAY_worker_niceness=0

HEAD=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)
HEAD_IP=$(srun --nodes=1 --ntasks=1 --nodelist="$HEAD" hostname --ip-address | awk '{print $1}')
CPUS=$SLURM_CPUS_PER_TASK

srun --nodes=1 --ntasks=1 --nodelist="$HEAD" --overlap \
    ray start --head --node-ip-address="$HEAD_IP" --port="$PORT" --num-cpus=$((CPUS - 2)) \
    --include-dashboard=false --disable-usage-stats --block &
sleep 15
if [ "$SLURM_JOB_NUM_NODES" -gt 1 ]; then
    srun --nodes=$((SLURM_JOB_NUM_NODES - 1)) --ntasks=$((SLURM_JOB_NUM_NODES - 1)) --exclude="$HEAD" --overlap \
        ray start --address="$HEAD_IP:$PORT" --num-cpus="$CPUS" --disable-usage-stats --block &
    sleep 15
fi

NAME=$(printf '%s\n' "$@" | sed -n 's/^run=//p')
if [ -n "$NAME" ] && [ -e "$RUNS/$NAME/config.yaml" ]; then
    WORK=(resume "$RUNS/$NAME")
else
    WORK=(train "$@" runtime=ray ray.address=auto --runs "$RUNS") # auto: also where a job that is sent again has another head
fi
# On its own node, so that the learner has the two cores that the head's Ray leaves free.
srun --nodes=1 --ntasks=1 --nodelist="$HEAD" --overlap starling "${WORK[@]}" &
DRIVER=$!
trap 'kill -TERM $DRIVER' TERM # saves and ends with 143
wait $DRIVER
