"""Command line of the reference, for scripts and for tests in other languages: `python -m reference.cli COMMAND …`.

Run with `tests/` in PYTHONPATH. Floats are written as little-endian f32 without a header; token lists as JSON lines.
"""

from __future__ import annotations

import argparse
import copy
import functools
import json
import math
import multiprocessing
import os
import sys
from dataclasses import asdict, replace
from pathlib import Path

# Matrices are small: more BLAS threads than one only disturb the other processes. Has to be said before NumPy is loaded.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np  # noqa: E402

from . import adapter, corrupt, decode, make_gguf, twin  # noqa: E402
from . import full as full_mode  # noqa: E402
from .cached import Options, cached  # noqa: E402
from .model import Model  # noqa: E402

# Options of mode `full` alone, and their types.
FULL = {
    "tau_visible": float, "tau_stable": float, "draft_threshold": float, "tau_replace": float, "tau_remask": float,
    "max_revisions": int, "budget": int, "radius": int, "final_sweep": int, "lookahead_trigger": int, "lookahead_max": int,
}
DREAM_ALGORITHMS = ("origin", "maskgit_plus", "topk_margin", "entropy")


def integers(text: str) -> list[int]:
    """`1,2,3`, or `@FILE` with integers separated by commas or white space."""
    if text.startswith("@"):
        text = Path(text[1:]).read_text()
    return [int(word) for word in text.replace(",", " ").split()]


@functools.lru_cache(maxsize=2)
def load_file(path: str, dtype: type) -> Model:
    """A model of a file; the last ones are kept for the commands of a `batch`."""
    return Model.load(path, dtype)


def load(args: argparse.Namespace) -> Model:
    """The model of the arguments."""
    model = copy.copy(load_file(args.model, np.float64 if args.f64 else np.float32))
    if getattr(args, "shift", None) is not None:
        model.config = replace(model.config, shift_logits=args.shift)
    for path, scale in getattr(args, "adapter", []):
        model = adapter.add(model, Path(path), float(scale))
    return model


def write_f32(path: str, arrays: list[np.ndarray]) -> None:
    """Writes the arrays one after the other."""
    with open(path, "wb") as out:
        for array in arrays:
            out.write(np.ascontiguousarray(array, dtype="<f4").tobytes())


def command_logits(args: argparse.Namespace) -> None:
    """Logits of one forward over all tokens."""
    positions = integers(args.positions) if args.positions else None
    logits = load(args).logits(integers(args.tokens), positions)
    write_f32(args.out, [logits])
    print(json.dumps({"rows": logits.shape[0], "n_vocab": logits.shape[1], "argmax": logits.argmax(axis=1).tolist()}))


def command_forward(args: argparse.Namespace) -> None:
    """A list of forwards that see K/V of earlier ones; see README.md for the request."""
    model = load(args)
    requests = json.loads(Path(args.request).read_text() if args.request != "-" else sys.stdin.read())
    done, logits = [], []
    for request in requests:
        past = None
        if request.get("past"):
            sources = request["past"]
            past = [
                tuple(np.stack([done[f].kv[il][which][row] for f, row in sources]) for which in (0, 1))
                for il in range(model.config.n_layer)
            ]
        done.append(
            model.forward(
                request["tokens"], request.get("positions"), past, request.get("visible"), request.get("logits")
            )
        )
        logits.append(done[-1].logits)
    write_f32(args.out, logits)
    print(json.dumps({"rows": [len(each) for each in logits], "n_vocab": model.config.n_vocab}))


