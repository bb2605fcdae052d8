#!/usr/bin/env bash
# Usage: scripts/setup.sh [PART...]
#
# Installs what is missing, then fetches and builds llama.cpp and this project. What is up to date is left alone, so a
# second run does nothing. Without arguments all parts but checkers, arm64, qnn, valgrind and rpc are made:
#
#   packages   Debian packages the builds need (as root; otherwise lists the missing ones and fails)
#   checkers   Debian packages that only the tests need, likewise
#   arm64      Debian's cross compilers for aarch64 and an emulator, likewise
#   python     a Python environment with the packages of the independent references
#   stock      the pinned llama.cpp, pristine, with its tools
#   patched    the same tree with ggml-patches/ applied: llama-diffusion-cli --backend
#   plugin     libggml-llada-npu.so, copied beside the patched tools
#   cli        the llada-npu command line
#   qnn        Qualcomm's QNN for x86-64, of the default version; prints the directory. qnn=VERSION: another version
#   qnn-matrix the same, of all versions that are tested
#   qnn-arm64  the same, for aarch64
#   valgrind   stock's tools with a libggml-cpu without AVX-512, which valgrind does not know
#   rpc        stock's ggml-rpc-server, and the backend of its clients
#
# QNN is Qualcomm's, under the Qualcomm AI Stack License; the parts qnn ask for LLADA_NPU_ACCEPT_QNN_LICENSE=1, by which you
# accept it.
#
# The cache is ${LLADA_NPU_CACHE:-$HOME/.cache/llada-npu}; it is safe to delete. Where it holds more than
# LLADA_NPU_CACHE_MAX GiB (20), what was used longest ago is deleted at the end.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

PACKAGES=(build-essential ccache clang cmake libclang-dev ninja-build patch)
CHECKERS=(shellcheck valgrind)
# libc6 of arm64 is what the tests run with: under qemu, the libc6-arm64-cross of Debian 12 spins when a thread starts.
# libstdc++6 is Qualcomm's library's.
ARM64=(gcc-aarch64-linux-gnu libc6-dev-arm64-cross libc6:arm64 libstd-rust-web-dev:arm64 libstdc++6:arm64 qemu-user rust-web-clippy
    rustc-web)

STOCK_TARGETS=(llama-diffusion-cli llama-bench llama-perplexity llama-completion llama-tokenize llama-quantize
    llama-gguf-split test-backend-ops ggml-cpu)
PATCHED_TARGETS=(llama-diffusion-cli llama-completion test-arg-parser ggml-cpu)
VALGRIND_TOOLS=(llama-diffusion-cli llama-completion)
RPC_TARGETS=(ggml-rpc-server ggml-rpc ggml-cpu)

# What is used of a wheel, and the licences, which stay with it. Only 2.3.0 has a libQnnCpu.so.
QNN_FILES=('*/libQnnHtp.so' '*/libQnnSaver.so' '*/libQnnCpu.so' '*.libs/*' '*/Qualcomm_LICENSE.pdf' '*/LICENSE')

CACHE_MAX=${LLADA_NPU_CACHE_MAX:-20} # GiB

CMAKE_FLAGS=(-G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON -DGGML_BACKEND_DL=ON -DGGML_NATIVE=OFF
    -DGGML_OPENMP=OFF -DGGML_CCACHE=ON -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_TESTS=ON
    -DLLAMA_BUILD_EXAMPLES=ON -DLLAMA_BUILD_TOOLS=ON)

# hash_of TEXT... : a short name for the inputs of a build.
hash_of() {
    printf '%s\n' "$@" | sha256sum | cut -c1-32
}

# is_current STAMP HASH : whether STAMP was written for these inputs.
is_current() {
    [[ -f $1 && $(<"$1") == "$2" ]]
}

write_stamp() {
    printf '%s\n' "$2" >"$1.tmp.$$"
    mv -f "$1.tmp.$$" "$1"
}

