#!/usr/bin/env bash
# Usage: scripts/test-backend-ops.sh [OP...]
#
# Runs ggml's own test of operations on the plug-in's device, against the CPU: all of them (an hour of one core), or those
# named, for example MUL_MAT. The last line counts the nodes that kernels of ours computed, those that were delegated to
# the host's CPU backend, the cases that the device refuses, and the failures. The cases' lines go to stderr.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

case ${1-} in
-h | --help) usage && exit ;;
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
# The plug-in tells what it computed when its instance is freed.
GGML_BACKEND_PATH=$PLUGIN LLADA_NPU_LOG=debug "$STOCK_BIN/test-backend-ops" test -b llada-npu "${filter[@]}" 2>&1 |
    tee "$out" >&2 || status=$?

count() {
    grep -acE "$1" "$out" || true
}
# field NAME : sum of a number in the plug-in's closing lines.
field() {
    sed -n "s/.*llada-npu: nodes computed:.* $1 \([0-9]*\).*/\1/p" "$out" | awk '{ n += $1 } END { print n + 0 }'
}
failed=$(count 'FAIL')
((status == 0 || failed > 0)) || failed=1
echo "RESULT native=$(field native) delegated=$(field delegated) refused=$(count 'not supported \[llada-npu') failed=$failed"
((failed == 0))
