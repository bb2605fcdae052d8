#!/usr/bin/env bash
# Usage: scripts/bench.sh qnn [N_PROMPTS [WEIGHTS...]]
#
# Answers N_PROMPTS (40) prompts of tests/tasks/validation.jsonl with the trained model in F16, Q8_0 and Q4_0 (or the
# WEIGHTS named: f16 q8_0 q4_0), with the CPU's kernels and through Qualcomm's emulation of the NPU. Compares texts, and logits
# with the f32 reference of the dequantised weights. Texts are those of the default decoding, where one may differ if the
# first decision that does was a near tie (tests/src/near_tie.rs), and those of one position at a time from left to right, where
# nothing but tokens is decided and nothing but a near tie of tokens is allowed. Any other text that differs is a failure.
# Times are the emulation's and say nothing about an NPU. Needs LLADA_NPU_ACCEPT_QNN_LICENSE=1.
#
# RESULT: same_text (share of texts that are equal), near_ties and wrong_texts (numbers of the others), the same with token_ for
# the second decoding, token_host_right and token_mean_length (share of the CPU's texts there that are the task's answer, and
# their tokens), nmse_max, graphs (built at the first start), finalize_s, second_start_graphs_built.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

main() {
    local n_prompts=${1:-40} weights=("${@:2}")
    ((${#weights[@]})) || weights=(f16 q8_0 q4_0)
    "$REPO/scripts/setup.sh" qnn python >/dev/null
    # cargo knows where the libraries of the program are.
    local program="cargo run --quiet --locked --release -p llada-npu-tests --bin qnn-eval --"
    with_ccache cargo build --locked --release -p llada-npu-tests --bin qnn-eval
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    cd "$REPO"
    # Beside other work a graph takes its time.
    LLADA_NPU_QNN_TIMEOUT=${LLADA_NPU_QNN_TIMEOUT:-1800} PYTHONPATH=$REPO/tests LLADA_NPU_QNN_DIR=$(qnn_dir "$QNN_VERSION") \
        "$PYTHON" "$REPO/scripts/bench/qnn.py" "$program" "$REPO/tests" "$scratch" "$n_prompts" "${weights[@]}"
}

main "$@"
