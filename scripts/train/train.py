"""Trains the model: masked-diffusion cross-entropy over canvases of varying length.

A canvas is the prompt and `n_answer` positions behind it (the answer, then EOS), and nothing beyond: neither the length
of the tail nor what follows may matter to the model. Half the canvases are masked at a uniform random ratio; half are
states of block-wise decoding (everything left of a block visible, the block masked in part, everything right masked).

usage: train.py OUTPUT_DIR [--steps N] [--resume CHECKPOINT]
writes OUTPUT_DIR/tokenizer.json, OUTPUT_DIR/params.npz and every 500 steps OUTPUT_DIR/checkpoint-STEP.npz
"""

import argparse
import random
import time
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from tokenizers import Tokenizer

import tasks
from model import Config, fake_q4_0, fast_product, forward, init_params, matrix_shapes
from vocabulary import EOS, MASK, chat_prompt, train_tokenizer

TASK_WEIGHTS = {"add": 3, "word": 10, "sort": 4, "reverse": 1.5, "spell": 2, "json": 1.5}
WIDTHS = (48, 64, 96, 128, 160)
TOKENS_PER_BATCH = 3072
POOL_SIZE = 8192
MAX_ANSWER = 96
EOS_TAIL_WEIGHT = 0.1
MUON_LR, ADAM_LR, WEIGHT_DECAY = 0.02, 3e-3, 2e-3
WARMUP_STEPS = 100
FINAL_LR_SHARE = 0.02
LONG_CANVAS_FROM, QUANTISE_FROM = 0.8, 0.8
CHECKPOINT_EVERY = 500


def answer_positions(rng, n_prompt, n_answer, long_canvases):
    """Number of canvas positions behind the prompt: mostly just above the answer's length at first, all of decoding's
    canvases later (fixed lengths, whole batches of 128 and 160, and suffixes that end before the answer does)."""
    kind = rng.random()
    if not long_canvases and kind < 0.8 or kind < 0.35:
        return n_answer + 1 + rng.randrange(12)
    if kind < 0.55:
        return rng.randint(n_answer + 1, MAX_ANSWER)
    if kind < 0.75:
        return rng.choice((64, 96))
    if kind < 0.83:
        return rng.choice((128, 160)) - n_prompt
    return rng.randint(12, 64)


