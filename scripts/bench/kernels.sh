#!/usr/bin/env bash
# Usage: scripts/bench.sh kernels [--threads N] [--rows N,…] [--types TYPE,…] [--matrices KxN,…] [--json] [--quick]
#
# Products with Q4_0 and Q8_0 weights (or those of --types: q4_0, q8_0, q4_k, q6_k) and attention on the llada-npu device
# against the CPU backend of the stock build (this machine's instruction sets, weights repacked): same process, operations,
# data and threads, medians of interleaved pairs. Ends with
#     RESULT gemm_ratio_geomean=… gemm_ratio_min=… peak_share=… gemv_bandwidth_share=… attn_ratio=…
# gemm_ratio_geomean: ggml's time over ours, geometric mean over 32 to 128 rows; gemm_ratio_min: the smallest of all products;
# peak_share: smallest share of this machine's measured int8 peak over 32 to 128 rows; gemv_bandwidth_share: with one row,
# smallest share of what the same threads read from 512 MiB in a plain loop between the runs; attn_ratio: the smaller one of 32 rows over 1024 and over 4096 K/V.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

main() {
    if [[ ${1-} == -h || ${1-} == --help ]]; then
        usage
        return
    fi
    exec "$TARGET/release/llada-npu" bench kernels --ggml "$STOCK_BIN" "$@"
}

main "$@"