def decode_one(model: Model, prompt: list[int], args: argparse.Namespace) -> decode.Result:
    """Decodes a prompt as the arguments say."""
    suppress = decode.Suppress(args.logits_eos_inf, args.confidence_eos_eot_inf)
    if args.mode == "llada":
        return decode.llada(model, prompt, args.gen, args.block, args.steps, args.cfg, suppress)
    if args.mode == "dream":
        uniform = None
        if args.uniform:
            table = json.loads(Path(args.uniform).read_text())
            uniform = lambda position, step: table[step][position]  # noqa: E731
        return decode.dream(model, prompt, args.gen, args.steps or args.gen, args.algorithm, args.eps, uniform)
    suffix = args.suffix or ("none" if args.mode == "full" else "all")
    suffix = suffix if suffix in ("none", "all", "cached") else int(suffix)
    if args.mode == "full":
        given = {name: getattr(args, name) for name in FULL if getattr(args, name) is not None}
        ends = tuple(integers(args.end_ids))
        options = full_mode.Options(args.gen, args.block, suffix=suffix, refresh_blocks=args.refresh_blocks, end_ids=ends, **given)
        return full_mode.full(model, prompt, options)
    options = Options(
        n_gen=args.gen,
        block_length=args.block,
        threshold=args.threshold,
        suffix=suffix,
        refresh_blocks=args.refresh_blocks,
        refresh_every_step=args.refresh_every_step,
        end_ids=tuple(integers(args.end_ids)),
        suppress=suppress,
    )
    return cached(model, prompt, options)


class Job:
    """Decodes in worker processes, each of which loads the model once."""

    args: argparse.Namespace
    model: Model

    @classmethod
    def start(cls, args: argparse.Namespace) -> None:
        """Prepares a worker."""
        cls.args, cls.model = args, load(args)

    @classmethod
    def run(cls, prompt: list[int]) -> decode.Result:
        """Decodes one prompt."""
        return decode_one(cls.model, prompt, cls.args)


def results(args: argparse.Namespace, prompts):
    """Results of the prompts, in order."""
    if args.jobs <= 1:
        Job.start(args)
        yield from map(Job.run, prompts)
        return
    with multiprocessing.get_context("spawn").Pool(args.jobs, Job.start, (args,)) as pool:
        yield from pool.imap(Job.run, prompts)


def line(result: decode.Result, commits: bool) -> dict:
    """A result as JSON; infinite gaps become null."""
    out = {k: None if v == math.inf else v for k, v in asdict(result).items()}
    if not commits:
        del out["commits"]
    return out


def command_decode(args: argparse.Namespace) -> None:
    """Decodes every prompt of a file: a JSON array of ids per line, or an object with `tokens`."""
    lines = [json.loads(text) for text in Path(args.prompts).read_text().splitlines() if text.strip()]
    prompts = [each["tokens"] if isinstance(each, dict) else each for each in lines]
    with open(args.out, "w") as out:
        for result in results(args, prompts):
            out.write(json.dumps(line(result, args.commits)) + "\n")
            out.flush()


def command_golden(args: argparse.Namespace) -> None:
    """Draws random prompts and keeps those whose decoding has no near-tie: lines of `prompt` and the result."""
    model = load(args)
    special = {model.config.mask_id, model.config.eos_id, model.config.eot_id}
    ordinary = np.array([i for i in range(model.config.n_vocab) if i not in special])
    rng = np.random.default_rng(args.seed)
    kept = drawn = 0
    with open(args.out, "w") as out:
        while kept < args.count:
            prompt = rng.choice(ordinary, rng.integers(args.min_prompt, args.max_prompt + 1)).tolist()
            drawn += 1
            result = decode_one(model, prompt, args)
            if min(result.token_gap, result.order_gap) < args.min_gap:
                if drawn >= 20 * args.count:
                    raise SystemExit(f"only {kept} of {drawn} prompts have no decision closer than {args.min_gap}")
                continue
            out.write(json.dumps({"prompt": prompt} | line(result, args.commits)) + "\n")
            kept += 1
    print(json.dumps({"kept": kept, "drawn": drawn}))


