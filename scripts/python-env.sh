#!/usr/bin/env bash
# Usage: scripts/python-env.sh
#
# Creates (or reuses) the Python environment of tests/reference and prints the path of its interpreter, alone, on stdout.
# It lives at ${LLADA_NPU_CACHE:-$HOME/.cache/llada-npu}/venv and is made anew when tests/reference/requirements.txt or the
# base interpreter's version changes. LLADA_NPU_PYTHON names another base interpreter than python3.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

REQUIREMENTS=$REPO/tests/reference/requirements.txt
VENV=$CACHE/venv
BASE=${LLADA_NPU_PYTHON:-python3}

# stamp : a hash of what the environment is made from.
stamp() {
    { cat "$REQUIREMENTS"; "$BASE" -c 'import sys; print(sys.version_info[:3], sys.base_prefix)'; } | sha256sum | cut -d' ' -f1
}

main() {
    local wanted
    (($# == 0)) || { usage && return; }
    command -v "$BASE" >/dev/null || die "no $BASE in PATH (Debian: python3 python3-venv)"
    mkdir -p "$CACHE"
    wanted=$(stamp)
    # One creator at a time; the others wait and find it done.
    exec 9>"$CACHE/venv.lock"
    flock 9
    if [[ ! -x $PYTHON || $(cat "$VENV/stamp" 2>/dev/null || true) != "$wanted" ]]; then
        log "making $VENV"
        rm -rf "$VENV"
        "$BASE" -m venv "$VENV" >&2 || die "$BASE -m venv failed (Debian: python3-venv)"
        # 9>&- : a process pip leaves behind must not keep the lock.
        "$PYTHON" -m pip install --quiet --disable-pip-version-check --requirement "$REQUIREMENTS" >&2 9>&-
        echo "$wanted" >"$VENV/stamp"
    fi
    mark_used "$VENV"
    echo "$PYTHON"
}

main "$@"
