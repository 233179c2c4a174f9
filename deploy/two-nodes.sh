#!/bin/bash
# A Ray cluster of two machines by hand. On both: the same Python and the same `pip install 'starling-rl[ray]'`.
#
#   first machine:    bash two-nodes.sh head
#   second machine:   (copy ~/.ray/auth_token there, mode 0600)  bash two-nodes.sh join FIRST:6379
#   first machine:    starling cluster check impala-pong ray.address=auto actors=8
#                     starling train impala-pong runtime=ray ray.address=auto actors=8
#   both, at the end: ray stop
set -euo pipefail

PORT=${PORT:-6379}
TOKEN=${RAY_AUTH_TOKEN_PATH:-$HOME/.ray/auth_token}
export RAY_AUTH_MODE=token
# A node that no longer answers is given up within about ten seconds.
export RAY_health_check_period_ms=1000 RAY_health_check_timeout_ms=5000 RAY_health_check_failure_threshold=3
# Its workers are what the machine is for.
export RAY_worker_niceness=0

make_token() {
    if [ ! -e "$TOKEN" ]; then
        mkdir -p -m 700 "$(dirname "$TOKEN")"
        (umask 077 && head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' > "$TOKEN")
    fi
    chmod 600 "$TOKEN"
}

case "${1:-}" in
head)
    make_token
    ray start --head --port="$PORT" --include-dashboard=false --disable-usage-stats ${ADDRESS:+--node-ip-address="$ADDRESS"}
    ;;
join)
    [ -e "$TOKEN" ] || { echo "copy the first machine's $TOKEN here first" >&2; exit 2; }
    chmod 600 "$TOKEN"
    ray start --address="$2" --disable-usage-stats ${ADDRESS:+--node-ip-address="$ADDRESS"}
    ;;
*)
    sed -n '2,9p' "$0"
    exit 2
    ;;
esac
