"""Decoding mode `cached` as DESIGN defines it: prefix K/V, threshold commits, refresh at block starts. Temperature 0.

Canvas positions are prompt, then the generation region in blocks. A *store* holds K/V of committed positions. One step is
one forward over a set of rows:

* always: the masked positions of the current block, and the positions committed by the previous step (once, so that the
  store gets K/V of their tokens);
* with shifted logits: the predictor of every masked position; a committed one is a real row, whose new K/V goes to the store;
* of the masked tail behind the block what `suffix` says: nothing, the next N masks, all, or (`cached`) all of it in the block's
  first step only, its K/V then being seen for the rest of the block;
* in a refresh (the prefill is one): all committed positions as well.

A row sees every row of its forward, and the stored K/V of all committed positions that are not rows themselves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from .decode import (
    Result,
    Suppress,
    block_ranges,
    by_confidence,
    commit,
    log_distance,
    low_confidence,
    predictor_rows,
)
from .model import Model


@dataclass(frozen=True)
class Options:
    """Parameters of the mode.

    `suffix` is "none", "all", "cached" or the number of masks shown behind the block. `refresh_blocks` N refreshes when a
    block begins and N blocks have passed since the last refresh; 0 never; with `refresh_every_step` each step is one.
    `end_ids`: positions right of the leftmost committed one of these ids leave at once: they are neither rows nor seen, whatever
    the store holds of them. Positions never committed are reported as MASK. Default: no early end.
    """

    n_gen: int
    block_length: int = 32
    threshold: float = 0.9
    suffix: str | int = "all"
    refresh_blocks: int = 1
    refresh_every_step: bool = False
    end_ids: tuple[int, ...] = ()
    suppress: Suppress = Suppress()


class Store:
    """K/V per canvas position; `held` says where there is any."""

    def __init__(self, model: Model, n_positions: int):
        shape = (n_positions, model.config.n_head_kv, model.config.head_dim)
        self.layers = [(np.zeros(shape, model.dtype), np.zeros(shape, model.dtype)) for _ in model.layers]
        self.held = np.zeros(n_positions, dtype=bool)

    def put(self, position: int, row: int, kv: list) -> None:
        """Takes the K/V of `row` of a forward as that of `position`."""
        for (k, v), (new_k, new_v) in zip(self.layers, kv, strict=True):
            k[position], v[position] = new_k[row], new_v[row]
        self.held[position] = True

    def without(self, rows: list[int]) -> list:
        """K/V of all held positions but `rows`, in order of position."""
        seen = self.held.copy()
        seen[rows] = False
        return [(k[seen], v[seen]) for k, v in self.layers]


def cached(model: Model, prompt: list[int], options: Options) -> Result:
    """Decodes `options.n_gen` positions after `prompt`."""
    return Decoder(model, prompt, options).run()


class Decoder:
    """State of one decoding."""

    def __init__(self, model: Model, prompt: list[int], options: Options):
        self.model = model
        self.options = options
        self.n_prompt = len(prompt)
        self.mask_id = model.config.mask_id
        self.canvas = np.concatenate([np.asarray(prompt, dtype=np.int64), np.full(options.n_gen, self.mask_id)])
        self.total = len(self.canvas)
        self.committed = np.arange(self.total) < self.n_prompt
        # One store serves committed positions and, for suffix "cached", the tail: no position is both.
        self.store = Store(model, self.total)
        self.fresh: set[int] = set()  # committed by the previous step
        self.result = Result()

    def run(self) -> Result:
        """Goes through the blocks."""
        last_refresh = 0
        for index, (start, end) in enumerate(block_ranges(self.n_prompt, self.options.n_gen, self.options.block_length)):
            due = index == 0 or 0 < self.options.refresh_blocks <= index - last_refresh
            if due:
                last_refresh = index
            first = True
            while len(masked := self.masked(start, end)) > 0:
                self.step(masked, end, first, refresh=(first and due) or self.options.refresh_every_step)
                first = False
        self.result.tokens = self.canvas[self.n_prompt :].tolist()
        return self.result

    def limit(self) -> int:
        """End of the canvas: behind the leftmost committed end token."""
        ends = np.flatnonzero(self.committed[self.n_prompt :] & np.isin(self.canvas[self.n_prompt :], self.options.end_ids))
        return self.n_prompt + int(ends[0]) + 1 if len(ends) else self.total

    def masked(self, start: int, end: int) -> np.ndarray:
        """Positions of the block that are still to be committed."""
        end = min(end, self.limit())
        return start + np.flatnonzero(~self.committed[start:end])

    def tail(self, end: int, first: bool) -> range:
        """Positions behind the block that are rows."""
        suffix = self.options.suffix
        if suffix == "cached":
            n = self.total if first or self.options.refresh_every_step else 0
        else:
            n = {"none": 0, "all": self.total}.get(suffix, suffix)
        return range(end, min(end + n, self.limit()))

    def step(self, masked: np.ndarray, end: int, first: bool, refresh: bool) -> None:
        """One forward and its commits."""
        limit = self.limit()
        self.store.held[limit:] = False
        tail = self.tail(end, first)
        predictors = predictor_rows(self.model, masked)
        rows = set(masked.tolist()) | self.fresh | set(tail) | set(predictors.tolist())
        if refresh:
            rows |= set(np.flatnonzero(self.committed).tolist())
        rows = sorted(row for row in rows if row < limit)
        index = {position: row for row, position in enumerate(rows)}

        forward = self.model.forward(
            self.canvas[rows],
            positions=rows,
            past=self.store.without(rows),
            logit_rows=[index[p] for p in predictors.tolist()],
        )
        self.result.forwards += 1
        self.result.rows += len(rows)
        # The previous tail ends where the block began; masked positions of the block hold no K/V.
        self.store.held[masked] = False
        for position, row in index.items():
            if self.committed[position] or (self.options.suffix == "cached" and position in tail):
                self.store.put(position, row, forward.kv)

        prediction = low_confidence(self.model, forward.logits, self.options.suppress)
        order = by_confidence(prediction.confidence)
        threshold = np.float32(self.options.threshold)
        count = max(1, int((prediction.confidence >= threshold).sum()))
        commit(self.canvas, masked, prediction, order, count, self.result)
        self.note_order_gap(prediction.confidence[order], count)
        self.fresh = set(masked[order[:count]].tolist())
        self.committed[list(self.fresh)] = True

    def note_order_gap(self, confidence: np.ndarray, count: int) -> None:
        """Notes how near the threshold, or the runner-up, a decision was; `confidence` is sorted downwards."""
        threshold = self.options.threshold
        distances = []
        if 0 < threshold < math.inf:
            distances += [log_distance(c, threshold) for c in confidence.tolist()]
        if count == 1 and confidence[0] < threshold and len(confidence) > 1:
            distances.append(log_distance(*confidence[:2].tolist()))
        self.result.order_gap = min([self.result.order_gap, *distances])
