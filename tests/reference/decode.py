"""The official decoding schedules of LLaDA and Dream at temperature 0: full sequence, no cache.

Shared conventions (also of `cached.py`):

* confidence is a float32 softmax over the whole vocabulary, MASK included;
* MASK is never emitted: the token of a position is the best of all other ids, the lowest id on ties;
* positions of equal confidence are taken from left to right;
* with shifted logits position i is predicted by row i - 1, position 0 by row 0.

A decision between two nearly equal numbers may fall the other way in an implementation that rounds differently. Every
result therefore says how close its closest decisions were (`token_gap`, `order_gap`), so that a comparison can tell a
near-tie from an error.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from .model import Model

# Uniform number in [0, 1) of a canvas position in a step; what `origin` draws from.
Uniform = Callable[[int, int], float]


@dataclass
class Result:
    """Outcome of a decoding.

    `commits` lists per forward the canvas positions it committed. `token_gap` is the smallest difference of logits between a
    committed token and the next best; `order_gap` the smallest difference of log confidences (of confidences for `entropy`)
    between a position that was committed and one that was not, or between a confidence and the threshold.
    """

    tokens: list[int] = field(default_factory=list)
    forwards: int = 0
    rows: int = 0
    commits: list[list[int]] = field(default_factory=list)
    token_gap: float = math.inf
    order_gap: float = math.inf


@dataclass(frozen=True)
class Suppress:
    """LLaDA's two ways of keeping EOS away (names of its code)."""

    logits_eos_inf: bool = False
    confidence_eos_eot_inf: bool = False


@dataclass
class Prediction:
    """Per predicted position: token, confidence, and how far ahead of the next best token it is (in logits)."""

    token: np.ndarray
    confidence: np.ndarray
    gap: np.ndarray


def softmax(logits: np.ndarray) -> np.ndarray:
    """Row-wise softmax in float32."""
    logits = logits.astype(np.float32)
    p = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return p / p.sum(axis=-1, keepdims=True)


def best_tokens(logits: np.ndarray, mask_id: int) -> tuple[np.ndarray, np.ndarray]:
    """The best id that is not MASK of every row, and its lead over the next best such id."""
    emitted = logits.astype(np.float32)
    emitted[:, mask_id] = -np.inf
    token = emitted.argmax(axis=1)
    best = emitted.max(axis=1)
    emitted[np.arange(len(token)), token] = -np.inf
    return token, best - emitted.max(axis=1)


def low_confidence(model: Model, logits: np.ndarray, suppress: Suppress) -> Prediction:
    """LLaDA's prediction: argmax and its probability."""
    c = model.config
    logits = logits.astype(np.float32)
    if suppress.logits_eos_inf:
        logits[:, c.eos_id] = -np.inf
    token, gap = best_tokens(logits, c.mask_id)
    if suppress.confidence_eos_eot_inf:
        logits[:, [c.eos_id, c.eot_id]] = -np.inf
    return Prediction(token, softmax(logits)[np.arange(len(token)), token], gap)


def by_confidence(confidence: np.ndarray) -> np.ndarray:
    """Indices from the most to the least confident; equal ones in their order."""
    return np.argsort(-confidence, kind="stable")


def log_distance(a: float, b: float) -> float:
    """|ln a - ln b|; infinite with a zero, which comes from suppression and not from rounding."""
    return math.inf if a == 0 or b == 0 else abs(math.log(a) - math.log(b))


def predictor_rows(model: Model, positions: np.ndarray) -> np.ndarray:
    """The canvas positions whose rows predict `positions`."""
    return np.maximum(positions - 1, 0) if model.config.shift_logits else positions


def canvas_logits(model: Model, canvas: np.ndarray, positions: np.ndarray, result: Result) -> np.ndarray:
    """Logits that predict `positions`, from one forward over the whole canvas."""
    result.forwards += 1
    result.rows += len(canvas)
    return model.forward(canvas, logit_rows=predictor_rows(model, positions)).logits


def block_ranges(n_prompt: int, n_gen: int, block_length: int) -> list[tuple[int, int]]:
    """Canvas ranges of the blocks; the last one may be short."""
    total = n_prompt + n_gen
    return [(start, min(start + block_length, total)) for start in range(n_prompt, total, block_length)]


