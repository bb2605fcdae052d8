#!/usr/bin/env bash
# Usage: scripts/apply-patches.sh TREE | --check TREE | --fingerprint
#
# Applies ggml-patches/*.patch, in order, to a llama.cpp source tree of the version in scripts/versions.env, and installs
# the C interface of the decoding mode (backend/include/ggml-diffusion.h) there. Nothing is changed unless all of them
# apply without fuzz. --check stops there. --fingerprint prints a hash of what would be applied.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

HEADER=$REPO/backend/include/ggml-diffusion.h

main() {
    local patches=("$REPO"/ggml-patches/[0-9]*.patch) tree patch scratch check=no
    [[ -e ${patches[0]} ]] || die "no patches in $REPO/ggml-patches"
    case ${1-} in
    -h | --help) usage && return ;;
    --fingerprint) cat "$HEADER" "${patches[@]}" | sha256sum | cut -c1-32 && return ;;
    --check) check=yes && shift ;;
    esac
    (($#)) || die "no tree given; see --help"
    tree=$1
    [[ -d $tree/ggml/include ]] || die "$tree: not a llama.cpp source tree"

    # the series is tried on a copy of the files it touches first
    scratch=$(mktemp -d)
    # shellcheck disable=SC2064  # the path of now
    trap "rm -rf '$scratch'" EXIT
    sed -n 's|^--- a/||p' "${patches[@]}" | sort -u | while read -r file; do
        [[ -f $tree/$file ]] || continue
        mkdir -p "$scratch/${file%/*}"
        cp "$tree/$file" "$scratch/$file"
    done
    for patch in "${patches[@]}"; do
        patch --quiet --strip=1 --fuzz=0 --directory="$scratch" --input="$patch" ||
            die "${patch##*/} does not apply to $tree"
    done
    [[ $check == no ]] || return 0
    for patch in "${patches[@]}"; do
        log "${patch##*/}"
        patch --quiet --strip=1 --fuzz=0 --no-backup-if-mismatch --directory="$tree" --input="$patch"
    done
    cp "$HEADER" "$tree/ggml/include/ggml-diffusion.h"
}

main "$@"
