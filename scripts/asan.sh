#!/usr/bin/env bash
# Usage: scripts/asan.sh [CARGO-TEST-ARGUMENT...]
#
# Runs the suites of kernels and device with AddressSanitizer: every kernel that this machine can run reads and writes
# inside its slices. A build of its own, in target/asan.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

main() {
    case ${1-} in
    -h | --help) usage && return ;;
    esac
    local host
    host=$(rustc -vV | sed -n 's/^host: //p')
    # A stable compiler takes the flag when it is told that it is a nightly one. With --target, build scripts and macros are
    # built without it.
    export RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address CARGO_TARGET_DIR=$TARGET/asan
    # A test is about a read that ends a process by its signal; others count the memory in use, to which freed memory held back
    # for a while would add.
    export ASAN_OPTIONS=handle_segv=0:quarantine_size_mb=8
    cd "$REPO"
    cargo test --locked --release --no-fail-fast --target "$host" -p llada-npu-kernels --lib --tests "$@"
    cargo test --locked --release --no-fail-fast --target "$host" -p llada-npu-ffi -p ggml-llada-npu --lib "$@" -- device memory region
}

main "$@"