def block_steps(steps: int, block: int, n_gen: int) -> int:
    """Steps of a block of `block` positions out of `n_gen`: max(1, steps · block / n_gen rounded, halves up)."""
    return max(1, (2 * steps * block + n_gen) // (2 * n_gen))


def commits_per_step(masks: int, steps: int) -> list[int]:
    """LLaDA's split of `masks` over `steps`: the floor each, the remainder one by one to the first steps."""
    floor, remainder = divmod(masks, steps)
    return [floor + (i < remainder) for i in range(steps)]


def llada(
    model: Model,
    prompt: list[int],
    n_gen: int,
    block_length: int,
    steps: int | None = None,
    cfg_scale: float = 0.0,
    suppress: Suppress = Suppress(),
) -> Result:
    """LLaDA's low-confidence remasking in blocks; `steps` defaults to `n_gen`. Steps that commit nothing are not run."""
    mask_id = model.config.mask_id
    result = Result()
    canvas = np.concatenate([np.asarray(prompt, dtype=np.int64), np.full(n_gen, mask_id)])
    for start, end in block_ranges(len(prompt), n_gen, block_length):
        n_steps = block_steps(n_gen if steps is None else steps, end - start, n_gen)
        for count in commits_per_step(end - start, n_steps):
            if count == 0:
                continue
            masked = start + np.flatnonzero(canvas[start:end] == mask_id)
            logits = canvas_logits(model, canvas, masked, result)
            if cfg_scale > 0:
                hidden = canvas.copy()
                hidden[: len(prompt)] = mask_id
                without = canvas_logits(model, hidden, masked, result)
                logits = without + np.float32(cfg_scale + 1) * (logits - without)
            prediction = low_confidence(model, logits, suppress)
            order = by_confidence(prediction.confidence)
            commit(canvas, masked, prediction, order, count, result)
            if count < len(order):
                result.order_gap = min(result.order_gap, log_distance(*prediction.confidence[order[count - 1 : count + 1]]))
    result.tokens = canvas[len(prompt) :].tolist()
    return result


def commit(canvas: np.ndarray, masked: np.ndarray, prediction: Prediction, order: np.ndarray, count: int, result: Result) -> None:
    """Writes the tokens of the first `count` positions of `order` into the canvas."""
    chosen = order[:count]
    canvas[masked[chosen]] = prediction.token[chosen]
    result.commits.append(sorted(masked[chosen].tolist()))
    result.token_gap = min([result.token_gap, *prediction.gap[chosen].tolist()])


def dream_confidence(algorithm: str, logits: np.ndarray, mask_id: int) -> Prediction:
    """Prediction with the confidence of one of Dream's algorithms.

    `maskgit_plus`: p of the token; `topk_margin`: that minus p of the next best id that is not MASK; `entropy`:
    Σ p·ln(p + 1e-10) over the whole vocabulary, so that the least uncertain position comes first.
    """
    token, gap = best_tokens(logits, mask_id)
    p = softmax(logits)
    top = p[np.arange(len(token)), token]
    if algorithm == "maskgit_plus":
        return Prediction(token, top, gap)
    if algorithm == "topk_margin":
        others = p.copy()
        others[:, mask_id] = 0
        others[np.arange(len(token)), token] = 0
        return Prediction(token, top - others.max(axis=1), gap)
    if algorithm == "entropy":
        return Prediction(token, (p * np.log(p + np.float32(1e-10))).sum(axis=1), gap)
    raise ValueError(f"unknown algorithm {algorithm}")


def dream_times(steps: int, eps: float) -> list[tuple[float, float]]:
    """(t, s) of every step: `steps + 1` times evenly from 1 to eps, in float64."""
    times = [1 - i / steps * (1 - eps) for i in range(steps + 1)]
    return list(zip(times[:-1], times[1:], strict=True))


def dream(
    model: Model,
    prompt: list[int],
    n_gen: int,
    steps: int,
    algorithm: str = "entropy",
    eps: float = 1e-3,
    uniform: Uniform | None = None,
) -> Result:
    """Dream's timestep schedule. `origin` asks `uniform(position, step)` for every masked position of every step."""
    mask_id = model.config.mask_id
    result = Result()
    canvas = np.concatenate([np.asarray(prompt, dtype=np.int64), np.full(n_gen, mask_id)])
    for step, (t, s) in enumerate(dream_times(steps, eps)):
        masked = len(prompt) + np.flatnonzero(canvas[len(prompt) :] == mask_id)
        last = step == steps - 1
        if algorithm == "origin":
            share = 1.0 if last else 1 - s / t
            masked = np.array([p for p in masked if uniform(int(p), step) < share], dtype=np.int64)
            count = len(masked)
        else:
            count = len(masked) if last else int(len(masked) * (1 - s / t))
        if count == 0:
            continue
        logits = canvas_logits(model, canvas, masked, result)
        prediction = dream_confidence("maskgit_plus" if algorithm == "origin" else algorithm, logits, mask_id)
        order = by_confidence(prediction.confidence)
        commit(canvas, masked, prediction, order, count, result)
        if count < len(order):
            closest = prediction.confidence[order[count - 1 : count + 1]]
            distance = abs(float(closest[0] - closest[1])) if algorithm == "entropy" else log_distance(*closest)
            result.order_gap = min(result.order_gap, distance)
    result.tokens = canvas[len(prompt) :].tolist()
    return result
