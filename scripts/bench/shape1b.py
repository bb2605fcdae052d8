"""Stock llama-diffusion-cli against `llada-npu` on a 1B shape. Called by shape1b.sh.

Weights are random, so that only costs can be compared. Both sides get the same prompt of 64 tokens and generate 128, two at
every step, 64 steps in all:

* stock: one block over its whole canvas of 192 tokens, all of which it computes, with logits, at every step. Its steps cost
  the same, whatever was committed before; so it runs `--stock-steps` of them (committing more at each), and its time and
  rows are scaled to 64. Once with ggml's CPU backend and once on our device, both with the same threads.
* ours: mode `cached`, suffix none, `--block-length` tokens a block, without refresh and with one at every block. The factor
  rule with 3.5 commits exactly two positions a step as long as no confidence is above 1/8, which random weights keep; that
  128 positions were committed in 64 forwards is checked.

Runs take turns; times are those that the programs report for the generation alone, the median of each.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

N_PROMPT = 64
N_GENERATE = 128
PER_STEP = 2
N_STEPS = N_GENERATE // PER_STEP
CANVAS = N_PROMPT + N_GENERATE
FACTOR = 3.5
ROUNDS = 3
STOCK_ROUNDS = 2  # of the rounds, those in which stock takes part
TIMEOUT = 600
TOTAL_TIME = re.compile(r"total time: ([0-9.]+)ms")


def run(command, **environment):
    env = {**os.environ, **environment} if environment else None
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT, check=False, env=env)
    if done.returncode:
        sys.exit(f"{command[0]}: exit code {done.returncode}\n{done.stderr.decode(errors='replace')[-800:]}")
    return done


class Bench:
    def __init__(self, args, scratch):
        self.args = args
        self.report = scratch / "report.json"
        self.prompt = "x"
        # What the chat template adds to a prompt of one token.
        self.prompt = "x" * (1 + N_PROMPT - self.ours(refresh=0, n_generate=1)["n_prompt"])

    def ours(self, refresh, n_generate=N_GENERATE):
        """The report of one generation."""
        run([self.args.ours, "run", "-m", self.args.model, "-p", self.prompt, "-n", str(n_generate), "-t",
             str(self.args.threads), "--diffusion-mode", "cached", "--diffusion-suffix", "none", "--diffusion-block-length",
             str(self.args.block_length), "--diffusion-refresh-blocks", str(refresh), "--diffusion-factor", str(FACTOR),
             "--diffusion-logits-eos-inf", "true", "--diffusion-json", self.report])
        return json.loads(self.report.read_text())

    def stock(self, on_our_device):
        """Seconds of one generation, scaled to all steps."""
        steps = self.args.stock_steps
        command = [self.args.stock_bin / "llama-diffusion-cli", "-m", self.args.model, "-p", self.prompt, "-t",
                   str(self.args.threads), "-tb", str(self.args.threads), "-b", str(CANVAS), "-ub", str(CANVAS),
                   "--diffusion-steps", str(steps), "--diffusion-block-length", str(CANVAS), "--top-k", "1", "--seed", "1"]
        if on_our_device:
            log = run([*command, "--device", "llada-npu"], GGML_BACKEND_PATH=str(self.args.plugin)).stderr
        else:
            log = run([*command, "--device", "none"]).stderr
        log = log.decode(errors="replace")
        n_forwards, time = log.count("diffusion step: "), TOTAL_TIME.search(log)
        if n_forwards != steps or time is None:
            sys.exit(f"stock made {n_forwards} of {steps} steps, its time is {'there' if time else 'missing'}")
        return float(time.group(1)) / 1000 * N_STEPS / steps


def check(report):
    """Two tokens at every step: else the two sides are not comparable."""
    found = {key: report[key] for key in ("n_prompt", "n_committed", "forwards")}
    wanted = {"n_prompt": N_PROMPT, "n_committed": N_GENERATE, "forwards": N_STEPS}
    if found != wanted:
        sys.exit(f"ours: {found} instead of {wanted}")


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--ours", type=Path, required=True)
    parser.add_argument("--plugin", type=Path, required=True)
    parser.add_argument("--stock-bin", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--stock-steps", type=int, default=8, help="steps that stock really runs; a divisor of 128")
    parser.add_argument("--block-length", type=int, default=28, help="of ours")
    parser.add_argument("--keep", type=Path, help="write the numbers to this JSON file")
    args = parser.parse_args()
    for path in (args.model, args.ours, args.plugin, args.stock_bin / "llama-diffusion-cli"):
        if not path.exists():
            parser.error(f"{path} is missing: scripts/setup.sh builds the programs")
    return args


def main():
    args = parse_args()
    plain, refreshed, on_device, on_cpu = [], [], [], []
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench(args, Path(scratch))
        for turn in range(ROUNDS):
            plain.append(bench.ours(refresh=0))
            if turn < STOCK_ROUNDS:
                on_device.append(bench.stock(True))
                on_cpu.append(bench.stock(False))
            refreshed.append(bench.ours(refresh=1))
    for report in plain + refreshed:
        check(report)
    seconds = {
        "ours": statistics.median(report["seconds_total"] for report in plain),
        "ours with refresh": statistics.median(report["seconds_total"] for report in refreshed),
        "stock on our device": statistics.median(on_device),
        "stock on ggml's CPU backend": statistics.median(on_cpu),
    }
    rows = N_STEPS * CANVAS
    for name, value in seconds.items():
        print(f"{name}: {value:.3f} s", flush=True)
    print(f"rows: {rows} stock, {plain[0]['rows_dense']} ours, {refreshed[0]['rows_dense']} with refresh; with logits: {rows} "
          f"stock, {plain[0]['rows_logits']} ours; blocks of {args.block_length}, {args.threads} threads; stock's time is "
          f"that of {args.stock_steps} steps, scaled to {N_STEPS}", flush=True)
    result = {
        "rows_ratio": rows / plain[0]["rows_dense"],
        "rows_ratio_refresh": rows / refreshed[0]["rows_dense"],
        "logits_rows_ratio": rows / plain[0]["rows_logits"],
        "wall_ratio": seconds["stock on our device"] / seconds["ours"],
        "wall_ratio_ours": seconds["stock on ggml's CPU backend"] / seconds["ours"],
    }
    if args.keep:
        args.keep.write_text(json.dumps({**result, "seconds": seconds}) + "\n")
    print("RESULT " + " ".join(f"{name}={value:.4f}" for name, value in result.items()))


if __name__ == "__main__":
    main()
