#!/usr/bin/env bash
# Usage: scripts/test.sh [STAGE...]
#
# Sets up what is missing and runs every test. Each stage prints how long it took; the last line is the sum of all runners.
# Stages, in this order: setup check light asan arm64 reference host tools qnn. With arguments only these run, and there is
# one more: qnn-matrix, which is qnn with every version of Qualcomm's libraries.
#
# Tests with Qualcomm's libraries run with LLADA_NPU_ACCEPT_QNN_LICENSE=1 (see scripts/setup.sh), and are skipped by name without.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

STAGES=(setup check light asan arm64 reference host tools qnn)
EXTRA_STAGES=(qnn-matrix)

passed=0
failed=0
skipped=0
summary=()

run_setup() {
    local parts=(packages checkers arm64 python stock patched plugin cli valgrind rpc)
    [[ ${LLADA_NPU_ACCEPT_QNN_LICENSE-} != 1 ]] || parts+=(qnn qnn-arm64)
    "$REPO/scripts/setup.sh" "${parts[@]}"
}

run_check() {
    "$REPO/scripts/check.sh"
}

# The fuzz targets of model files run for as long as said here, beside the other tests.
run_light() {
    local status=0
    LLADA_NPU_FUZZ_SECONDS=60 cargo test --locked --release --no-fail-fast -p llada-npu-kernels -p llada-npu-ffi \
        -p ggml-llada-npu || status=1
    cargo test --locked --release --no-fail-fast -p llada-npu-qnn-fault -p llada-npu-qnn-tests --lib --test attention \
        --test contexts --test fault --test fault_numbers --test instances --test low_rank --test memory --test session || status=1
    return "$status"
}

run_arm64() {
    "$REPO/scripts/test-arm64.sh"
}

run_asan() {
    "$REPO/scripts/asan.sh"
}

run_reference() {
    "$PYTHON" -m unittest discover -s tests/reference -t tests
}

run_host() {
    with_ccache cargo test --locked --release --no-fail-fast -p llada-npu -p llada-npu-tests -- --show-output
}

run_tools() {
    "$PYTHON" -m unittest discover -s tests/tools -t tests
}

# qnn_tests [VERSION] : tests with a version of Qualcomm's libraries, each test in a process of its own.
qnn_tests() {
    if [[ ${LLADA_NPU_ACCEPT_QNN_LICENSE-} == 1 ]]; then
        "$REPO/scripts/setup.sh" "qnn=${1:-$QNN_VERSION}" || return
    fi
    LLADA_NPU_QNN_DIR=$(qnn_dir "$@") cargo test --locked --release --no-fail-fast -p llada-npu-qnn-tests \
        --test htp --test htp_attention --test htp_numbers --test saver -- --show-output
}

run_qnn() {
    local status=0
    qnn_tests || status=1
    # The tests start the program, which their own build leaves as it is.
    with_ccache cargo build --locked --release -p llada-npu || status=1
    LLADA_NPU_QNN_DIR=$(qnn_dir "$QNN_VERSION") with_ccache cargo test --locked --release --no-fail-fast \
        -p llada-npu -p llada-npu-tests --test qnn_emulation --test qnn_lora -- --show-output || status=1
    "$REPO/scripts/test-arm64.sh" qnn || status=1
    return "$status"
}

run_qnn-matrix() {
    local version status=0
    for version in $(qnn_versions); do
        printf -- '-- QNN %s\n' "$version"
        qnn_tests "$version" || status=1
    done
    return "$status"
}

# count LOG : prints "PASSED FAILED SKIPPED", the sum of the closing lines of cargo test, unittest and our scripts.
count() {
    awk '
        /^test result: / {
            for (i = 1; i < NF; i++) {
                if ($(i + 1) ~ /^passed/) passed += $i
                if ($(i + 1) ~ /^failed/) failed += $i
                if ($(i + 1) ~ /^ignored/) skipped += $i
            }
        }
        /^SKIPPED: / { passed--; skipped++ } # the test said that it could not run, and why
        /^Ran [0-9]+ tests? in / { ran = $2 }
        /^(OK|FAILED)( \(.*\))?$/ {
            bad = value("failures") + value("errors") + value("unexpected successes")
            passed += ran - bad - value("skipped")
            failed += bad
            skipped += value("skipped")
            ran = 0
        }
        /^[0-9]+ passed, [0-9]+ failed(, [0-9]+ skipped)?$/ { passed += $1; failed += $3; skipped += $5 }
        END { print passed + 0, failed + 0, skipped + 0 }

        function value(name) {
            return match($0, name "=[0-9]+") ? substr($0, RSTART + length(name) + 1, RLENGTH - length(name) - 1) + 0 : 0
        }
    ' "$1"
}

# stage NAME : runs one stage and adds up its results; a stage that fails without a failed test counts as one.
stage() {
    local name=$1 start=$SECONDS status=0 stage_log seconds p f s
    stage_log=$(mktemp "$scratch/XXXXXX")
    printf '\n== %s\n' "$name"
    (cd "$REPO" && "run_$name") 2>&1 | tee "$stage_log" || status=$?
    read -r p f s < <(count "$stage_log")
    ((status == 0 || f > 0)) || f=1
    passed=$((passed + p))
    failed=$((failed + f))
    skipped=$((skipped + s))
    seconds=$((SECONDS - start))
    summary+=("$(printf '%-10s %3d:%02d min  %d passed, %d failed, %d skipped.' "$name" $((seconds / 60)) $((seconds % 60)) "$p" "$f" "$s")")
    ((f == 0))
}

main() {
    local name
    case ${1-} in
    -h | --help) usage && return ;;
    esac
    (($#)) || set -- "${STAGES[@]}"
    for name in "$@"; do
        [[ " ${STAGES[*]} ${EXTRA_STAGES[*]} " == *" $name "* ]] || die "unknown stage '$name'; see --help"
    done
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT

    for name in "$@"; do
        # nothing works without its parts
        stage "$name" || [[ $name != setup ]] || break
    done
    printf '\n'
    printf '%s\n' "${summary[@]}"
    printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
    ((failed == 0))
}

main "$@"
