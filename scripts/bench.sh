#!/usr/bin/env bash
# Usage: scripts/bench.sh NAME [ARGUMENT...]
#
# Runs scripts/bench/NAME.sh, after setting up what is missing. A bench prints what it measures and ends with one line
# "RESULT name=value name=value …". Without a name, lists the benches.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

main() {
    local name=${1-} bench
    if [[ -z $name || $name == -h || $name == --help ]]; then
        usage
        printf '\nBenches:\n'
        for bench in "$REPO"/scripts/bench/*.sh; do
            [[ -e $bench ]] && printf '  %s\n' "$(basename "$bench" .sh)"
        done
        return
    fi
    bench=$REPO/scripts/bench/$name.sh
    [[ $name != */* && -f $bench ]] || die "no bench '$name'; see --help"
    "$REPO/scripts/setup.sh"
    exec bash "$bench" "${@:2}"
}

main "$@"
