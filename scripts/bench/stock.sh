#!/usr/bin/env bash
# Usage: scripts/bench.sh stock [--prompts N] [--threads N] [--model FILE] [--keep FILE.json]
#
# The default mode of `llada-npu` against stock llama-diffusion-cli on the trained model: same machine, prompts, threads and
# answer length. Ends with
#     RESULT speedup=… acc_ours=… acc_reference=… acc_stock=… rows_ratio=…
# speedup: tokens kept before EOS per second of generation, ours over stock's; rows_ratio: rows computed, stock's over ours.
# How stock's settings are chosen and what is timed: scripts/bench/stock.py.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

main() {
    if [[ ${1-} == -h || ${1-} == --help ]]; then
        usage
        return
    fi
    exec python3 "$REPO/scripts/bench/stock.py" \
        --model "$REPO/tests/models/llada-tiny-f16.gguf" \
        --tasks "$REPO/tests/tasks/test.jsonl" \
        --ours "$TARGET/release/llada-npu" \
        --stock-bin "$STOCK_BIN" \
        "$@"
}

main "$@"
