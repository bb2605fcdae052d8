#!/usr/bin/env bash
# Usage: scripts/bench.sh modes [--prompts N] [--threads N] [--model FILE] [--keep FILE.json]
#
# The decoding modes of `llada-npu` against each other on the test split, in one run. Ends with
#     RESULT acc_reference=… acc_cached=… acc_mbsd=… acc_full=… full_minus_reference_low95=… full_minus_cached_low95=…
#            npu_time_ratio=… cpu_time_ratio=… tokens_per_step=…
# on one line. low95: lower 95 % bounds of paired differences of accuracy; npu_time_ratio and cpu_time_ratio: time of `full`
# over that of `cached`, by the built-in `npu` cost table and by the clock; tokens_per_step: of `full`.
# How it is measured: scripts/bench/modes.py. About a quarter of an hour on two cores, nearly all of it in `reference`.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

main() {
    if [[ ${1-} == -h || ${1-} == --help ]]; then
        usage
        return
    fi
    exec python3 "$REPO/scripts/bench/modes.py" \
        --model "$REPO/tests/models/llada-tiny-q8_0.gguf" \
        --tasks "$REPO/tests/tasks/test.jsonl" \
        --ours "$TARGET/release/llada-npu" \
        "$@"
}

main "$@"
