"""Decoding mode `full` as DESIGN defines it: `cached` with lookahead, drafts, staged stabilisation and revision. Temperature 0.

Every position of the generation region has a *stage*: masked, draft (a token stands there for the time being), visible (may
still change), stable. Text ends with its leftmost committed end token; what is right of it waits outside. A forward is a list
of rows, each with a *sight*: per position at most one K/V, either stored or of a row of the same forward.

* A dense step predicts the masks of the block that holds the leftmost mask, and lookahead right of it. Its rows see each other
  and what is stored of committed positions. Committed positions without K/V (those of the last step, replaced ones) are rows
  too, in a full forward (the first, and refreshes) all of them.
* Beside a step that is no full forward some visible positions are revised against the store as it was before: the row of the
  token itself, whose K/V replaces the old one, and a *shadow*, a MASK in its place that sees neither the token nor its K/V, with
  copies of neighbours whose K/V was computed while the token stood there. Results count after the step's own.
* When nothing is masked, sweeps revise what is still visible, least confident first.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from .decode import Result, Suppress, log_distance, low_confidence, softmax
from .model import Model

MASKED, DRAFT, VISIBLE, STABLE = range(4)
BUCKET = 32  # rows


@dataclass(frozen=True)
class Options:
    """Parameters of the mode. `suffix` is "none", "all" or a number of masks; rows cost what they are many (table `host`)."""

    n_gen: int
    block_length: int = 32
    tau_visible: float = 0.6
    tau_stable: float = 0.9
    draft_threshold: float = 0.9
    tau_replace: float = 0.9
    tau_remask: float = 0.3
    max_revisions: int = 3
    budget: int = 1
    radius: int = 4
    final_sweep: int = 8
    suffix: str | int = "none"
    refresh_blocks: int = 1
    lookahead_trigger: int = 8
    lookahead_max: int = 32
    end_ids: tuple[int, ...] = ()


@dataclass
class Position:
    """What is known of a canvas position; `kv` is per layer, `computed` the step of it."""

    token: int
    stage: int = MASKED
    kv: list | None = None
    computed: int = -1
    since: int = 0
    touched: int = 0
    confidence: float = 0.0
    rounds: int = 0


@dataclass
class Task:
    """A position under revision: its shadow's predictor, and its own row where that is not one of the step's."""

    position: int
    predictor: int
    real: int | None


class Rows:
    """The rows of one forward. A sight maps positions to a row of the forward, or to None for what is stored."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.positions: list[int] = []
        self.sights: list[dict[int, int | None]] = []

    def add(self, token: int, position: int, sight: dict[int, int | None]) -> int:
        """Adds a row that sees itself; `sight` may still grow."""
        row = len(self.tokens)
        self.tokens.append(token)
        self.positions.append(position)
        self.sights.append(sight)
        sight[position] = row
        return row


def full(model: Model, prompt: list[int], options: Options) -> Result:
    """Decodes `options.n_gen` positions after `prompt`."""
    return Decoder(model, prompt, options).run()


