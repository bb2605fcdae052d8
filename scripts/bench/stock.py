"""The default mode of `llada-npu` against stock llama-diffusion-cli, prompt by prompt. Called by stock.sh.

Both programs are started once a prompt, with the same threads. What counts is the time that each of them reports for
its generation alone (`seconds_total` of our report, `total time` of stock's log): with a model this small, start-up
takes longer than the answer, and differs for reasons that have nothing to do with decoding.

Length: the 95th percentile of the right answers' length in tokens, rounded up to 32. Ours gets it as `-n`; stock's
canvas is `-ub`, prompt and answer together, which its blocks must divide. Two ways are tried: one block over the whole
canvas, so that nothing is added to it; and blocks of 32, the canvas rounded up.

Stock's settings: steps {n/4, n/2, n} x sampling {default, --top-k 1, --temp 0.05 over the whole vocabulary} x blocks
{whole, 32}. Settings with the same number of steps cost about the same, and twice the steps twice as much, so the levels
are tried from the cheapest: at the first one where any setting is right as often as ours, less 1 point, the fastest of
those is taken. If there is none, the most accurate of all is. A setting that is 20 points behind after 60 prompts is not
run further. The chosen setting and ours are then timed again in turns.

Stock sometimes loses its answer or its time, since both go through a log that is cut off at exit: such a run is repeated
and counted. Tokens kept of stock's are those of the text it prints.
"""

import argparse
import json
import math
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

BLOCK = 32
MARGIN = 0.01          # accuracy that stock may lack
HOPELESS = (60, 0.20)  # prompts after which a setting this far behind is given up
MAX_RETRIES = 5
TIMEOUT = 300          # seconds a run may take
SAMPLINGS = {
    "default": [],
    "top-k 1": ["--top-k", "1"],
    "temp 0.05": ["--temp", "0.05", "--top-k", "0", "--top-p", "1"],
}
TOTAL_TIME = re.compile(r"total time: ([0-9.]+)ms, .*\n")
LOG_PREFIX = re.compile(r"^[0-9.]+ [A-Z] ")


@dataclass
class Tally:
    """Sums over prompts."""

    n: int = 0
    n_right: int = 0
    seconds: float = 0.0
    tokens: int = 0
    forwards: int = 0
    rows: int = 0
    rows_logits: int = 0
    n_retries: int = 0
    texts: list = field(default_factory=list)

    @property
    def accuracy(self):
        return self.n_right / self.n if self.n else 0.0

    @property
    def tokens_per_second(self):
        return self.tokens / self.seconds if self.seconds else 0.0

    def count(self, task, text):
        self.n += 1
        self.n_right += text.strip() == task["answer"].strip()
        self.texts.append(text)


def run(command):
    try:
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        sys.exit(f"{command[0]}: not done after {TIMEOUT} s: is the machine busy with something else?")


def stratified(path, n):
    """The first tasks of each kind, in equal shares and file order."""
    tasks = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    kinds = list(dict.fromkeys(task["task"] for task in tasks))
    by_kind = [[task for task in tasks if task["task"] == kind] for kind in kinds]
    share = math.ceil(n / len(kinds))
    return [task for row in zip(*(group[:share] for group in by_kind)) for task in row][:n]


