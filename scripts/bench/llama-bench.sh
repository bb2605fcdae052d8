#!/usr/bin/env bash
# Usage: scripts/bench.sh llama-bench [--threads N] [--rounds N]
#
# Stock llama-bench on a model of 1B shape with random Q4_0 weights: the device against ggml's CPU backend with its own
# repacking, the same threads, in turns; the first turn of each is not counted. 128 tokens of prompt, 128 generated. Ends with
#     RESULT pp_ratio=… tg_ratio=… pp=… tg=…
# The ratios are ours over the CPU's, medians of the rounds; pp and tg are our tokens per second.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

MODEL=$CACHE/models/llama-1b-q4_0-1.gguf

# Makes the model once; its weights are random.
make_model() {
    [[ -f $MODEL ]] && return
    log "making $MODEL"
    mkdir -p "${MODEL%/*}"
    "$REPO/scripts/python-env.sh" >/dev/null
    PYTHONPATH=$REPO/tests "$PYTHON" -m reference.cli make --arch llama --shape 1b --type Q4_0 --quick --gain 1 \
        --out "$MODEL.tmp.$$"
    mv -f -- "$MODEL.tmp.$$" "$MODEL"
}

# run ours|cpu : prints the tokens per second of prompt and generation.
run() {
    local common=(-m "$MODEL" -t "$threads" -p 128 -n 128 -r 1 -fa 1 -o csv)
    if [[ $1 == ours ]]; then
        GGML_BACKEND_PATH=$PLUGIN "$STOCK_BIN/llama-bench" "${common[@]}" --device llada-npu -ngl 99
    else
        env -u GGML_BACKEND_PATH "$STOCK_BIN/llama-bench" "${common[@]}" --device none -ngl 0
    fi 2>/dev/null | python3 -c '
import csv, sys
rows = list(csv.DictReader(sys.stdin))
print(*(float(row["avg_ts"]) for row in sorted(rows, key=lambda row: int(row["n_gen"]))))'
}

main() {
    threads=$(nproc)
    local rounds=3 round pp tg
    while (($#)); do
        case $1 in
        -h | --help) usage && return ;;
        --threads) threads=$2 && shift 2 ;;
        --rounds) rounds=$2 && shift 2 ;;
        *) die "unknown argument '$1'; see --help" ;;
        esac
    done
    [[ -x $STOCK_BIN/llama-bench ]] || die "no $STOCK_BIN/llama-bench: scripts/setup.sh stock"
    [[ -f $PLUGIN ]] || die "no $PLUGIN: scripts/setup.sh plugin"
    make_model
    mark_used "$MODEL"
    results=$(mktemp)
    trap 'rm -f "$results"' EXIT
    for ((round = 0; round <= rounds; round++)); do
        for side in ours cpu; do
            read -r pp tg < <(run "$side")
            printf '%-5s round %d: prompt %8.2f, generation %7.2f tokens/s\n' "$side" "$round" "$pp" "$tg"
            ((round == 0)) || printf '%s %s %s\n' "$side" "$pp" "$tg" >>"$results"
        done
    done
    python3 - "$results" <<'PY'
import statistics, sys

sides = {"ours": [], "cpu": []}
for line in open(sys.argv[1], encoding="utf-8"):
    side, *numbers = line.split()
    sides[side].append([float(number) for number in numbers])
(pp, tg), (cpu_pp, cpu_tg) = ([statistics.median(column) for column in zip(*sides[side])] for side in ("ours", "cpu"))
print(f"RESULT pp_ratio={pp / cpu_pp:.3f} tg_ratio={tg / cpu_tg:.3f} pp={pp:.1f} tg={tg:.1f}")
PY
}

main "$@"
