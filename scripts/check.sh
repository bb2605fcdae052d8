#!/usr/bin/env bash
# Usage: scripts/check.sh [CHECK...]
#
# What can be said about the sources without running them. Without arguments all checks run:
#
#   format      rustfmt leaves every file as it is
#   scripts     shellcheck finds nothing
#   patches     ggml-patches/ apply to the pinned tree, and the built tree has the header of this one
#   arguments   llama.cpp's own test of the patched command line
#   bindings    the generated bindings are what the headers give
#   operations  the README's table of operations is what was recorded
#   clippy      no warning in any crate or target
#   arm64       none for aarch64 in the kernels and the plug-in (where scripts/setup.sh arm64 has run)
#   doc         rustdoc has no warning
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

CHECKS=(format scripts patches arguments bindings operations clippy arm64 doc)

check_format() {
    cargo fmt --all --check
}

check_scripts() {
    local file files=()
    while IFS= read -r file; do
        if [[ $file == *.sh ]] || head -c 64 "$file" | grep -qa '^#!.*sh'; then
            files+=("$file")
        fi
    done < <(git ls-files scripts .ci tests)
    shellcheck --external-sources "${files[@]}"
}

check_patches() {
    "$REPO/scripts/apply-patches.sh" --check "$STOCK" &&
        cmp "$REPO/backend/include/ggml-diffusion.h" "$PATCHED/ggml/include/ggml-diffusion.h"
}

# The test ends with downloads; where there is no network it has done the rest when it gets there.
check_arguments() {
    local output
    output=$("$PATCHED_BIN/test-arg-parser" 2>&1) || [[ $output == *"test good URL"* ]] || {
        printf '%s\n' "$output"
        return 1
    }
}

check_bindings() {
    "$REPO/scripts/bindgen.sh" --check
}

check_operations() {
    python3 "$REPO/scripts/test-backend-ops.py" --check
}

check_clippy() {
    with_ccache cargo clippy --quiet --locked --release --workspace --all-targets -- -D warnings
}

check_arm64() {
    if [[ -x /usr/bin/rustc ]] && command -v aarch64-linux-gnu-gcc >/dev/null; then
        "$REPO/scripts/test-arm64.sh" lint
    else
        log "arm64: SKIPPED, no compiler for it; scripts/setup.sh arm64 installs one"
        [[ -z ${CI-} ]]
    fi
}

check_doc() {
    RUSTDOCFLAGS='-D warnings' with_ccache cargo doc --quiet --locked --release --workspace --no-deps
}

main() {
    local name passed=0 failed=0
    case ${1-} in
    -h | --help) usage && return ;;
    esac
    (($#)) || set -- "${CHECKS[@]}"
    cd "$REPO"
    for name in "$@"; do
        [[ $(type -t "check_$name") == function ]] || die "unknown check '$name'; see --help"
    done
    for name in "$@"; do
        if ("check_$name"); then
            log "$name: ok"
            passed=$((passed + 1))
        else
            log "$name: FAILED"
            failed=$((failed + 1))
        fi
    done
    printf '%d passed, %d failed\n' "$passed" "$failed"
    ((failed == 0))
}

main "$@"
