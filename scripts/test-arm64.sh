#!/usr/bin/env bash
# Usage: scripts/test-arm64.sh [PART...]
#
# Cross-builds for aarch64-unknown-linux-gnu with Debian's compiler, without CMake or C++, and tests under qemu. Parts, all
# but lint without arguments:
#
#   lint       clippy (Debian's, for this target) has no warning in the kernels and the plug-in; scripts/check.sh runs it
#   plugin     the plug-in exports two symbols, needs the C library alone, and refuses a host without ggml
#   kernels    the suite of the kernels on CPUs with all features, without i8mm and fhm, without dotprod, and with plain
#              NEON; names the kernels that ran, and fails if one did not that should have
#   qnn        the wrapper of QNN over the library that fails on demand and, with LLADA_NPU_ACCEPT_QNN_LICENSE=1, over
#              Qualcomm's library for aarch64, which has to say that there is no NPU; scripts/test.sh qnn runs it
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

PARTS=(lint plugin kernels qnn)
TRIPLE=aarch64-unknown-linux-gnu
ARM_TARGET=$TARGET/arm64
LIST=$REPO/tests/arm64/kernels.txt

# CPUs of qemu, and the features of theirs that names of kernels end with.
CPUS=("max neon fp16 fhm dotprod i8mm" "neoverse-n1 neon fp16 dotprod" "a64fx neon fp16" "cortex-a72 neon")

passed=0
failed=0

# arm_cargo CPU COMMAND ARGUMENT... : cargo for the target; programs run on CPU.
arm_cargo() {
    local cpu=$1 command=$2
    shift 2
    env RUSTC=/usr/bin/rustc CARGO_TARGET_DIR="$ARM_TARGET" \
        CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc \
        CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -cpu $cpu" \
        cargo "$command" --locked --release --target "$TRIPLE" "$@"
}

# verdict TEXT COMMAND... : runs a check and counts it.
verdict() {
    local text=$1
    shift
    if "$@"; then
        printf 'ok: %s\n' "$text"
        passed=$((passed + 1))
    else
        printf 'FAILED: %s\n' "$text"
        failed=$((failed + 1))
    fi
}

# Without Debian's clippy the warnings of the compiler have to do.
check_lint() {
    if [[ -x /usr/bin/cargo-clippy ]]; then
        RUSTC=/usr/bin/rustc CARGO_TARGET_DIR=$ARM_TARGET/clippy /usr/bin/cargo-clippy clippy --quiet --locked --release \
            --target "$TRIPLE" -p llada-npu-kernels -p llada-npu-ffi -p ggml-llada-npu --all-targets -- -D warnings
    else
        RUSTFLAGS='-D warnings' arm_cargo max check --quiet -p llada-npu-kernels -p llada-npu-ffi -p ggml-llada-npu
    fi
}

run_lint() {
    verdict "no warning for $TRIPLE" check_lint
}

# exports_two PLUGIN
exports_two() {
    local names
    names=$(aarch64-linux-gnu-nm -D --defined-only "$1" | awk '{ print $NF }' | sort | paste -sd ' ')
    [[ $names == "ggml_backend_init ggml_backend_score" ]] || {
        printf 'exported: %s\n' "$names"
        return 1
    }
}

