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


def run(program, model, n_prompts, out, environment, host=()):
    """Runs qnn-eval, which compares with what it wrote into a directory `host`; returns what it wrote."""
    command = [*shlex.split(program), str(model), "validation.jsonl", str(n_prompts), str(N_GEN), str(out), *host]
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


def compare(program, tests, scratch, n_prompts, weights):
    """Runs one model on both; returns its numbers."""
    model = tests / "models" / f"llada-tiny-{weights}.gguf"
    cache = {"LLADA_NPU_CACHE": str(scratch / f"cache-{weights}")}
    accelerator = {"LLADA_NPU_ACCEL": "qnn", **cache}
    on_host = scratch / f"{weights}-host"
    host = run(program, model, n_prompts, on_host, {"LLADA_NPU_ACCEL": "host", **cache})
    first = run(program, model, n_prompts, scratch / f"{weights}-qnn", accelerator, [str(on_host)])
    n_second = min(N_SECOND, n_prompts)
    second = run(program, model, n_second, scratch / f"{weights}-second", accelerator)
    reference = Model.load(model)
    n_same, n_near, errors, host_errors = 0, 0, [], []
    for i, (on_host, on_qnn) in enumerate(zip(host["prompts"], first["prompts"])):
        n_same += on_host["output"] == on_qnn["output"]
        if difference := on_qnn["difference"]:
            n_near += difference["is_near_tie"]
            print(
                f"{weights}: {'near tie' if difference['is_near_tie'] else 'WRONG'} for {on_qnn['prompt']!r}: {difference['what']}; "
                f"error of logits {difference['error']:.4f}; {on_qnn['output']} instead of {on_host['output']}"
            )
        expected = reference.logits(on_qnn["tokens"])
        logits = [np.fromfile(scratch / f"{weights}-{name}" / f"{i}.f32", np.float32) for name in ("qnn", "host")]
        of_qnn, of_host = (x.reshape(expected.shape) for x in logits)
        errors.append(nmse(of_qnn, expected))
        host_errors.append(nmse(of_host, expected))
    report = first["qnn"]
    print(
        f"{weights}: same_text={n_same}/{n_prompts} near_ties={n_near} nmse_max={max(errors):.2e} host_nmse_max={max(host_errors):.2e} "
        f"graphs={report['graphs_built']} contexts={report['contexts']} finalize_s={report['finalize_s']:.3f} "
        f"binary_bytes={report['binary_bytes']} executions={report['executions']} refused={sum(report['refused'].values())} "
        f"overflows={report['overflows']} second_start_graphs_built={second['qnn']['graphs_built']}",
        flush=True,
    )
    return {
        "same": n_same,
        "wrong": n_prompts - n_same - n_near,
        "near": n_near,
        "nmse": max(errors),
        "graphs": report["graphs_built"],
        "finalize_s": report["finalize_s"],
        "second": second["qnn"]["graphs_built"],
    }


def main():
    """Runs every model and prints the sum; 1 where a text is wrong, or a graph was built a second time."""
    program, tests, scratch, n_prompts = sys.argv[1], *map(pathlib.Path, sys.argv[2:4]), int(sys.argv[4])
    results = [compare(program, tests, scratch, n_prompts, weights) for weights in sys.argv[5:]]

    def total(name):
        return sum(result[name] for result in results)

    print(
        f"RESULT same_text={total('same') / (n_prompts * len(results)):.4f} near_ties={total('near')} wrong_texts={total('wrong')} "
        f"nmse_max={max(result['nmse'] for result in results):.2e} graphs={total('graphs')} "
        f"finalize_s={total('finalize_s'):.3f} second_start_graphs_built={total('second')}"
    )
    return 1 if total("wrong") or total("second") else 0


if __name__ == "__main__":
    sys.exit(main())
