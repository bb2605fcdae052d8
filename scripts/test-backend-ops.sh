#!/usr/bin/env bash
# Usage: scripts/test-backend-ops.sh [--record] [OP...]
#
# Runs ggml's own test of operations on the plug-in's device, against the CPU: all of them (an hour of one core), or those
# named, for example MUL_MAT. Prints, by operation, the cases whose nodes were all computed by kernels of ours (native),
# those with nodes that the host's CPU backend computed (delegated), those that the device refuses and those that failed;
# the last line is their sum. The cases' own lines go to stderr. --record puts the numbers into the README's table.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

record=()
case ${1-} in
-h | --help) usage && exit ;;
--record) record=(--record) && shift ;;
esac
[[ -x $STOCK_BIN/test-backend-ops ]] || die "no $STOCK_BIN/test-backend-ops: scripts/setup.sh stock"
[[ -f $PLUGIN ]] || die "no $PLUGIN: scripts/setup.sh plugin"

filter=()
if (($#)); then
    filter=(-o "$(IFS=,; echo "$*")")
fi
out=$(mktemp)
trap 'rm -f "$out"' EXIT
status=0
# The plug-in tells node by node who computed it; without buffers its lines stand before that of their case.
GGML_BACKEND_PATH=$PLUGIN LLADA_NPU_LOG=trace stdbuf -o0 "$STOCK_BIN/test-backend-ops" test -b llada-npu "${filter[@]}" 2>&1 |
    tee "$out" | grep -av 'node computed:' >&2 || status=$?
python3 "$REPO/scripts/test-backend-ops.py" "${record[@]}" "$out" || status=$?
exit "$status"
