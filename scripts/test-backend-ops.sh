#!/usr/bin/env bash
# Usage: scripts/test-backend-ops.sh [--record] [OP...]
#
# Runs ggml's own test of operations on the plug-in's device, against the CPU: all of them (hours of one core), or those
# named, for example MUL_MAT, one after the other. Prints, by operation, the cases whose nodes were all computed by kernels of
# ours (native), those with nodes that the host's CPU backend computed (delegated), those that the device refuses and those
# that failed; the last line is their sum. The cases' own lines go to stderr. --record puts the numbers into the README's
# table. An operation that ran to its end is not run again by the same plug-in and the same test: what was interrupted goes on
# where it was. Their logs are in backend-ops in the cache.
#
# Variables that say how the device computes (LLADA_NPU_ACCEL, LLADA_NPU_KERNEL, LLADA_NPU_QNN_DIR, …) are those of the
# environment; runs with others have logs of their own. With Qualcomm's libraries, after scripts/setup.sh qnn:
#   LLADA_NPU_ACCEL=qnn LLADA_NPU_QNN_DIR=DIRECTORY scripts/test-backend-ops.sh MUL_MAT
# The sum then says how many of the native cases had a node that the library computed (accelerator).
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

record=()
case ${1-} in
-h | --help) usage && exit ;;
--record) record=(--record) && shift ;;
esac
TOOL=$STOCK_BIN/test-backend-ops
[[ -x $TOOL ]] || die "no $TOOL: scripts/setup.sh stock"
[[ -f $PLUGIN ]] || die "no $PLUGIN: scripts/setup.sh plugin"
export GGML_BACKEND_PATH=$PLUGIN
# settings : the variables that say how the device computes; nothing without any.
settings() {
    env | LC_ALL=C sort | grep '^LLADA_NPU_' |
        grep -vE '^LLADA_NPU_(LOG|CACHE|CACHE_MAX|FUZZ_SECONDS|ACCEPT_QNN_LICENSE)=' || true
}
LOGS=$CACHE/backend-ops/$({ cat "$PLUGIN" "$TOOL" "$STOCK_BIN/libggml-cpu.so" && settings; } | sha256sum | cut -c1-32)
mkdir -p "$LOGS"
mark_used "${LOGS%/*}"

# all_operations : names what the test may have cases of, those with the fewest first. It lists single operations itself;
# names of fused ones are words of its source, or a unary operation and "_MUL".
all_operations() {
    "$TOOL" support -b llada-npu --output csv 2>/dev/null |
        sed -n 's/^"llada-npu","\([A-Z0-9_]*\)",.*/\1/p' | sort | uniq -c | sort -n | sed 's/^ *[0-9]* //' >"$LOGS/single"
    {
        grep -o '"[A-Z][A-Z0-9]*_[A-Z0-9_]*"' "$STOCK/tests/test-backend-ops.cpp" | tr -d '"'
        echo SOFTCAP
        sed 's/$/_MUL/' "$LOGS/single"
    } | sort -u | grep -vxFf "$LOGS/single"
    cat "$LOGS/single"
}

# models_cases OP : a regular expression for the cases like those of the models' graphs, which run first; nothing where
# all are run at once. scripts/test-backend-ops.py counts them by themselves.
models_cases() {
    case $1 in
    MUL_MAT | MUL_MAT_ID | MUL_MAT_ID_FUSION) echo '^type_a=(f32|f16|q4_0|q8_0|q4_K|q6_K),' ;;
    FLASH_ATTN_EXT) echo '^(hsk=64,hsv=64|hsk=128,hsv=128),.*mask=1,sinks=0,.*type_K=f16,type_V=f16,' ;;
    esac
}

# run_cases NAME OP ARGUMENT... : keeps the log of the cases of an operation. The plug-in tells node by node who computed it;
# without buffers its lines stand before that of their case. A case that fails is a line of the log, so the tool's status is
# not needed.
run_cases() {
    local log_file=$LOGS/$1.log operation=$2
    log "$1"
    logs+=("$log_file")
    [[ -f $log_file ]] && return
    shift 2
    LLADA_NPU_LOG=trace stdbuf -o0 "$TOOL" test -b llada-npu -o "$operation" "$@" 2>&1 |
        tee "$log_file.part" | { grep -av 'node computed:' >&2 || true; } || true
    grep -q '^[0-9]*/[0-9]* backends passed' "$log_file.part" || die "$operation: the test did not end"
    mv -f "$log_file.part" "$log_file"
}

(($#)) || mapfile -t all < <(all_operations)
(($#)) || set -- "${all[@]}"
logs=()
others=()
for operation in "$@"; do
    cases=$(models_cases "$operation")
    if [[ $cases ]]; then
        run_cases "$operation.models" "$operation" -p "$cases"
        others+=("$operation")
    else
        run_cases "$operation" "$operation"
    fi
done
for operation in "${others[@]}"; do
    run_cases "$operation.others" "$operation" -p "^(?!$(models_cases "$operation"))"
done
python3 "$REPO/scripts/test-backend-ops.py" "${record[@]}" "${logs[@]}"