class Decoder:
    """State of one decoding."""

    def __init__(self, model: Model, prompt: list[int], options: Options):
        self.model = model
        self.options = options
        self.shift = model.config.shift_logits
        self.mask = model.config.mask_id
        self.n_prompt = len(prompt)
        self.canvas = [Position(token, STABLE) for token in prompt]
        self.canvas += [Position(self.mask) for _ in range(options.n_gen)]
        self.limit = len(self.canvas)
        self.left: set[int] = set()  # positions that left the text in this step
        self.n_step = self.n_sweeps = 0
        self.last_block, self.blocks_since_full = -1, 0
        # Steps, their commits; lookahead predictions, drafts of them; drafts that were tested, and kept.
        self.steps = self.commits = self.predicted = self.drafted = self.tested = self.kept = 0
        self.result = Result()

    def run(self) -> Result:
        """Steps until nothing is left to decide."""
        while True:
            if self.masked(self.n_prompt, self.limit):
                self.dense_step()
            elif self.n_sweeps < self.options.final_sweep and self.options.budget > 0 and self.visible():
                self.sweep()
            else:
                break
            self.n_step += 1
        self.result.tokens = [p.token for p in self.canvas[self.n_prompt :]]
        return self.result

    # What is where

    def masked(self, start: int, end: int) -> list[int]:
        """Positions without a committed token."""
        return [i for i in range(start, min(end, self.limit)) if self.canvas[i].stage in (MASKED, DRAFT)]

    def committed(self) -> list[int]:
        """Positions of the text with a committed token, the prompt's among them."""
        return [i for i in range(self.limit) if self.canvas[i].stage in (VISIBLE, STABLE)]

    def visible(self) -> list[int]:
        """Positions of the text that may change."""
        return [i for i in range(self.limit) if self.canvas[i].stage == VISIBLE]

    def stored(self) -> dict[int, int | None]:
        """The sight of everything committed that has K/V."""
        return {i: None for i in self.committed() if self.canvas[i].kv is not None}

    def settle(self) -> None:
        """Finds the end of the text; drafts right of it are gone."""
        ends = (
            i
            for i in range(self.n_prompt, len(self.canvas))
            if self.canvas[i].stage in (VISIBLE, STABLE) and self.canvas[i].token in self.options.end_ids
        )
        limit = next(ends, len(self.canvas) - 1) + 1
        self.left |= set(range(limit, self.limit))
        self.limit = limit
        for p in self.canvas[limit:]:
            if p.stage == DRAFT:
                p.stage, p.token = MASKED, self.mask

    # Forwards

    def forward(self, rows: Rows, predictors: list[int]) -> tuple[list, np.ndarray]:
        """Runs the rows; returns their K/V, row by row, and the logits of the predictors."""
        past = sorted({i for sight in rows.sights for i, row in sight.items() if row is None})
        column = {position: index for index, position in enumerate(past)}
        visible = np.zeros((len(rows.tokens), len(past) + len(rows.tokens)), dtype=bool)
        for row, sight in enumerate(rows.sights):
            for position, seen in sight.items():
                visible[row, column[position] if seen is None else len(past) + seen] = True
        layers = None
        if past:
            layers = [
                tuple(np.stack([self.canvas[i].kv[layer][which] for i in past]) for which in (0, 1))
                for layer in range(self.model.config.n_layer)
            ]
        done = self.model.forward(rows.tokens, rows.positions, layers, visible, predictors)
        self.result.forwards += 1
        self.result.rows += len(rows.tokens)
        self.result.commits.append([])
        kv = [[(k[row], v[row]) for k, v in done.kv] for row in range(len(rows.tokens))]
        return kv, done.logits

    def store(self, position: int, kv: list) -> None:
        """Takes K/V of this step as that of a position."""
        self.canvas[position].kv = kv
        self.canvas[position].computed = self.n_step

    def predict(self, logits: np.ndarray) -> list[tuple[int, float]]:
        """Tokens and confidences; a near-tie of tokens is noted."""
        prediction = low_confidence(self.model, logits, Suppress())
        self.result.token_gap = min([self.result.token_gap, *prediction.gap.tolist()])
        return list(zip(prediction.token.tolist(), prediction.confidence, strict=True))

    def reaches(self, confidence: float, threshold: float) -> bool:
        """Compares, and notes how near it was."""
        self.result.order_gap = min(self.result.order_gap, log_distance(float(confidence), threshold))
        return bool(np.float32(confidence) >= np.float32(threshold))

    # Dense steps

    def dense_step(self) -> None:
        """One forward with commits, and revision beside it."""
        o = self.options
        frontier = self.masked(self.n_prompt, self.limit)[0]
        block = (frontier - self.n_prompt) // o.block_length
        start = self.n_prompt + block * o.block_length
        end = min(start + o.block_length, self.limit)
        whole = self.is_full(block)
        self.last_block = max(self.last_block, block)

        real = [i for i in self.committed() if whole or self.canvas[i].kv is None]
        masks = self.masked(start, end)
        right, n_ahead = self.window(end, frontier, len(real), len(masks))
        wanted = masks + [i for i in right[:n_ahead] if self.canvas[i].stage == MASKED]
        if self.shift:
            predictors = {i - 1 for i in wanted if i > 0}
            real = sorted({*real, *(i for i in predictors if self.canvas[i].stage in (VISIBLE, STABLE))})
        chosen = [] if whole else self.choose(real)

        rows, sight = Rows(), self.stored()
        of = {}
        for i in sorted([*real, *masks, *right]):
            hidden = i in masks or self.canvas[i].stage == MASKED
            of[i] = rows.add(self.mask if hidden else self.canvas[i].token, i, sight)
        predictors = [of[max(i - 1, 0) if self.shift else i] for i in wanted]
        tasks = self.add_revision(rows, chosen, [i for i in real if self.canvas[i].kv is None])
        kv, logits = self.forward(rows, predictors + [task.predictor for task in tasks])

        self.left = set()
        for i in real:
            self.store(i, kv[of[i]])
        predictions = dict(zip(wanted, self.predict(logits[: len(wanted)]), strict=True))
        self.commit(masks, {i: predictions[i] for i in masks})
        for i in wanted[len(masks) :]:
            self.draft(i, *predictions[i])
        self.settle()
        self.merge(tasks, kv, logits[len(wanted) :])
        self.settle()

    def is_full(self, block: int) -> bool:
        """Whether this forward computes everything committed anew: the first one, and one every so many new blocks."""
        if self.last_block < 0:
            return True
        new = max(0, block - self.last_block)
        self.blocks_since_full += new
        due = new > 0 and 0 < self.options.refresh_blocks <= self.blocks_since_full
        if due:
            self.blocks_since_full = 0
        return due

    def window(self, end: int, frontier: int, n_real: int, n_block: int) -> tuple[list[int], int]:
        """Masked positions right of the block that are rows, and how many of the first are lookahead."""
        o = self.options
        masked = self.masked(end, self.limit)
        drafts = [self.canvas[i].stage == DRAFT for i in masked]
        n_suffix = min({"none": 0, "all": len(masked)}.get(o.suffix, o.suffix), len(masked))

        def n_rows(n: int) -> int:
            shown = max(n, n_suffix)
            return n_real + n_block + shown + sum(drafts[shown:])

        ends = [n for n, i in enumerate(masked, 1) if drafts[n - 1] and self.canvas[i].token in o.end_ids]
        most = min(o.lookahead_max, ends[0] if ends else len(masked))
        n = min(bisect.bisect_left(masked, frontier + o.block_length), most)
        if n_block < o.lookahead_trigger:
            wide, target = n, -(-n_rows(n) // BUCKET) * BUCKET
            while wide < most and n_rows(wide + 1) <= target:
                wide += 1
            price = np.float32(n_rows(wide) - n_rows(n))
            if price * self.per_step() <= np.float32(wide - n) * self.of_lookahead() * np.float32(n_rows(n)):
                n = wide
        shown = max(n, n_suffix)
        return masked[:shown] + [i for i, draft in zip(masked[shown:], drafts[shown:], strict=True) if draft], n

    def of_lookahead(self) -> np.float32:
        """Commits that a lookahead row is expected to make for, by what became of those before."""

        def share(part: int, whole: int) -> np.float32:
            return np.float32(part + 1) / np.float32(whole + 2)

        return share(self.drafted, self.predicted) * share(self.kept, self.tested)

    def per_step(self) -> np.float32:
        """Commits of a dense step."""
        return np.float32(self.commits + 1) / np.float32(self.steps + 1)

    def commit(self, masks: list[int], predictions: dict[int, tuple[int, float]]) -> None:
        """Commits of the block: what is confident and contradicts no draft, at least the most confident."""
        o = self.options
        sure = {i: self.reaches(confidence, o.tau_visible) for i, (_, confidence) in predictions.items()}
        agrees = {i: self.canvas[i].stage != DRAFT or self.canvas[i].token == predictions[i][0] for i in masks}
        chosen = [i for i in masks if sure[i] and agrees[i]]
        if not chosen:
            order = sorted(masks, key=lambda i: -predictions[i][1])
            chosen = order[:1]
            if len(order) > 1:
                self.result.order_gap = min(self.result.order_gap, log_distance(*(float(predictions[i][1]) for i in order[:2])))
        for i in chosen:
            p, (token, confidence) = self.canvas[i], predictions[i]
            if p.stage == DRAFT:
                self.tested += 1
                self.kept += p.token == token
            stable = self.reaches(confidence, o.tau_stable) or o.budget == 0 or p.rounds >= o.max_revisions
            p.token, p.stage = token, STABLE if stable else VISIBLE
            p.since = p.touched = self.n_step
            p.confidence = confidence
        for i in masks:
            if self.canvas[i].stage == DRAFT:
                self.tested += 1
                self.canvas[i].stage, self.canvas[i].token = MASKED, self.mask
        self.steps += 1
        self.commits += len(chosen)
        self.result.commits[-1] = chosen

    def draft(self, i: int, token: int, confidence: float) -> None:
        """A lookahead position may become a draft."""
        self.predicted += 1
        if self.reaches(confidence, self.options.draft_threshold):
            self.drafted += 1
            self.canvas[i].stage, self.canvas[i].token = DRAFT, token

    # Revision

    def choose(self, busy: list[int]) -> list[int]:
        """Visible positions with K/V that were not looked at for longest."""
        ready = [i for i in self.visible() if self.canvas[i].kv is not None and i not in busy]
        return sorted(sorted(ready, key=lambda i: self.canvas[i].touched)[: self.options.budget])

    def add_revision(self, rows: Rows, chosen: list[int], fresh: list[int]) -> list[Task]:
        """Adds the rows of what is revised beside a step, with copies of positions that have no K/V yet."""
        if not chosen:
            return []
        base = self.stored()
        for i in fresh:
            rows.add(self.canvas[i].token, i, base)
        return [self.add_group(rows, i, base, own=True) for i in chosen]

    def neighbours(self, i: int) -> list[int]:
        """Positions whose K/V may have seen the token at `i`; with shifted logits the predictor too."""
        near = set()
        for j in range(max(0, i - self.options.radius), min(i + self.options.radius + 1, self.limit)):
            p = self.canvas[j]
            if j != i and p.stage in (VISIBLE, STABLE) and (p.kv is None or p.computed > self.canvas[i].since):
                near.add(j)
        if self.shift and i > 0:
            near.add(i - 1)
        return sorted(near)

    def add_group(self, rows: Rows, i: int, base: dict[int, int | None], own: bool) -> Task:
        """Adds the row of the token at `i`, where it has none yet, its shadow, and the shadow's neighbours."""
        real = rows.add(self.canvas[i].token, i, dict(base)) if own else None
        sight = dict(base)
        predictor = rows.add(self.mask, i, sight)
        for j in self.neighbours(i):
            row = rows.add(self.mask if self.canvas[j].stage in (MASKED, DRAFT) else self.canvas[j].token, j, sight)
            if self.shift and j == i - 1:
                predictor = row
        return Task(i, predictor, real)

    def sweep(self) -> None:
        """A forward that revises the least confident, as many as fit into the bucket."""
        self.n_sweeps += 1
        fresh = [i for i in self.committed() if self.canvas[i].kv is None]
        rows, base = Rows(), self.stored()
        of = {i: rows.add(self.canvas[i].token, i, base) for i in fresh}
        queue = sorted(self.visible(), key=lambda i: self.canvas[i].confidence)
        most = (len(fresh) // BUCKET + 1) * BUCKET
        total, chosen = len(fresh), []
        for i in queue:
            total += (i not in fresh) + 1 + len(self.neighbours(i))
            if total > most and chosen:
                break
            chosen.append(i)
        for a, b in pairwise(queue[: len(chosen) + 1]):
            gap = log_distance(float(self.canvas[a].confidence), float(self.canvas[b].confidence))
            self.result.order_gap = min(self.result.order_gap, gap)
        tasks = [self.add_group(rows, i, base, own=i not in fresh) for i in sorted(chosen)]
        kv, logits = self.forward(rows, [task.predictor for task in tasks])
        self.left = set()
        for i in fresh:
            self.store(i, kv[of[i]])
        self.merge(tasks, kv, logits)
        self.settle()

    def merge(self, tasks: list[Task], kv: list, logits: np.ndarray) -> None:
        """Takes the outcomes of revision; those of positions that left the text meanwhile are dropped."""
        if not tasks:
            return
        o = self.options
        probabilities = softmax(logits)
        for task, (token, confidence), p in zip(tasks, self.predict(logits), probabilities, strict=True):
            if task.position in self.left:
                continue
            at = self.canvas[task.position]
            at.rounds += 1
            at.touched = self.n_step
            if task.real is not None:
                self.store(task.position, kv[task.real])
            own, probe = token == at.token, p[at.token]
            if not own and self.reaches(confidence, o.tau_replace):
                at.token, at.since, at.confidence, at.kv = token, self.n_step, confidence, None
            elif not self.reaches(probe, o.tau_remask):
                at.stage, at.token, at.kv = MASKED, self.mask, None
                continue
            else:
                at.confidence = probe
            if (own and self.reaches(confidence, o.tau_stable)) or at.rounds >= o.max_revisions:
                at.stage = STABLE
