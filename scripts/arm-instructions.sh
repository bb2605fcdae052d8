#!/usr/bin/env bash
# Usage: scripts/arm-instructions.sh [ROWS...]
#
# Counts, with a plug-in of qemu, the instructions that products with tiled weights execute on aarch64: a strip of 32 weight
# rows with 1024 elements times ROWS rows of x (1, 8 and 128 without arguments), decoding of the weights included; and those
# of attention of up to 64 rows of Q over 1024 positions of F16 K and V with 128 elements. Per
# kernel and number of rows: instructions for each multiply-accumulate, the least there could be (nothing but sdot, 16,
# smmla, 32, fmlal or fmla of floats, 4, or fmla of half floats, 8 of them in one instruction), and the share of the latter in
# the former. Needs scripts/setup.sh arm64.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

TRIPLE=aarch64-unknown-linux-gnu
ARM_TARGET=$TARGET/arm64
K=1024

# count KERNEL ROWS REPETITIONS : prints the instructions executed, and the products among them.
count() {
    qemu-aarch64 -cpu max -plugin "$ARM_TARGET/count.so" "$ARM_TARGET/$TRIPLE/release/examples/strips" "$1" "$K" "$2" "$3"
}

main() {
    local kernel rows few few_products many many_products per_product per_element
    case ${1-} in
    -h | --help) usage && return ;;
    esac
    (($#)) || set -- 1 8 128
    mkdir -p "$ARM_TARGET"
    cc -O2 -Wall -Werror -shared -fPIC -o "$ARM_TARGET/count.so" "$REPO/tests/arm64/count.c"
    (
        cd "$REPO"
        RUSTC=/usr/bin/rustc CARGO_TARGET_DIR=$ARM_TARGET CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc \
            cargo build --quiet --locked --release --target "$TRIPLE" -p llada-npu-kernels --example strips
    )
    printf '%-32s %5s %12s %12s %8s\n' kernel rows "instr/MAC" "least" share
    while read -r kernel; do
        case $kernel in
        *-i8mm) per_product=32 ;;
        *-dotprod) per_product=16 ;;
        *-fp16) per_product=8 ;;
        *) per_product=4 ;;
        esac
        per_element=32
        [[ $kernel == *-attention-* ]] && per_element=256
        for rows in "$@"; do
            [[ $kernel == *-attention-* ]] && ((rows > 64)) && rows=64
            # What three repetitions execute more than one has neither start-up nor the packing of x.
            read -r few few_products < <(count "$kernel" "$rows" 1)
            read -r many many_products < <(count "$kernel" "$rows" 3)
            (((many_products - few_products) * per_product >= 2 * per_element * K * rows)) || die "$kernel did not multiply so"
            awk -v kernel="$kernel" -v rows="$rows" -v instructions=$((many - few)) -v macs=$((2 * per_element * K * rows)) \
                -v per_product="$per_product" 'BEGIN {
                    least = 1 / per_product
                    real = instructions / macs
                    printf "%-32s %5d %12.4f %12.4f %8.2f\n", kernel, rows, real, least, least / real
                }'
        done
    done < <(grep -E '^aarch64-tile_.*-(dotprod|i8mm)$|^aarch64-(tile_f16|attention)-' "$REPO/tests/arm64/kernels.txt")
}

main "$@"