class Bench:
    def __init__(self, args, scratch):
        self.args = args
        self.report = scratch / "report.json"
        self.scratch = scratch
        self.tasks = stratified(args.tasks, args.prompts)
        self.n_prompt = {}

    def count_tokens(self, text):
        """Tokens of a text, by stock's tokeniser."""
        tool = self.args.stock_bin / "llama-tokenize"
        done = run([tool, "-m", self.args.model, "--ids", "--log-disable", "--no-bos", "--no-escape", "-p", text])
        return len(json.loads(done.stdout))

    def answer_length(self):
        """95th percentile of the right answers' length, end token included, rounded up to the block."""
        lengths = sorted(self.count_tokens(task["answer"]) + 1 for task in self.tasks)
        percentile = lengths[math.ceil(0.95 * len(lengths)) - 1]
        return math.ceil(percentile / BLOCK) * BLOCK

    def ours(self, task, n, tally):
        """One prompt through `llada-npu run`."""
        done = run([self.args.ours, "run", "-m", self.args.model, "-p", task["prompt"], "--no-escape", "-n", str(n),
                    "-t", str(self.args.threads), "--diffusion-json", self.report])
        if done.returncode:
            sys.exit(f"llada-npu: {done.stderr.decode()}")
        report = json.loads(self.report.read_text())
        tally.count(task, done.stdout.decode())
        tally.seconds += report["seconds_total"]
        tally.tokens += report["n_generated"]
        tally.forwards += report["forwards"]
        tally.rows += report["rows_dense"] + report["rows_padded"] + report["rows_revision"]
        tally.rows_logits += report["rows_logits"]
        self.n_prompt[task["prompt"]] = report["n_prompt"]

    def stock(self, task, n, setting, tally):
        """One prompt through stock llama-diffusion-cli."""
        steps, sampling, blocks = setting
        canvas = self.n_prompt[task["prompt"]] + n
        if blocks == "32":
            n_blocks = math.ceil(canvas / BLOCK)
            block, canvas, steps = BLOCK, n_blocks * BLOCK, n_blocks * max(1, steps * BLOCK // n)
        else:
            block = canvas
        command = [self.args.stock_bin / "llama-diffusion-cli", "-m", self.args.model, "-p", task["prompt"],
                   "--no-escape", "-t", str(self.args.threads), "-tb", str(self.args.threads), "-b", str(canvas),
                   "-ub", str(canvas), "--diffusion-steps", str(steps), "--diffusion-block-length", str(block),
                   "--seed", "1", *SAMPLINGS[sampling]]
        for _ in range(MAX_RETRIES + 1):
            done = run(command)
            log = done.stderr.decode(errors="replace")
            time = TOTAL_TIME.search(log)
            text = LOG_PREFIX.sub("", log[time.end():]).strip() if time else ""
            if done.returncode:
                sys.exit(f"stock llama-diffusion-cli: exit code {done.returncode}\n{log[-500:]}")
            if text:
                break
            tally.n_retries += 1
        n_forwards = log.count("diffusion step: ")
        tally.count(task, text)
        tally.seconds += float(time.group(1)) / 1000 if time else 0.0
        tally.forwards += n_forwards
        tally.rows += n_forwards * canvas
        tally.rows_logits += n_forwards * canvas

    def accuracy(self, n, mode):
        """Accuracy of a mode, and its name; None is the default one."""
        tasks = self.scratch / "tasks.jsonl"
        tasks.write_text("".join(json.dumps(task) + "\n" for task in self.tasks))
        done = run_long([self.args.ours, "eval", "-m", self.args.model, "--tasks", tasks, "-n", str(n), "--json",
                         "--jobs", str(self.args.threads), "-t", "1", *(["--diffusion-mode", mode] if mode else [])])
        results = json.loads(done)
        return results["overall"]["accuracy"], results["mode"]

    def choose(self, n, acc_ours):
        """Stock's setting: see the top of this file."""
        tried = {}
        for steps in (n // 4, n // 2, n):
            level = {}
            for sampling in SAMPLINGS:
                for blocks in ("whole", "32"):
                    setting = (steps, sampling, blocks)
                    level[setting] = self.try_setting(n, setting, acc_ours)
            tried |= level
            good = {setting: tally for setting, tally in level.items()
                    if tally.n == len(self.tasks) and tally.accuracy >= acc_ours - MARGIN}
            if good:
                return min(good, key=lambda setting: good[setting].seconds), True
        complete = {setting: tally for setting, tally in tried.items() if tally.n == len(self.tasks)} or tried
        return max(complete, key=lambda setting: (complete[setting].accuracy, -complete[setting].seconds)), False

    def try_setting(self, n, setting, acc_ours):
        tally = Tally()
        for task in self.tasks:
            self.stock(task, n, setting, tally)
            if tally.n == HOPELESS[0] and tally.accuracy < acc_ours - HOPELESS[1]:
                break
        steps, sampling, blocks = setting
        print(f"stock: steps {steps:>3}, {sampling:<9}, blocks {blocks:<5}: accuracy {tally.accuracy:.4f} of {tally.n}, "
              f"{tally.seconds / tally.n * 1000:.1f} ms and {tally.forwards / tally.n:.1f} forwards a prompt, "
              f"{tally.n_retries} lost answers repeated", flush=True)
        return tally

    def compare(self, n, setting):
        """Ours and stock's in turns, the one that begins changing."""
        ours, stock = Tally(), Tally()
        for index, task in enumerate(self.tasks):
            turns = [lambda: self.ours(task, n, ours), lambda: self.stock(task, n, setting, stock)]
            for turn in turns if index % 2 == 0 else reversed(turns):
                turn()
        stock.tokens = sum(self.count_tokens(text) for text in stock.texts if text)
        return ours, stock


def run_long(command):
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True)
    return done.stdout


def describe(name, tally):
    print(f"{name}: accuracy {tally.accuracy:.4f} of {tally.n}, {tally.tokens} tokens kept in {tally.seconds:.3f} s "
          f"({tally.tokens_per_second:.1f} tokens/s), {tally.forwards} forwards, {tally.rows} rows, "
          f"{tally.rows_logits} rows with logits, {tally.n_retries} lost answers repeated", flush=True)


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--tasks", type=Path, required=True)
    parser.add_argument("--ours", type=Path, required=True)
    parser.add_argument("--stock-bin", type=Path, required=True)
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--keep", type=Path, help="write the numbers of the comparison to this JSON file")
    args = parser.parse_args()
    for path in (args.model, args.tasks, args.ours, args.stock_bin / "llama-diffusion-cli"):
        if not path.exists():
            parser.error(f"{path} is missing: scripts/setup.sh builds the programs")
    return args


def main():
    args = parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench(args, Path(scratch))
        n = bench.answer_length()
        print(f"{len(bench.tasks)} prompts, -n {n}, {args.threads} threads", flush=True)
        first = Tally()
        for task in bench.tasks:
            bench.ours(task, n, first)
        _, mode = bench.accuracy(n, None)
        acc_reference, _ = bench.accuracy(n, "reference")
        print(f"ours: {mode} {first.accuracy:.4f}, reference {acc_reference:.4f}", flush=True)
        setting, eligible = bench.choose(n, first.accuracy)
        print(f"chosen: steps {setting[0]}, {setting[1]}, blocks {setting[2]}"
              f"{'' if eligible else ' (none is within 1 point of ours: the most accurate)'}", flush=True)
        ours, stock = bench.compare(n, setting)
    describe("ours ", ours)
    describe("stock", stock)
    result = {
        "speedup": ours.tokens_per_second / stock.tokens_per_second if stock.tokens_per_second else math.inf,
        "acc_ours": ours.accuracy,
        "acc_reference": acc_reference,
        "acc_stock": stock.accuracy,
        "rows_ratio": stock.rows / ours.rows,
    }
    if args.keep:
        args.keep.write_text(json.dumps({"n": n, "prompts": len(bench.tasks), "setting": setting, **result}) + "\n")
    print("RESULT " + " ".join(f"{name}={value:.4f}" for name, value in result.items()))


if __name__ == "__main__":
    main()
