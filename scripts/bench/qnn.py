#!/usr/bin/env python3
"""Compares QNN's emulation with the CPU's kernels and with the NumPy reference.

Usage: scripts/bench/qnn.py QNN-EVAL TESTS SCRATCH N_PROMPTS WEIGHTS...

QNN-EVAL is the command that starts the program of that name, TESTS the directory of models. Called by scripts/bench/qnn.sh.
"""

import json
import os
import pathlib
import shlex
import subprocess
import sys

import numpy as np
from gguf import GGUFReader

from reference.model import Model
from reference.vocab import byte_characters

TASKS = "validation.jsonl"
# Decodings of QNN-EVAL, and how names of their numbers start.
DECODINGS = {"default": "", "token_by_token": "token_"}
# Bytes by their characters in a byte-level vocabulary.
BYTES = {character: byte for byte, character in enumerate(byte_characters())}
# Tokens of an answer at most.
N_GEN = 48
# Prompts of the second start, which finds context binaries on disk.
N_SECOND = 5


def run(program, model, n_prompts, out, environment, host=()):
    """Runs qnn-eval, which compares with what it wrote into a directory `host`; returns what it wrote."""
    # Graphs of attention take half floats.
    kv = "f16" if os.environ.get("LLADA_NPU_QNN_ATTENTION") == "npu" else "f32"
    command = [*shlex.split(program), str(model), TASKS, str(n_prompts), str(N_GEN), kv, ",".join(DECODINGS), str(out), *host]
    with open(out.with_suffix(".log"), "w") as log:
        subprocess.run(command, check=True, env={**os.environ, **environment}, stdout=log, stderr=log)
    result = json.loads((out / "result.json").read_text())
    if environment["LLADA_NPU_ACCEL"] == "qnn" and not result["qnn"]:
        sys.exit(f"{model.name}: the library was given up: a call that took longer than LLADA_NPU_QNN_TIMEOUT?")
    return result