# The C library comes in several files, and with it the unwinder of the compiler.
needs_libc_alone() {
    local needed
    needed=$(aarch64-linux-gnu-readelf -dW "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
    [[ -n $needed ]] && ! grep -Ev '^(libc|libm|libpthread|libdl|libgcc_s)\.so|^ld-linux' <<<"$needed"
}

refuses_bare_host() {
    local host=$ARM_TARGET/host
    aarch64-linux-gnu-gcc -Wall -Werror -o "$host" "$REPO/tests/arm64/host.c" -ldl && qemu-aarch64 -cpu max "$host" "$1"
}

run_plugin() {
    local plugin=$ARM_TARGET/$TRIPLE/release/libggml_llada_npu.so
    verdict "the plug-in builds" arm_cargo max build --quiet -p ggml-llada-npu
    verdict "it exports two symbols" exports_two "$plugin"
    verdict "it needs the C library alone" needs_libc_alone "$plugin"
    verdict "it refuses a host without ggml" refuses_bare_host "$plugin"
}

# expected FEATURE... : the listed kernels that run on a CPU with these features.
expected() {
    local name
    grep -v '^#' "$LIST" | while read -r name; do
        [[ " $* " == *" ${name##*-} "* ]] && printf '%s\n' "$name"
    done | sort
}

# all_ran LOG FEATURE... : whether exactly the kernels ran that a CPU with these features can run, and all that every CPU can.
all_ran() {
    local log_file=$1 ran missing
    shift
    ran=$(sed -n 's/^kernel \(.*\): ran$/\1/p' "$log_file" | sort -u)
    printf 'kernels that ran with %s:\n  %s\n' "$*" "${ran//$'\n'/$'\n'  }"
    missing=$(sed -n 's/^kernel \(.*\): not on this CPU$/\1/p' "$log_file" | grep -v '^aarch64-' | sort -u) || true
    [[ -n $ran && -z $missing ]] || {
        printf 'kernels for every CPU that did not run: %s\n' "$missing"
        return 1
    }
    diff --label "should have run" --label "ran" -u <(expected "$@") <(grep '^aarch64-' <<<"$ran")
}

# suite_passes CPU LOG
suite_passes() {
    local status=0
    arm_cargo "$1" test -p llada-npu-kernels --lib --tests -- --show-output >"$2" 2>&1 || status=$?
    if ((status)); then
        cat "$2"
    else
        grep -E '^(test result: |.*worst error|largest share)' "$2"
    fi
    return "$status"
}

run_kernels() {
    local entry cpu features log_file
    log_file=$(mktemp)
    for entry in "${CPUS[@]}"; do
        read -r cpu features <<<"$entry"
        verdict "the suite passes on $cpu" suite_passes "$cpu" "$log_file"
        # shellcheck disable=SC2086  # features are words
        verdict "every kernel for $cpu ran" all_ran "$log_file" $features
    done
    rm -f "$log_file"
}

# qnn_passes TEST... : on a CPU with all features. The sum of cargo is left out, verdicts are counted.
qnn_passes() {
    local log_file status=0
    log_file=$(mktemp)
    arm_cargo max test --no-fail-fast -p llada-npu-qnn-tests "${@/#/--test=}" -- --show-output >"$log_file" 2>&1 || status=$?
    grep -Ev '^(test result: |running |$)' "$log_file"
    rm -f "$log_file"
    return "$status"
}

run_qnn() {
    verdict "the wrapper of QNN passes over the library that fails on demand" qnn_passes fault fault_numbers
    if [[ ${LLADA_NPU_ACCEPT_QNN_LICENSE-} == 1 ]]; then
        "$REPO/scripts/setup.sh" qnn-arm64 >/dev/null
        export QNN_CASE=without_an_npu_the_library_says_so # see tests/qnn/src/case.rs
    fi
    LLADA_NPU_QNN_DIR=$(qnn_arm64_dir) verdict "Qualcomm's library for aarch64 says that there is no NPU" qnn_passes no_npu
}

main() {
    local part
    case ${1-} in
    -h | --help) usage && return ;;
    esac
    (($#)) || set -- plugin kernels
    cd "$REPO"
    for part in "$@"; do
        [[ " ${PARTS[*]} " == *" $part "* ]] || die "unknown part '$part'; see --help"
    done
    mkdir -p "$ARM_TARGET"
    for part in "$@"; do
        "run_$part"
    done
    printf '%d passed, %d failed\n' "$passed" "$failed"
    ((failed == 0))
}

main "$@"
