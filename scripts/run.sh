#!/usr/bin/env bash
# Usage: scripts/run.sh [ARGUMENT...]
#
# Sets up what is missing and runs the patched llama-diffusion-cli with --backend llada-npu. Without arguments it answers
# three prompts with the model in tests/models; arguments are passed on (that model is used if they name none).
# Answers go to stdout; forwards, tokens per step and tokens/s to stderr. --usage shows the tool's own arguments.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

MODEL=$REPO/tests/models/llada-tiny-q8_0.gguf

PROMPTS=(
    'Spell: 46881'
    'Reverse: o z c s v d p b x'
    'JSON: Bob, age 55, lives in Seoul, likes films, owns 12 pens'
)

# names_model ARGUMENT... : whether the arguments say which model to use, or need none.
names_model() {
    local argument
    for argument in "$@"; do
        case $argument in
        -m | --model | --model=* | -mu | --model-url | -dr | --docker-repo | -hf | -hfr | --hf-repo | --usage | --version | --list-devices)
            return 0
            ;;
        esac
    done
    return 1
}

main() {
    local tool=("$PATCHED_BIN/llama-diffusion-cli" --backend llada-npu) prompt
    if [[ ${1-} == -h || ${1-} == --help ]]; then
        usage
        return
    fi
    "$REPO/scripts/setup.sh" packages stock patched plugin
    if ! names_model "$@"; then
        [[ -f $MODEL ]] || die "$MODEL is missing; scripts/train makes it"
        tool+=(-m "$MODEL")
    fi
    if (($#)); then
        exec "${tool[@]}" "$@"
    fi
    for prompt in "${PROMPTS[@]}"; do
        printf '> %s\n' "$prompt" >&2
        "${tool[@]}" -n 96 -p "$prompt"
    done
}

main "$@"
