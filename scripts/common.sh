# shellcheck shell=bash
# Usage: source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
#
# Paths, pinned versions and functions that the scripts share. Sourcing it has no side effects.

REPO=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=scripts/versions.env
source "$REPO/scripts/versions.env"

CACHE=${LLADA_NPU_CACHE:-$HOME/.cache/llada-npu}
LLAMA_CPP=$CACHE/llama.cpp
STOCK=$LLAMA_CPP/stock           # pristine source
STOCK_BIN=$STOCK/build/bin       # its tools
VALGRIND_BIN=$STOCK/build-noavx512/bin # the same tools with a libggml-cpu that valgrind can run
PATCHED=$LLAMA_CPP/patched       # the source with ggml-patches/ applied
PATCHED_BIN=$PATCHED/build/bin   # its llama-diffusion-cli, with the plug-in beside it
QNN=$CACHE/qnn                   # Qualcomm's libraries, a directory per package and version
PYTHON=$CACHE/venv/bin/python    # with the packages of tests/reference (scripts/python-env.sh)
TARGET=${CARGO_TARGET_DIR:-$REPO/target}
PLUGIN=$TARGET/release/libggml-llada-npu.so
# shellcheck disable=SC2034  # used by the scripts that source this file
readonly REPO CACHE LLAMA_CPP STOCK STOCK_BIN VALGRIND_BIN PATCHED PATCHED_BIN QNN PYTHON TARGET PLUGIN

# Prints a line about progress.
log() {
    printf '%s: %s\n' "${0##*/}" "$*" >&2
}

# Prints a line and ends the script.
die() {
    log "$*"
    exit 1
}

# Prints the usage lines at the top of a script: every comment line after "#!" up to the first line that is none.
usage() {
    sed -n '2,/^[^#]/{/^#/s/^# \{0,1\}//p}' "$0"
}

# Names the instruction sets of this machine as ggml's CMake options (x86 only; other machines need none).
instruction_sets() {
    [[ $(uname -m) == x86_64 ]] || return 0
    local cpu
    cpu=" $(sed -n '/^flags/{s/^[^:]*: *//p;q}' /proc/cpuinfo) "
    local option flags flag state
    while read -r option flags; do
        state=ON
        for flag in $flags; do
            [[ $cpu == *" $flag "* ]] || state=OFF
        done
        echo "-D$option=$state"
    done <<'LIST'
GGML_SSE42 sse4_2
GGML_AVX avx
GGML_AVX2 avx2
GGML_FMA fma
GGML_F16C f16c
GGML_BMI2 bmi2
GGML_AVX512 avx512f avx512cd avx512vl avx512dq avx512bw
GGML_AVX512_VBMI avx512f avx512vbmi
GGML_AVX512_VNNI avx512f avx512_vnni
GGML_AVX512_BF16 avx512f avx512_bf16
LIST
}

# Runs a command with compiler caching; objects of the trees under $LLAMA_CPP are shared.
with_ccache() {
    mkdir -p "$CACHE/ccache"
    mark_used "$CACHE/ccache"
    CCACHE_DIR=$CACHE/ccache CCACHE_NOHASHDIR=1 "$@"
}

# mark_used ENTRY : the time of an entry of the cache is that of its last use; scripts/setup.sh deletes the oldest first.
mark_used() {
    touch -c -- "$1"
}

# Copies a file so that a reader never sees half of it.
install_file() {
    cp -- "$1" "$2.tmp.$$"
    mv -f -- "$2.tmp.$$" "$2"
}

# qnn_dir [VERSION] : where the x86-64 libraries of a version are, once scripts/setup.sh qnn has run.
qnn_dir() {
    printf '%s\n' "$QNN/$QNN_PACKAGE-${1:-$QNN_VERSION}/${QNN_PACKAGE//-/_}"
}

# qnn_arm64_dir : the same for aarch64.
qnn_arm64_dir() {
    printf '%s\n' "$QNN/$QNN_ARM64_PACKAGE-$QNN_ARM64_VERSION/$QNN_ARM64_PACKAGE/.libs"
}

# qnn_versions : every version of QNN for x86-64 that is tested.
qnn_versions() {
    awk 'NF == 2 { print $1 }' <<<"$QNN_WHEELS"
}