def command_make(args: argparse.Namespace) -> None:
    """Makes a model with random weights."""
    shape = make_gguf.SHAPES[args.shape]
    given = {k: v for k in asdict(shape) if (v := getattr(args, k)) is not None}
    spec = make_gguf.Spec(
        arch=args.arch,
        shape=replace(shape, **given),
        type=args.type,
        tensor_types=tuple(tuple(pair.split("=", 1)) for pair in args.tensor_type),
        tied=args.tied,
        fused_qkv=args.fused_qkv,
        bias=args.bias,
        gain=args.gain,
        attention_gain=args.attention_gain,
        shift=args.shift_key if args.shift_key is not None or args.arch != "llada" else False,
        mask_key=not args.no_mask_key,
        zero_mask_row=args.zero_mask_row,
        context=args.context,
        freq_base=args.freq_base,
        seed=args.seed,
        quick=args.quick,
    )
    out = Path(args.out)
    make_gguf.make(out, spec)
    parts = [out]
    if args.split_max_tensors:
        if not args.splitter:
            raise SystemExit("--split-max-tensors needs --splitter (llama-gguf-split)")
        parts = make_gguf.split(out, args.split_max_tensors, args.splitter)
    print(json.dumps({"files": [str(part) for part in parts]}))


def command_adapter(args: argparse.Namespace) -> None:
    """Makes a LoRA adapter with random factors for a model."""
    n = adapter.make(
        Path(args.model), Path(args.out), args.rank, args.alpha, args.type, args.only, args.seed, args.gain
    )
    print(json.dumps({"matrices": n}))


def command_twin(args: argparse.Namespace) -> None:
    """Relabels a diffusion model as its autoregressive twin."""
    print(json.dumps({"architecture": twin.twin(Path(args.model), Path(args.out))}))


def command_corrupt(args: argparse.Namespace) -> None:
    """Makes broken variants of a model."""
    print(json.dumps({"files": len(corrupt.write_all(Path(args.model), Path(args.out)))}))


def command_batch(args: argparse.Namespace) -> None:
    """Runs a list of commands in one process: a JSON array of arguments per line."""
    for text in Path(args.commands).read_text().splitlines():
        command = parser().parse_args(json.loads(text))
        command.run(command)


def boolean(text: str) -> bool:
    """`true` or `false`."""
    return {"true": True, "false": False}[text]


def add_decode_arguments(p: argparse.ArgumentParser) -> None:
    """Arguments of `decode` and `golden`."""
    p.add_argument("--mode", choices=("llada", "dream", "cached", "full"), required=True)
    p.add_argument("--gen", type=int, required=True, help="positions to generate")
    p.add_argument("--block", type=int, default=32, help="block length (llada, cached, full)")
    p.add_argument("--steps", type=int, help="steps in all (llada, dream); default --gen")
    p.add_argument("--cfg", type=float, default=0.0, help="classifier-free guidance scale (llada)")
    p.add_argument("--logits-eos-inf", action="store_true", help="llada, cached")
    p.add_argument("--confidence-eos-eot-inf", action="store_true", help="llada, cached")
    p.add_argument("--algorithm", choices=DREAM_ALGORITHMS, default="entropy", help="dream")
    p.add_argument("--eps", type=float, default=1e-3, help="last time of the schedule (dream)")
    p.add_argument("--uniform", help="JSON file for `origin`: per step, a number per canvas position (dream)")
    p.add_argument("--threshold", type=float, default=0.9, help="cached; inf commits one position per step")
    p.add_argument("--suffix", help="none (default of full), all (of cached), cached, or the number of masks shown")
    p.add_argument("--refresh-blocks", type=int, default=1, help="cached, full; 0 = never")
    p.add_argument("--refresh-every-step", action="store_true", help="cached")
    p.add_argument("--end-ids", default="", help="ids that end the canvas when committed (cached, full)")
    for name, number in FULL.items():
        p.add_argument("--" + name.replace("_", "-"), type=number, help="full")
    p.add_argument("--shift", type=boolean, help="overrides the file's shift_logits")
    p.add_argument("--commits", action="store_true", help="also write the positions each forward committed")


