#!/usr/bin/env bash
# Usage: scripts/train/train.sh [TRAINED_DIR]
#
# Makes everything under tests/models and tests/tasks: task files, the trained model (checkpoints go to TRAINED_DIR),
# its F16, Q8_0 and Q4_0 files, and their exact match on the validation file. About two hours on two cores.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

case ${1-} in
-h | --help) usage && exit ;;
-*) die "unknown argument '$1'; see --help" ;;
esac

here="$REPO/scripts/train"
tests="$REPO/tests"
trained="${1:-$CACHE/trained}"
venv="$CACHE/train-venv"

if [[ ! -x $venv/bin/python ]]; then
    python3 -m venv "$venv"
fi
mark_used "$venv"
"$venv/bin/pip" install --quiet --requirement "$here/requirements.txt"
python="$venv/bin/python"

# Two single-threaded devices share a batch with less waiting than two threads inside every operation.
two_devices="--xla_cpu_multi_thread_eigen=false --xla_force_host_platform_device_count=2"

mkdir -p "$tests/models" "$tests/tasks"
"$python" "$here/tasks.py" "$tests/tasks"
XLA_FLAGS="$two_devices" "$python" "$here/train.py" "$trained"
"$python" "$here/export.py" "$trained" "$tests/models"
for kind in f16 q8_0 q4_0; do
    "$python" "$here/evaluate.py" "$tests/models/llada-tiny-$kind.gguf" "$tests/tasks/validation.jsonl" --gen 96
done