def mask_positions(rng, n, n_text):
    """Which of `n` positions are masked; blocks are mostly taken where the `n_text` positions of text and EOS are."""
    masked = np.zeros(n, bool)
    if rng.random() < 0.5:
        masked[rng.random(n) < rng.uniform(0.05, 1)] = True
    else:
        block = rng.choice((8, 16, 32, 32, 64))
        start = rng.integers(0, -(-(n_text if rng.random() < 0.85 else n) // block)) * block
        end = min(start + block, n)
        masked[end:] = True
        masked[start:end] = rng.random(end - start) < rng.uniform(0.05, 1)
    if not masked.any():
        masked[rng.integers(n)] = True
    return masked


class BatchStream:
    """Draws training canvases and yields them in batches of one width (prompt and answer, rounded up)."""

    def __init__(self, tokenizer, seed, rows_multiple):
        self.tokenizer = tokenizer
        self.rows = {width: TOKENS_PER_BATCH // width // rows_multiple * rows_multiple for width in WIDTHS}
        self.rng = random.Random(seed)
        self.mask_rng = np.random.default_rng(seed)
        self.waiting = {width: [] for width in WIDTHS}
        self.long_canvases = False

    def refill(self):
        names, weights = list(TASK_WEIGHTS), list(TASK_WEIGHTS.values())
        pairs = [tasks.draw(task, "train", self.rng) for task in self.rng.choices(names, weights, k=POOL_SIZE)]
        prompts = self.tokenizer.encode_batch([chat_prompt(prompt) for prompt, _ in pairs])
        answers = self.tokenizer.encode_batch([answer for _, answer in pairs])
        for prompt, answer in zip(prompts, answers):
            prompt, answer = prompt.ids, answer.ids
            n = answer_positions(self.rng, len(prompt), len(answer), self.long_canvases)
            width = next(width for width in WIDTHS if width >= len(prompt) + n)
            self.waiting[width].append((prompt, answer, n))

    def next(self):
        """A batch: tokens in, targets and loss weights `[rows, width]`, lengths `[rows]`."""
        ready = [width for width in WIDTHS if len(self.waiting[width]) >= self.rows[width]]
        while not ready:
            self.refill()
            ready = [width for width in WIDTHS if len(self.waiting[width]) >= self.rows[width]]
        counts = [len(self.waiting[width]) * width for width in ready]
        width = self.rng.choices(ready, counts)[0]
        rows = self.rows[width]
        canvases, self.waiting[width] = self.waiting[width][:rows], self.waiting[width][rows:]
        target = np.full((rows, width), EOS, np.int32)
        tokens = np.full((rows, width), EOS, np.int32)
        weight = np.zeros((rows, width), np.float32)
        length = np.zeros(rows, np.int32)
        for row, (prompt, answer, n) in enumerate(canvases):
            start, length[row] = len(prompt), len(prompt) + n
            target[row, :start] = prompt
            target[row, start:length[row]] = (answer + [EOS] * n)[:n]
            masked = mask_positions(self.mask_rng, n, min(n, len(answer) + 1))
            tokens[row] = target[row]
            tokens[row, start:length[row]][masked] = MASK
            weight[row, start:length[row]] = masked * np.where(np.arange(n) <= len(answer), 1, EOS_TAIL_WEIGHT)
        return tokens, target, weight, length


def orthogonalise(stack, mesh):
    """Newton-Schulz iteration of Muon on a stack of matrices, which the devices share."""
    padding = -len(stack) % mesh.size
    stack = jnp.concatenate((stack, jnp.zeros((padding, *stack.shape[1:]))))
    stack = jax.lax.with_sharding_constraint(stack, NamedSharding(mesh, PartitionSpec("batch")))
    x = stack / (jnp.linalg.norm(stack, axis=(1, 2), keepdims=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.transpose(0, 2, 1)
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x[:len(x) - padding]


def muon_update(momenta, mesh):
    """Orthogonalised updates; matrices of one shape (up to transposition) share a stack."""
    groups = {}
    for name, value in momenta.items():
        groups.setdefault(tuple(sorted(value.shape)), []).append(name)
    updates = {}
    for shape, names in groups.items():
        flips = [momenta[name].shape != shape for name in names]
        stack = orthogonalise(jnp.stack([momenta[n].T if flip else momenta[n] for n, flip in zip(names, flips)]), mesh)
        for name, flip, update in zip(names, flips, stack):
            rows, cols = momenta[name].shape
            updates[name] = (update.T if flip else update) * max(1, rows / cols) ** 0.5
    return updates


def init_state(params):
    """Zero moments: Muon uses the first alone, Adam both."""
    return {part: {name: jnp.zeros_like(value) for name, value in params.items()} for part in ("momentum", "second")}


@partial(jax.jit, static_argnames=("config", "mesh"), donate_argnums=(0, 1))
def train_step(params, state, batch, step, lr_share, quantise, config, mesh):
    """One update: Muon for the block matrices, Adam for the rest; `quantise` trains through Q4_0 block matrices."""
    tokens, target, weight, length = batch
    matrices = matrix_shapes(config).keys()

    def loss_of(params):
        used = {name: jnp.where(quantise, fake_q4_0(value), value) if name in matrices else value
                for name, value in params.items()}
        log_probs = jax.nn.log_softmax(forward(used, tokens, length, config, fast_product))
        picked = jnp.take_along_axis(log_probs, target[..., None], axis=-1)[..., 0]
        return -(picked * weight).sum() / weight.sum()

    loss, grads = jax.value_and_grad(loss_of)(params)
    momentum, second = dict(state["momentum"]), dict(state["second"])
    nesterov = {}
    for name in matrices:
        momentum[name] = 0.95 * momentum[name] + grads[name]
        nesterov[name] = grads[name] + 0.95 * momentum[name]
    updates = {name: MUON_LR * update for name, update in muon_update(nesterov, mesh).items()}
    for name in params.keys() - matrices:
        momentum[name] = 0.9 * momentum[name] + 0.1 * grads[name]
        second[name] = 0.98 * second[name] + 0.02 * grads[name] ** 2
        mean, square = momentum[name] / (1 - 0.9 ** step), second[name] / (1 - 0.98 ** step)
        updates[name] = ADAM_LR * mean / (jnp.sqrt(square) + 1e-8)
    params = {name: value - lr_share * (updates[name] + (WEIGHT_DECAY * value if name in matrices else 0))
              for name, value in params.items()}
    return params, {"momentum": momentum, "second": second}, loss


def lr_share(step, n_steps):
    """Linear warm-up, then a cosine down to FINAL_LR_SHARE."""
    if step < WARMUP_STEPS:
        return (step + 1) / WARMUP_STEPS
    progress = (step - WARMUP_STEPS) / (n_steps - WARMUP_STEPS)
    return FINAL_LR_SHARE + (1 - FINAL_LR_SHARE) * 0.5 * (1 + np.cos(np.pi * progress))


def save_checkpoint(path, params, state, step):
    parts = {"params": params, **state}
    np.savez(path, step=step, **{f"{part}/{name}": value for part in parts for name, value in parts[part].items()})


def load_checkpoint(path):
    """Parameters, optimiser state and the number of steps done."""
    parts = {"params": {}, "momentum": {}, "second": {}}
    with np.load(path) as file:
        for key in file.files:
            if key != "step":
                part, name = key.split("/")
                parts[part][name] = jnp.asarray(file[key])
        return parts.pop("params"), parts, int(file["step"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--steps", type=int, default=10500)
    parser.add_argument("--resume", type=Path)
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    tokenizer_file = str(args.output / "tokenizer.json")
    tokenizer = Tokenizer.from_file(tokenizer_file) if args.resume else train_tokenizer()
    tokenizer.save(tokenizer_file)
    config = Config()
    params, first_step = init_params(config, seed=0), 0
    state = init_state(params)
    if args.resume:
        params, state, first_step = load_checkpoint(args.resume)
    mesh = Mesh(np.array(jax.devices()), ("batch",))
    params, state = jax.device_put((params, state), NamedSharding(mesh, PartitionSpec()))
    stream = BatchStream(tokenizer, tasks.SPLIT_SEEDS["train"] + first_step, rows_multiple=mesh.size)
    print(f"{sum(value.size for value in params.values())} parameters, {args.steps} steps", flush=True)
    started, losses = time.time(), []
    for step in range(first_step, args.steps):
        stream.long_canvases = step >= LONG_CANVAS_FROM * args.steps
        quantise = step >= QUANTISE_FROM * args.steps and step % 2 == 0
        batch = jax.device_put(stream.next(), NamedSharding(mesh, PartitionSpec("batch")))
        params, state, loss = train_step(params, state, batch, step + 1.0, lr_share(step, args.steps), quantise,
                                         config, mesh)
        losses.append(loss)
        if (step + 1) % 100 == 0:
            print(f"step {step + 1} loss {np.mean(losses):.4f} {time.time() - started:.0f} s", flush=True)
            losses = []
        if (step + 1) % CHECKPOINT_EVERY == 0 or step + 1 == args.steps:
            save_checkpoint(args.output / f"checkpoint-{step + 1}.npz", params, state, step + 1)
    np.savez(args.output / "params.npz", **params)


if __name__ == "__main__":
    main()