def nmse(a, b):
    """Share of the error in the power."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    return float(((a - b) ** 2).sum() / (b**2).sum())


def text_of(output, vocabulary):
    """The text of tokens of a byte-level vocabulary."""
    characters = "".join(vocabulary[token] for token in output)
    return bytes(BYTES[character] for character in characters).decode(errors="replace")


class Texts:
    """Counts of one decoding: answers that are the host's, near ties, wrong ones, and what the host's are worth."""

    def __init__(self):
        self.n, self.same, self.near, self.host_right, self.host_tokens = 0, 0, 0, 0, 0

    def add(self, what, on_host, on_qnn, is_right):
        """Counts one answer and prints how it differs."""
        if not on_host["output"]:
            sys.exit(f"{what}: no text to compare")
        self.n += 1
        self.host_right += is_right
        self.host_tokens += len(on_host["output"])
        self.same += on_host["output"] == on_qnn["output"]
        if difference := on_qnn["difference"]:
            self.near += difference["is_near_tie"]
            print(
                f"{what}: {'near tie' if difference['is_near_tie'] else 'WRONG'}: {difference['what']}; "
                f"error of logits {difference['error']:.4f}; {on_qnn['output']} instead of {on_host['output']}"
            )

    @property
    def wrong(self):
        """Answers that differ for no reason."""
        return self.n - self.same - self.near

    def __iadd__(self, other):
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)
        return self


def count_texts(tasks, host, first, vocabulary, weights):
    """Compares the answers of both sides; returns the counts by decoding."""
    texts = {name: Texts() for name in DECODINGS}
    for task, on_host, on_qnn in zip(tasks, host["prompts"], first["prompts"], strict=True):
        for name, counts in texts.items():
            answers = [side["answers"][name] for side in (on_host, on_qnn)]
            is_right = text_of(answers[0]["output"], vocabulary).strip() == task["answer"]
            counts.add(f"{weights}, {name}, {task['prompt']!r}", *answers, is_right)
    return texts


def worst_logits(model, prompts, directory):
    """The largest error of the logits in a directory against the reference."""
    reference, errors = Model.load(model), []
    for i, prompt in enumerate(prompts):
        expected = reference.logits(prompt["tokens"])
        logits = np.fromfile(directory / f"{i}.f32", np.float32)
        errors.append(nmse(logits.reshape(expected.shape), expected))
    return max(errors)


def compare(program, tests, scratch, tasks, weights):
    """Runs one model on both; returns its numbers, and the counts of its texts by decoding."""
    model = tests / "models" / f"llada-tiny-{weights}.gguf"
    cache = {"LLADA_NPU_CACHE": str(scratch / f"cache-{weights}")}
    accelerator = {"LLADA_NPU_ACCEL": "qnn", **cache}
    on_host, on_qnn, again = (scratch / f"{weights}-{name}" for name in ("host", "qnn", "second"))
    host = run(program, model, len(tasks), on_host, {"LLADA_NPU_ACCEL": "host", **cache})
    first = run(program, model, len(tasks), on_qnn, accelerator, [str(on_host)])
    second = run(program, model, min(N_SECOND, len(tasks)), again, accelerator)
    vocabulary = GGUFReader(model).fields["tokenizer.ggml.tokens"].contents()
    texts = count_texts(tasks, host, first, vocabulary, weights)
    report = first["qnn"]
    numbers = {
        "nmse": worst_logits(model, first["prompts"], on_qnn),
        "graphs": report["graphs_built"],
        "finalize_s": report["finalize_s"],
        "second": second["qnn"]["graphs_built"],
    }
    told = " ".join(
        f"{prefix}same_text={counts.same}/{counts.n} {prefix}near_ties={counts.near} "
        f"{prefix}host_right={counts.host_right}/{counts.n} {prefix}host_tokens={counts.host_tokens}"
        for prefix, counts in zip(DECODINGS.values(), texts.values())
    )
    print(
        f"{weights}: {told} nmse_max={numbers['nmse']:.2e} host_nmse_max={worst_logits(model, host['prompts'], on_host):.2e} "
        f"graphs={report['graphs_built']} contexts={report['contexts']} finalize_s={report['finalize_s']:.3f} "
        f"binary_bytes={report['binary_bytes']} executions={report['executions']} refused={sum(report['refused'].values())} "
        f"overflows={report['overflows']} second_start_graphs_built={second['qnn']['graphs_built']}",
        flush=True,
    )
    return numbers, texts


def main():
    """Runs every model and prints the sum; 1 where a text is wrong, or a graph was built a second time."""
    program, tests, scratch, n_prompts = sys.argv[1], *map(pathlib.Path, sys.argv[2:4]), int(sys.argv[4])
    lines = (tests / "tasks" / TASKS).read_text().splitlines()
    tasks = [json.loads(line) for line in lines[:n_prompts]]
    texts, results = {name: Texts() for name in DECODINGS}, []
    for weights in sys.argv[5:]:
        numbers, counted = compare(program, tests, scratch, tasks, weights)
        results.append(numbers)
        for name in DECODINGS:
            texts[name] += counted[name]

    def total(name):
        return sum(result[name] for result in results)

    told = " ".join(
        f"{prefix}same_text={texts[name].same / texts[name].n:.4f} {prefix}near_ties={texts[name].near} "
        f"{prefix}wrong_texts={texts[name].wrong}"
        for name, prefix in DECODINGS.items()
    )
    of_tokens = texts["token_by_token"]
    print(
        f"RESULT {told} token_host_right={of_tokens.host_right / of_tokens.n:.4f} "
        f"token_mean_length={of_tokens.host_tokens / of_tokens.n:.1f} "
        f"nmse_max={max(result['nmse'] for result in results):.2e} graphs={total('graphs')} "
        f"finalize_s={total('finalize_s'):.3f} second_start_graphs_built={total('second')}"
    )
    return 1 if any(counts.wrong for counts in texts.values()) or total("second") else 0


if __name__ == "__main__":
    sys.exit(main())
