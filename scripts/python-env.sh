#!/usr/bin/env bash
# usage: scripts/python-env.sh
# Creates (or reuses) the Python environment of tests/reference and prints the path of its interpreter, alone, on stdout.
# It lives at ${LLADA_NPU_CACHE:-$HOME/.cache/llada-npu}/venv and is made anew when tests/reference/requirements.txt or the
# base interpreter's version changes. LLADA_NPU_PYTHON names another base interpreter than python3.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
requirements=$here/../tests/reference/requirements.txt
cache=${LLADA_NPU_CACHE:-$HOME/.cache/llada-npu}
venv=$cache/venv
base=${LLADA_NPU_PYTHON:-python3}

if [ "$#" -ne 0 ]; then
    sed -n '2,5s/^# //p' "${BASH_SOURCE[0]}" >&2
    exit 2
fi
command -v "$base" >/dev/null || { echo "python-env.sh: no $base in PATH (Debian: python3 python3-venv)" >&2; exit 1; }
mkdir -p "$cache"

stamp() {
    { cat "$requirements"; "$base" -c 'import sys; print(sys.version_info[:3], sys.base_prefix)'; } | sha256sum | cut -d' ' -f1
}

wanted=$(stamp)
# One creator at a time; the others wait and find it done.
exec 9>"$cache/venv.lock"
flock 9
if [ ! -x "$venv/bin/python" ] || [ "$(cat "$venv/stamp" 2>/dev/null || true)" != "$wanted" ]; then
    echo "python-env.sh: making $venv" >&2
    rm -rf "$venv"
    "$base" -m venv "$venv" >&2 || {
        echo "python-env.sh: $base -m venv failed (Debian: python3-venv)" >&2
        exit 1
    }
    # 9>&- : a process pip leaves behind must not keep the lock.
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --requirement "$requirements" >&2 9>&-
    echo "$wanted" >"$venv/stamp"
fi
echo "$venv/bin/python"
