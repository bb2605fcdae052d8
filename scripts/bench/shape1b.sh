#!/usr/bin/env bash
# Usage: scripts/bench.sh shape1b [--threads N] [--stock-steps N] [--block-length N] [--keep FILE.json]
#
# Stock llama-diffusion-cli against `llada-npu` on a model of 1B shape with random Q4_0 weights, 64 tokens of prompt, 128 new
# ones, both sides committing two tokens at every step. Ends with
#     RESULT rows_ratio=… rows_ratio_refresh=… logits_rows_ratio=… wall_ratio=… wall_ratio_ours=…
# All are stock's over ours. rows_ratio: rows computed, without refresh; rows_ratio_refresh: with one at every block;
# wall_ratio: time of generation without refresh, both sides with our kernels (stock runs on our device); wall_ratio_ours:
# the same, stock with ggml's CPU backend and ours with our kernels. What is run: scripts/bench/shape1b.py.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

MODEL=$CACHE/models/llada-1b-q4_0-1.gguf

# Makes the model once; it is no trained one, so its answers mean nothing. A low gain keeps every confidence far below 1.
make_model() {
    [[ -f $MODEL ]] && return
    log "making $MODEL"
    mkdir -p "${MODEL%/*}"
    "$REPO/scripts/python-env.sh" >/dev/null
    PYTHONPATH=$REPO/tests "$PYTHON" -m reference.cli make --arch llada --shape 1b --type Q4_0 --quick --gain 1 \
        --out "$MODEL.tmp.$$"
    mv -f -- "$MODEL.tmp.$$" "$MODEL"
}

main() {
    if [[ ${1-} == -h || ${1-} == --help ]]; then
        usage
        return
    fi
    make_model
    mark_used "$MODEL"
    exec python3 "$REPO/scripts/bench/shape1b.py" \
        --model "$MODEL" \
        --ours "$TARGET/release/llada-npu" \
        --plugin "$PLUGIN" \
        --stock-bin "$STOCK_BIN" \
        "$@"
}

main "$@"