# install_packages PACKAGE... : installs those that are missing.
install_packages() {
    command -v dpkg-query >/dev/null || {
        log "not a Debian system: taking for granted what $* hold"
        return
    }
    local package missing=()
    for package in "$@"; do
        [[ $(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null) == installed ]] || missing+=("$package")
    done
    ((${#missing[@]})) || return 0
    ((EUID == 0)) || die "missing packages; as root: apt-get install ${missing[*]}"
    log "installing ${missing[*]}"
    apt-get update -qq >&2
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >&2
}

make_packages() {
    command -v cargo >/dev/null || die "cargo is missing: Rust $(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$REPO/Cargo.toml") or later is needed"
    local needed=("${PACKAGES[@]}")
    python3 -c 'import ensurepip' 2>/dev/null || needed+=(python3 python3-venv)
    install_packages "${needed[@]}"
}

make_checkers() {
    install_packages "${CHECKERS[@]}"
}

make_arm64() {
    if command -v dpkg >/dev/null && ! dpkg --print-foreign-architectures | grep -qx arm64; then
        ((EUID == 0)) || die "packages of another architecture are needed; as root: dpkg --add-architecture arm64"
        dpkg --add-architecture arm64
    fi
    install_packages "${ARM64[@]}"
}

make_python() {
    "$REPO/scripts/python-env.sh" >/dev/null
}

# Fetches the sdist into the cache and prints its path.
fetch_sdist() {
    local dir=$CACHE/downloads name=${LLAMA_CPP_SDIST//-/_}-$LLAMA_CPP_SDIST_VERSION.tar.gz scratch
    mkdir -p "$dir"
    rm -rf "$dir"/fetch.* # of an interrupted run
    if [[ ! -f $dir/$name ]]; then
        log "fetching $LLAMA_CPP_SDIST $LLAMA_CPP_SDIST_VERSION"
        scratch=$(mktemp -d "$dir/fetch.XXXXXX")
        make_python
        "$PYTHON" -m pip download --quiet --disable-pip-version-check --no-deps --no-binary "$LLAMA_CPP_SDIST" \
            --dest "$scratch" "$LLAMA_CPP_SDIST==$LLAMA_CPP_SDIST_VERSION" >&2
        check_sdist "$scratch/$name"
        mv -f "$scratch/$name" "$dir/$name"
        rm -rf "$scratch"
    fi
    check_sdist "$dir/$name"
    mark_used "$dir/$name"
    printf '%s\n' "$dir/$name"
}

check_sdist() {
    printf '%s  %s\n' "$LLAMA_CPP_SDIST_SHA256" "$1" | sha256sum --check --status ||
        die "$1: checksum differs from scripts/versions.env; delete the file and run again"
}

# Unpacks the pristine source. A build directory that is there stays: file times come from the sdist.
make_stock_source() {
    local stamp=$STOCK/.setup-source new=$STOCK.new sdist
    is_current "$stamp" "$LLAMA_CPP_SDIST_SHA256" && return
    sdist=$(fetch_sdist)
    log "unpacking llama.cpp"
    rm -rf "$new"
    mkdir -p "$new"
    tar -xzf "$sdist" -C "$new" --strip-components=3 --wildcards '*/vendor/llama.cpp'
    write_stamp "$new/.setup-source" "$LLAMA_CPP_SDIST_SHA256"
    swap_source "$STOCK" "$new"
}

# Copies the pristine source and applies the patches to the copy.
make_patched_source() {
    local stamp=$PATCHED/.setup-source new=$PATCHED.new hash
    hash=$(hash_of "$LLAMA_CPP_SDIST_SHA256" "$("$REPO/scripts/apply-patches.sh" --fingerprint)")
    is_current "$stamp" "$hash" && return
    log "patching llama.cpp"
    rm -rf "$new"
    mkdir -p "$new"
    tar -C "$STOCK" --exclude=./build --exclude=./build-noavx512 --exclude=./build-rpc --exclude=./.setup-source -cf - . | tar -C "$new" -xf -
    "$REPO/scripts/apply-patches.sh" "$new" >&2
    write_stamp "$new/.setup-source" "$hash"
    swap_source "$PATCHED" "$new"
}

# swap_source TREE NEW : puts NEW in TREE's place, keeping the build directories, which only hold what can be made again.
swap_source() {
    local build
    for build in build build-noavx512 build-rpc; do
        [[ -d $1/$build ]] && mv "$1/$build" "$2/$build"
    done
    rm -rf "$1"
    mv "$2" "$1"
}

# build_tree SOURCE DIRECTORY TARGETS FLAG... : configures and builds; compiled objects are shared through ccache.
build_tree() {
    local source=$1 build=$1/$2 targets=$3 log_file=$1/$2/setup.log hash
    shift 3
    hash=$(hash_of "$(<"$source/.setup-source")" "$targets" "$*" "$(c++ --version)" "$(cmake --version)")
    is_current "$build/.setup-stamp" "$hash" && return
    log "building $build"
    mkdir -p "$build"
    rm -f "$build/.setup-stamp"
    (
        export CCACHE_BASEDIR=$LLAMA_CPP
        # shellcheck disable=SC2086  # $targets is a list of words
        with_ccache cmake -S "$source" -B "$build" "$@" && with_ccache cmake --build "$build" --target $targets
    ) >"$log_file" 2>&1 || {
        tail -n 40 "$log_file" >&2
        die "building $build failed; the whole log is $log_file"
    }
    write_stamp "$build/.setup-stamp" "$hash"
}

make_stock() {
    make_stock_source
    mapfile -t sets < <(instruction_sets)
    build_tree "$STOCK" build "${STOCK_TARGETS[*]}" "${CMAKE_FLAGS[@]}" "${sets[@]}"
    mark_used "$STOCK"
}

make_patched() {
    make_stock_source
    make_patched_source
    mapfile -t sets < <(instruction_sets)
    build_tree "$PATCHED" build "${PATCHED_TARGETS[*]}" "${CMAKE_FLAGS[@]}" "${sets[@]}"
    mark_used "$STOCK"
    mark_used "$PATCHED"
}

# Stock's tools look for libggml-cpu.so beside themselves, so copies of them in another directory find the other one.
make_valgrind() {
    make_stock
    mapfile -t sets < <(instruction_sets | sed '/AVX512/s/=ON$/=OFF/')
    build_tree "$STOCK" build-noavx512 ggml-cpu "${CMAKE_FLAGS[@]}" "${sets[@]}"
    local tool
    for tool in "${VALGRIND_TOOLS[@]}"; do
        [[ $VALGRIND_BIN/$tool -nt $STOCK_BIN/$tool ]] || install_file "$STOCK_BIN/$tool" "$VALGRIND_BIN/$tool"
    done
}

# A directory of its own: the tools' build has no such backend, as most builds.
make_rpc() {
    make_stock_source
    mapfile -t sets < <(instruction_sets)
    build_tree "$STOCK" build-rpc "${RPC_TARGETS[*]}" "${CMAKE_FLAGS[@]}" "${sets[@]}" -DGGML_RPC=ON -DGGML_RPC_RDMA=OFF
    mark_used "$STOCK"
}

# The C toolchain names a loadable backend libggml-NAME.so; a Rust library's name cannot hold a dash.
make_plugin() {
    (cd "$REPO" && cargo build --quiet --locked --release -p ggml-llada-npu)
    local built=$TARGET/release/libggml_llada_npu.so copy
    for copy in "$PLUGIN" "$PATCHED_BIN/${PLUGIN##*/}"; do
        [[ -d ${copy%/*} ]] || continue
        cmp -s "$built" "$copy" || install_file "$built" "$copy"
    done
}

# The first build compiles the llama.cpp inside llama-cpp-sys-2.
make_cli() {
    (cd "$REPO" && with_ccache cargo build --quiet --locked --release -p llada-npu)
}

# accept_qnn_license : nothing of Qualcomm's is fetched before the user has said so.
accept_qnn_license() {
    [[ ${LLADA_NPU_ACCEPT_QNN_LICENSE-} == 1 ]] || die "QNN is Qualcomm's, under the Qualcomm AI Stack License
    (Qualcomm_LICENSE.pdf in the PyPI package $QNN_PACKAGE). Downloading it accepts that licence: if you do, set
    LLADA_NPU_ACCEPT_QNN_LICENSE=1."
}

# fetch_qnn PACKAGE VERSION PLATFORM SHA256 PATTERN... : puts the files of a wheel that match into the cache.
fetch_qnn() {
    local package=$1 version=$2 platform=$3 sha256=$4 dir=$QNN/$1-$2 scratch hash
    shift 4
    accept_qnn_license
    hash=$(hash_of "$sha256" "$@")
    is_current "$dir/.setup-stamp" "$hash" && return
    log "fetching $package $version, under the Qualcomm AI Stack License"
    make_python
    mkdir -p "$QNN"
    rm -rf "$QNN"/fetch.* "$dir" # of an interrupted run; of other inputs
    scratch=$(mktemp -d "$QNN/fetch.XXXXXX")
    "$PYTHON" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --implementation cp \
        --python-version 311 --abi cp311 --platform "$platform" --dest "$scratch" "$package==$version" >&2
    printf '%s  %s\n' "$sha256" "$(echo "$scratch"/*.whl)" | sha256sum --check --status ||
        die "$package $version: checksum differs from scripts/versions.env"
    "$PYTHON" - "$scratch" "$@" <<'EOF'
import fnmatch, pathlib, sys, zipfile

scratch = pathlib.Path(sys.argv[1])
(wheel,) = scratch.glob("*.whl")
with zipfile.ZipFile(wheel) as archive:
    names = archive.namelist()
    for pattern in sys.argv[2:]:
        archive.extractall(scratch / "new", fnmatch.filter(names, pattern))
EOF
    write_stamp "$scratch/new/.setup-stamp" "$hash"
    mv -f "$scratch/new" "$dir"
    rm -rf "$scratch"
}

# make_qnn [VERSION] : the libraries find each other by the wheel's layout.
make_qnn() {
    local version=${1:-$QNN_VERSION} sha256
    sha256=$(awk -v version="$version" '$1 == version { print $2 }' <<<"$QNN_WHEELS")
    [[ $sha256 ]] || die "unknown version '$version' of QNN; known are: $(qnn_versions | paste -sd ' ')"
    fetch_qnn "$QNN_PACKAGE" "$version" manylinux_2_35_x86_64 "$sha256" "${QNN_FILES[@]}"
    mark_used "$QNN"
    qnn_dir "$version"
}

make_qnn-matrix() {
    local version
    for version in $(qnn_versions); do
        make_qnn "$version"
    done
}

make_qnn-arm64() {
    fetch_qnn "$QNN_ARM64_PACKAGE" "$QNN_ARM64_VERSION" manylinux_2_34_aarch64 "$QNN_ARM64_SHA256" '*/libQnnHtp.so' '*/METADATA'
    mark_used "$QNN"
    qnn_arm64_dir
}

# cache_size : kilobytes that the cache holds. Other scripts may be deleting files of theirs meanwhile.
cache_size() {
    { du -sk "$CACHE" 2>/dev/null || true; } | cut -f1
}

# trim_cache START : deletes entries of the cache, those used longest ago first, until it is as small as it has to be. What
# was used since START, in seconds since 1970, stays.
trim_cache() {
    local start=$1 used entry
    (($(cache_size) > CACHE_MAX * 1024 * 1024)) || return 0
    while read -r used entry; do
        ((used < start && $(cache_size) > CACHE_MAX * 1024 * 1024)) || break
        log "the cache holds more than $CACHE_MAX GiB: deleting $entry"
        rm -rf "$entry"
    done < <(
        shopt -s nullglob
        for entry in "$CACHE"/*/ "$LLAMA_CPP"/*/ "$CACHE"/downloads/*; do
            case $entry in
            "$LLAMA_CPP/" | "$CACHE/downloads/") ;; # their contents are entries
            *) stat -c '%Y %n' "${entry%/}" ;;
            esac
        done | sort -n
    )
}

main() {
    local part start
    if [[ ${1-} == -h || ${1-} == --help ]]; then
        usage
        return
    fi
    (($#)) || set -- packages python stock patched plugin cli
    for part in "$@"; do
        [[ $(type -t "make_${part%%=*}") == function && $part != *_* && ($part != *=* || $part == qnn=*) ]] ||
            die "unknown part '$part'; see --help"
    done
    [[ $CACHE_MAX =~ ^[0-9]+$ ]] || die "LLADA_NPU_CACHE_MAX=$CACHE_MAX: not a whole number of GiB"
    mkdir -p "$CACHE"
    exec 9>"$CACHE/setup.lock"
    command -v flock >/dev/null && { flock -n 9 || { log "waiting for another setup.sh" && flock 9; }; }
    start=$EPOCHSECONDS
    for part in "$@"; do
        if [[ $part == *=* ]]; then
            "make_${part%%=*}" "${part#*=}" 9>&-
        else
            "make_$part" 9>&-
        fi
    done
    trim_cache "$start"
}

main "$@"