def add_make_arguments(p: argparse.ArgumentParser) -> None:
    """Arguments of `make`."""
    p.add_argument("--arch", choices=("llada", "dream", "llama", "qwen2"), required=True)
    p.add_argument("--shape", choices=make_gguf.SHAPES, default="tiny", help="dimensions, each can be overridden")
    for name in asdict(make_gguf.SHAPES["tiny"]):
        p.add_argument("--" + name.replace("_", "-"), type=int)
    p.add_argument("--type", default="F16", choices=make_gguf.TYPES, help="of the matrices")
    p.add_argument("--tensor-type", action="append", default=[], metavar="REGEX=TYPE", help="type of some matrices")
    p.add_argument("--tied", action="store_true", help="no output.weight")
    p.add_argument("--fused-qkv", action="store_true")
    p.add_argument("--bias", type=float, help="standard deviation of the Q/K/V biases; default 3 for dream and qwen2, else none")
    p.add_argument("--gain", type=float, default=4.0, help="standard deviation of the logits")
    p.add_argument("--attention-gain", type=float, default=1.5, help="of Q and K; 3 for varied text of F32 models")
    p.add_argument("--shift-key", type=boolean, help="diffusion.shift_logits; default false for llada, no key for dream")
    p.add_argument("--no-mask-key", action="store_true")
    p.add_argument("--zero-mask-row", action="store_true", help="keeps MASK's logit at 0, far from the best")
    p.add_argument("--context", type=int, default=4096)
    p.add_argument("--freq-base", type=float, default=1000.0)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--quick", action="store_true", help="random blocks instead of quantised normal values, for large shapes")
    p.add_argument("--split-max-tensors", type=int)
    p.add_argument("--splitter", help="path of llama-gguf-split")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="reference.cli", description=__doc__)
    commands = top.add_subparsers(required=True)

    def command(name: str, run, *, out: str, reads_model: bool = True, computes: bool = True) -> argparse.ArgumentParser:
        p = commands.add_parser(name, help=run.__doc__)
        p.set_defaults(run=run)
        p.add_argument("--out", required=True, help=out)
        if reads_model:
            p.add_argument("--model", required=True, help="GGUF file")
        if reads_model and computes:
            p.add_argument("--f64", action="store_true", help="compute in float64")
        return p

    p = command("logits", command_logits, out="f32 [n_tokens, n_vocab]")
    p.add_argument("--tokens", required=True, help="1,2,3 or @FILE")
    p.add_argument("--positions", help="1,2,3 or @FILE; default 0,1,…")
    p.add_argument("--adapter", nargs=2, action="append", default=[], metavar=("FILE", "SCALE"), help="LoRA adapter, and its scale")
    p = command("forward", command_forward, out="f32 of all wanted rows, in order")
    p.add_argument("--request", default="-", help="JSON file, - for stdin")
    p = command("decode", command_decode, out="JSON lines")
    p.add_argument("--prompts", required=True, help="JSON lines of token ids")
    p.add_argument("--jobs", type=int, default=1, help="processes")
    add_decode_arguments(p)
    p = command("golden", command_golden, out="JSON lines")
    p.add_argument("--count", type=int, required=True, help="prompts wanted")
    p.add_argument("--min-gap", type=float, default=1e-3, help="closest decision allowed")
    p.add_argument("--min-prompt", type=int, default=4)
    p.add_argument("--max-prompt", type=int, default=40)
    p.add_argument("--seed", type=int, default=1)
    add_decode_arguments(p)
    add_make_arguments(command("make", command_make, out="GGUF file", reads_model=False))
    command("twin", command_twin, out="GGUF file", computes=False)
    p = command("adapter", command_adapter, out="GGUF file", computes=False)
    p.add_argument("--rank", type=int, default=16)
    p.add_argument("--alpha", type=float, default=16.0, help="0: scales are taken as they are")
    p.add_argument("--type", default="F16", choices=make_gguf.VALUE_TYPES, help="of the factors")
    p.add_argument("--only", default=adapter.ALL, metavar="REGEX", help="matrices that have factors, without `blk.N.` and `.weight`")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--gain", type=float, default=0.5, help="size of the addition to a product, at scale 1, of the product's")
    command("corrupt", command_corrupt, out="directory", computes=False)
    p = commands.add_parser("batch", help=command_batch.__doc__)
    p.set_defaults(run=command_batch)
    p.add_argument("--commands", required=True, help="JSON lines")
    return top


if __name__ == "__main__":
    arguments = parser().parse_args()
    arguments.run(arguments)
