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

from reference.model import Model

# Tokens of an answer at most.
N_GEN = 48
# Prompts of the second start, which finds context binaries on disk.
N_SECOND = 5


def run(program, model, n_prompts, out, environment):
    """Runs qnn-eval; returns what it wrote."""
    command = [*shlex.split(program), str(model), "validation.jsonl", str(n_prompts), str(N_GEN), str(out)]
    with open(out.with_suffix(".log"), "w") as log:
        subprocess.run(command, check=True, env={**os.environ, **environment}, stdout=log, stderr=log)
    return json.loads((out / "result.json").read_text())


def nmse(a, b):
    """Share of the error in the power."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    return float(((a - b) ** 2).sum() / (b**2).sum())


def compare(program, tests, scratch, n_prompts, weights):
    """Runs one model on both; returns its numbers."""
    model = tests / "models" / f"llada-tiny-{weights}.gguf"
    cache = {"LLADA_NPU_CACHE": str(scratch / f"cache-{weights}")}
    accelerator = {"LLADA_NPU_ACCEL": "qnn", **cache}
    host = run(program, model, n_prompts, scratch / f"{weights}-host", {"LLADA_NPU_ACCEL": "host", **cache})
    first = run(program, model, n_prompts, scratch / f"{weights}-qnn", accelerator)
    n_second = min(N_SECOND, n_prompts)
    second = run(program, model, n_second, scratch / f"{weights}-second", accelerator)
    reference = Model.load(model)
    n_same, errors, host_errors = 0, [], []
    for i, (on_host, on_qnn) in enumerate(zip(host["prompts"], first["prompts"])):
        same = on_host["output"] == on_qnn["output"]
        n_same += same
        expected = reference.logits(on_qnn["tokens"])
        logits = [np.fromfile(scratch / f"{weights}-{name}" / f"{i}.f32", np.float32) for name in ("qnn", "host")]
        of_qnn, of_host = (x.reshape(expected.shape) for x in logits)
        errors.append(nmse(of_qnn, expected))
        host_errors.append(nmse(of_host, expected))
        if not same:
            print(f"{weights}: other text for {on_qnn['prompt']!r}: {on_qnn['output']} instead of {on_host['output']}")
    report = first["qnn"]
    print(
        f"{weights}: same_text={n_same}/{n_prompts} nmse_max={max(errors):.2e} host_nmse_max={max(host_errors):.2e} "
        f"graphs={report['graphs_built']} contexts={report['contexts']} finalize_s={report['finalize_s']:.3f} "
        f"binary_bytes={report['binary_bytes']} executions={report['executions']} refused={sum(report['refused'].values())} "
        f"overflows={report['overflows']} second_start_graphs_built={second['qnn']['graphs_built']}",
        flush=True,
    )
    return n_same, max(errors), report, second["qnn"]


def main():
    """Runs every model and prints the sum."""
    program, tests, scratch, n_prompts = sys.argv[1], *map(pathlib.Path, sys.argv[2:4]), int(sys.argv[4])
    results = [compare(program, tests, scratch, n_prompts, weights) for weights in sys.argv[5:]]
    same = sum(n for n, *_ in results) / (n_prompts * len(results))
    print(
        f"RESULT same_text={same:.4f} nmse_max={max(error for _, error, *_ in results):.2e} "
        f"graphs={sum(report['graphs_built'] for *_, report, _ in results)} "
        f"finalize_s={sum(report['finalize_s'] for *_, report, _ in results):.3f} "
        f"second_start_graphs_built={sum(second['graphs_built'] for *_, second in results)}"
    )


if __name__ == "__main__":
    main()
