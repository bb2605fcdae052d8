"""The decoding modes of `llada-npu` against each other. Called by modes.sh.

Two runs of `llada-npu eval`, each with one load of the model:

1. every prompt in every mode, a session with one thread per core: accuracies, paired differences, forwards, rows, and time
   by the `npu` cost table, none of which depends on the clock;
2. every prompt in `cached` and `full` alone, one session with all threads, the modes in turns prompt by prompt: time by the
   clock. The answers have to be those of the first run.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

MODES = ["reference", "cached", "mbsd", "full"]
TIMED = ["cached", "full"]
N_PREDICT = 96  # what the longest answers need


def evaluate(args, modes, jobs, threads, answers):
    """Runs `eval`; returns its results, and the answers by mode and prompt."""
    command = [args.ours, "eval", "-m", args.model, "--tasks", args.tasks, "-n", str(N_PREDICT), "--json",
               "--modes", ",".join(modes), "--jobs", str(jobs), "-t", str(threads), "--predictions", answers]
    if args.prompts is not None:
        command += ["--limit", str(args.prompts)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        sys.exit(f"{args.ours}: exit code {done.returncode}")
    lines = [json.loads(line) for line in answers.read_text().splitlines()]
    return json.loads(done.stdout), {(line["variant"], line["prompt"]): line["output"] for line in lines}


def describe(variant):
    by_task = ", ".join(f"{name} {task['accuracy']:.3f}" for name, task in variant["tasks"].items())
    overall, forwards = variant["overall"], variant["forwards"]
    kinds = ", ".join(f"{forwards[kind]} {kind}" for kind in forwards if kind != "total" and forwards[kind])
    print(f"{variant['name']:<10} {overall['accuracy']:.4f} ({overall['low']:.4f} to {overall['high']:.4f}) of {overall['n']}: "
          f"{by_task}\n"
          f"           {forwards['total']} forwards ({kinds}), {variant['tokens_per_step']:.2f} tokens per step; rows: "
          f"{variant['rows_dense']} dense, {variant['rows_padded']} padded, {variant['rows_revision']} revision, "
          f"{variant['rows_logits']} logits\n"
          f"           drafts: {variant['drafts_made']} made, {variant['drafts_kept']} kept; revisions: "
          f"{variant['revisions_made']} made, {variant['revisions_replaced']} replaced, "
          f"{variant['revisions_remasked']} remasked; {variant['seconds_npu']:.1f} s by the npu cost table", flush=True)


def difference(results, first, second):
    return next(d for d in results["differences"] if (d["first"], d["second"]) == (first, second))


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--tasks", type=Path, required=True)
    parser.add_argument("--ours", type=Path, required=True)
    parser.add_argument("--prompts", type=int, help="only the first of them")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--keep", type=Path, help="write all results to this JSON file")
    args = parser.parse_args()
    for path in (args.model, args.tasks, args.ours):
        if not path.exists():
            parser.error(f"{path} is missing: scripts/setup.sh builds the programs")
    return args


def main():
    args = parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        answers = Path(scratch) / "answers.jsonl"
        results, texts = evaluate(args, MODES, args.threads, 1, answers)
        for variant in results["variants"]:
            describe(variant)
        for d in results["differences"]:
            print(f"{d['second']} - {d['first']}: {d['difference']:+.4f} ({d['low']:+.4f} to {d['high']:+.4f}), right alone "
                  f"{d['n_second_alone']} and {d['n_first_alone']}", flush=True)
        timed, again = evaluate(args, TIMED, 1, args.threads, answers)
    changed = [key for key, text in again.items() if texts[key] != text]
    if changed:
        print(f"{len(changed)} of {len(again)} answers differ between the runs, such as {changed[0]}", flush=True)
    clock = difference(timed, "cached", "full")
    seconds = {variant["name"]: variant["seconds_total"] for variant in timed["variants"]}
    print(f"by the clock, {args.threads} threads: cached {seconds['cached']:.3f} s, full {seconds['full']:.3f} s", flush=True)
    by_name = {variant["name"]: variant for variant in results["variants"]}
    result = {f"acc_{mode}": by_name[mode]["overall"]["accuracy"] for mode in MODES}
    result |= {
        "full_minus_reference_low95": difference(results, "reference", "full")["low"],
        "full_minus_cached_low95": difference(results, "cached", "full")["low"],
        "npu_time_ratio": difference(results, "cached", "full")["seconds_npu_ratio"],
        "cpu_time_ratio": clock["seconds_ratio"],
        "tokens_per_step": by_name["full"]["tokens_per_step"],
    }
    if args.keep:
        args.keep.write_text(json.dumps({"result": result, "modes": results, "timed": timed}) + "\n")
    print("RESULT " + " ".join(f"{name}={value:.4f}" for name, value in result.items()))
    if changed:
        sys.exit(1)


if __name__ == "__main__":
    main()
