#!/usr/bin/env bash
# Usage: scripts/bench.sh qnn-shapes [TYPE...]
#
# Products of the shapes of LLaDA-8B through Qualcomm's emulation of the NPU, for 32 and 128 rows, with weights of each TYPE
# (q4_0 q4_K): 4096x4096 (q, k, v, o), 4096x12288 (gate, up), 12288x4096 (down), and the output matrix 4096x126464 in slices
# (32 rows). Each is a process of its own. Takes a quarter of an hour. Times are the emulation's and say nothing about an NPU.
# Needs LLADA_NPU_ACCEPT_QNN_LICENSE=1.
#
# RESULT: nmse_max; per layer (four products of the first shape, two of the second, one of the third), of the last type:
# graphs, finalize_s and binary_bytes; host_peak_bytes, the most memory that a process had.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

# How often a shape occurs in a layer, elements of a row, rows.
SHAPES=("4 4096 4096" "2 4096 12288" "1 12288 4096")
HEAD=(4096 126464)

main() {
    local types=("$@") type rows shape n_in_layer k n
    ((${#types[@]})) || types=(q4_0 q4_K)
    "$REPO/scripts/setup.sh" qnn >/dev/null
    # cargo knows where the libraries of the program are.
    local program=(cargo run --quiet --locked --release -p llada-npu-tests --bin qnn-shapes --)
    with_ccache cargo build --locked --release -p llada-npu-tests --bin qnn-shapes
    cd "$REPO"
    out=$(mktemp)
    trap 'rm -f "$out"' EXIT
    LLADA_NPU_QNN_DIR=$(qnn_dir "$QNN_VERSION")
    export LLADA_NPU_QNN_DIR
    for type in "${types[@]}"; do
        for rows in 32 128; do
            for shape in "${SHAPES[@]}"; do
                read -r n_in_layer k n <<<"$shape"
                "${program[@]}" "$type" "$rows" "$k" "$n" 2>/dev/null |
                    sed -n "s/^SHAPE /SHAPE per_layer=$n_in_layer /p" | tee -a "$out"
            done
        done
        "${program[@]}" "$type" 32 "${HEAD[@]}" 2>/dev/null | sed -n 's/^SHAPE /SHAPE per_layer=0 /p' | tee -a "$out"
    done
    awk '
        {
            for (i = 2; i <= NF; i++) {
                split($i, pair, "=")
                value[pair[1]] = pair[2]
            }
            if (value["nmse"] + 0 > nmse) nmse = value["nmse"] + 0
            if (value["host_peak_bytes"] + 0 > peak) peak = value["host_peak_bytes"] + 0
            if (value["type"] != type) {
                type = value["type"]
                graphs = finalize = binary = 0
            }
            if (value["rows"] == 32) {
                graphs += value["per_layer"] * value["graphs"]
                finalize += value["per_layer"] * value["finalize_s"]
                binary += value["per_layer"] * value["binary_bytes"]
            }
            lines++
        }
        END {
            if (lines != 7 * '"${#types[@]}"') exit 1 # one has failed
            printf "RESULT nmse_max=%.2e graphs=%d finalize_s=%.3f binary_bytes=%d host_peak_bytes=%d\n", nmse, graphs, finalize, binary, peak
        }
    ' "$out"
}

main "$@"
