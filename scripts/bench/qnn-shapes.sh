#!/usr/bin/env bash
# Usage: scripts/bench.sh qnn-shapes [TYPE...]
#
# Shapes of LLaDA-8B through Qualcomm's emulation of the NPU, for 32 and 128 rows, with weights of each TYPE (q4_0 q4_K): the
# products 4096x4096 (q, k, v, o), 4096x12288 (gate, up), 12288x4096 (down) and 4096x126464 (the output matrix, in slices),
# and a layer: its three graphs in two contexts, as models have them. Each is a process of its own. Takes an hour of one core;
# what was measured by the same program and library is not measured again: an interrupted run goes on where it was. Results
# are in bench-qnn-shapes in the cache. Times are the emulation's and say nothing about an NPU. Needs
# LLADA_NPU_ACCEPT_QNN_LICENSE=1.
#
# RESULT: nmse_max of the products, layer_nmse_max; of a layer, the most of all types and rows: graphs, finalize_s,
# binary_bytes, host_bytes (what its contexts add to the process) and host_peak_bytes (the most memory that a process had).
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

# Elements of a row and rows of a product; embedding and feed-forward part of a layer.
SHAPES=("4096 4096" "4096 12288" "12288 4096" "4096 126464" "layer 4096 12288")

# shape TYPE ROWS SHAPE : prints the line of one measurement.
shape() {
    local file=$RESULTS/$1-$2-${3// /x}
    if [[ ! -f $file ]]; then
        # shellcheck disable=SC2086 # a shape is several words
        "${program[@]}" "$1" "$2" $3 2>"$file.log" | sed -n '/^SHAPE /p' >"$file.part"
        [[ -s $file.part ]] || die "$1, $2 rows, $3: see $file.log"
        mv -f -- "$file.part" "$file"
    fi
    cat -- "$file"
}

main() {
    local types=("$@") type rows shape
    ((${#types[@]})) || types=(q4_0 q4_K)
    "$REPO/scripts/setup.sh" qnn >/dev/null
    with_ccache cargo build --locked --release -p llada-npu-tests --bin qnn-shapes
    cd "$REPO"
    # cargo knows where the libraries of the program are.
    program=(cargo run --quiet --locked --release -p llada-npu-tests --bin qnn-shapes --)
    LLADA_NPU_QNN_DIR=$(qnn_dir "$QNN_VERSION")
    # Beside other work a large graph takes its time.
    export LLADA_NPU_QNN_DIR LLADA_NPU_QNN_TIMEOUT=${LLADA_NPU_QNN_TIMEOUT:-1800}
    RESULTS=$CACHE/bench-qnn-shapes/$(sha256sum "$TARGET/release/qnn-shapes" "$LLADA_NPU_QNN_DIR/libQnnHtp.so" | cut -c1-64 |
        sha256sum | cut -c1-32)
    mkdir -p "$RESULTS"
    mark_used "${RESULTS%/*}"
    for rows in 32 128; do
        for type in "${types[@]}"; do
            for shape in "${SHAPES[@]}"; do
                shape "$type" "$rows" "$shape"
            done
        done
    done | tee "$RESULTS/all"
    awk '
        {
            for (i = 2; i <= NF; i++) {
                split($i, pair, "=")
                value[pair[1]] = pair[2]
            }
            if ($4 ~ /^n_embd=/) {
                most("layer_nmse", "nmse")
                most("graphs", "graphs")
                most("finalize_s", "finalize_s")
                most("binary_bytes", "binary_bytes")
                most("host_bytes", "host_bytes")
            } else {
                most("nmse", "nmse")
            }
            most("host_peak_bytes", "host_peak_bytes")
        }
        END {
            printf "RESULT nmse_max=%.2e layer_nmse_max=%.2e graphs=%d finalize_s=%.3f binary_bytes=%d host_bytes=%d host_peak_bytes=%d\n",
                max["nmse"], max["layer_nmse"], max["graphs"], max["finalize_s"], max["binary_bytes"], max["host_bytes"],
                max["host_peak_bytes"]
        }

        function most(name, key) {
            if (value[key] + 0 > max[name] + 0) max[name] = value[key] + 0
        }
    ' "$RESULTS/all"
}

main "$@"
