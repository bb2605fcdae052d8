"""The schedules, on models with scripted logits and on random ones."""

import math
import sys
import tempfile
import unittest
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from reference import decode, full
from reference.cached import Options, cached
from reference.make_gguf import SHAPES, Spec, make
from reference.model import Forward, Model

MASK, EOS, EOT, N_VOCAB = 7, 5, 6, 8


class Scripted:
    """A model whose logits are a function of position and token, and that records what it was asked."""

    def __init__(self, logits: Callable[[int, int], list[float]], shift: bool = False):
        self.config = SimpleNamespace(
            mask_id=MASK, eos_id=EOS, eot_id=EOT, n_vocab=N_VOCAB, shift_logits=shift, n_head_kv=1, head_dim=2
        )
        self.logits = logits
        self.layers = [None]
        self.dtype = np.float32
        self.asked = []

    def forward(self, tokens, positions=None, past=None, visible=None, logit_rows=None) -> Forward:
        positions = range(len(tokens)) if positions is None else positions
        n_past = 0 if past is None else len(past[0][0])
        self.asked.append(SimpleNamespace(tokens=list(tokens), positions=list(positions), n_past=n_past))
        every = np.array([self.logits(p, t) for p, t in zip(positions, tokens, strict=True)], dtype=np.float32)
        kv = np.zeros((len(tokens), 1, 2), np.float32)
        return Forward(every if logit_rows is None else every[list(logit_rows)], [(kv, kv)])


def peak(token: int, height: float) -> list[float]:
    """Logits that favour a token."""
    out = [0.0] * N_VOCAB
    out[token] = height
    return out


class ScheduleTest(unittest.TestCase):
    def test_commits_add_up_and_the_first_steps_take_the_remainder(self):
        self.assertEqual(decode.commits_per_step(32, 5), [7, 7, 6, 6, 6])
        for masks in range(1, 40):
            for steps in range(1, 50):
                counts = decode.commits_per_step(masks, steps)
                self.assertEqual(sum(counts), masks)
                self.assertEqual(counts, sorted(counts, reverse=True))
                self.assertLessEqual(counts[0] - counts[-1], 1)

    def test_steps_of_a_block_are_its_share(self):
        self.assertEqual(decode.block_steps(64, 32, 64), 32)
        self.assertEqual(decode.block_steps(16, 32, 64), 8)
        self.assertEqual(decode.block_steps(1, 8, 64), 1)
        self.assertEqual(decode.block_steps(3, 10, 20), 2, "halves go up")
        self.assertEqual(decode.block_steps(20, 5, 37), 3, "2.7")

    def test_blocks_cover_the_region(self):
        self.assertEqual(decode.block_ranges(5, 70, 32), [(5, 37), (37, 69), (69, 75)])
        self.assertEqual(decode.block_ranges(0, 3, 32), [(0, 3)])

    def test_float32_times_give_the_same_counts(self):
        for steps in (8, 16, 31, 32, 64, 100, 128, 256):
            single = np.array([1 - i / steps * (1 - 1e-3) for i in range(steps + 1)], dtype=np.float32)
            for n_gen in (32, 64, 96, 100):
                a = b = n_gen
                for i, (t, s) in enumerate(decode.dream_times(steps, 1e-3)):
                    last = i == steps - 1
                    ka = a if last else int(a * (1 - s / t))
                    kb = b if last else int(np.float32(b) * (1 - single[i + 1] / single[i]))
                    self.assertEqual(ka, kb, (steps, n_gen, i))
                    a, b = a - ka, b - kb
                self.assertEqual(a, 0)


class RuleTest(unittest.TestCase):
    def llada(self, logits, n_gen=4, block=4, steps=None, shift=False, **fields):
        model = Scripted(logits, shift)
        return decode.llada(model, [0, 1], n_gen, block, steps, **fields), model

    def test_most_confident_first_then_leftmost(self):
        result, _ = self.llada(lambda p, t: peak(1, {3: 9.0}.get(p, 4.0)))
        self.assertEqual(result.commits, [[3], [2], [4], [5]])

    def test_blocks_go_left_to_right(self):
        result, _ = self.llada(lambda p, t: peak(1, float(p)), block=2)
        self.assertEqual(result.commits, [[3], [2], [5], [4]])

    def test_mask_is_never_emitted_and_counts_in_the_confidence(self):
        logits = peak(MASK, 9.0)
        logits[3] = 1.0
        result, _ = self.llada(lambda p, t: logits)
        self.assertEqual(result.tokens, [3] * 4)
        prediction = decode.low_confidence(Scripted(None), np.array([logits]), decode.Suppress())
        self.assertAlmostEqual(prediction.confidence[0], math.e / (math.e + math.exp(9) + 6), places=6)

    def test_lowest_id_on_ties(self):
        self.assertEqual(self.llada(lambda p, t: [0.0] * N_VOCAB)[0].tokens, [0] * 4)

    def test_shifted_positions_are_predicted_by_the_row_before(self):
        result, _ = self.llada(lambda p, t: peak(p % 5, 4.0), shift=True)
        self.assertEqual(result.tokens, [1, 2, 3, 4])
        self.assertEqual(decode.predictor_rows(Scripted(None, True), np.arange(3)).tolist(), [0, 0, 1])

    def test_eos_suppressed(self):
        def logits(p, t):
            out = peak(EOS, 9.0)
            out[2] = 1.0
            return out

        self.assertEqual(self.llada(logits)[0].tokens, [EOS] * 4)
        self.assertEqual(self.llada(logits, suppress=decode.Suppress(logits_eos_inf=True))[0].tokens, [2] * 4)

    def test_positions_that_predict_the_end_come_last(self):
        def logits(p, t):
            return peak({2: EOS, 3: EOT}.get(p, 1), 9.0 - p)

        self.assertEqual(self.llada(logits)[0].commits, [[2], [3], [4], [5]])
        demoted = decode.Suppress(confidence_eos_eot_inf=True)
        result, _ = self.llada(logits, suppress=demoted)
        self.assertEqual(result.commits, [[4], [5], [2], [3]])
        self.assertEqual(result.tokens, [EOS, EOT, 1, 1])

    def test_guidance_pushes_away_from_the_hidden_prompt(self):
        def logits(p, t):
            return peak(1, 2.0)

        class Guided(Scripted):
            def forward(self, tokens, *args, **kwargs):
                self.logits = (lambda p, t: peak(2, 3.0)) if tokens[0] == MASK else logits
                return super().forward(tokens, *args, **kwargs)

        model = Guided(None)
        decoded = decode.llada(model, [0, 1], 2, 2, cfg_scale=1.0)
        self.assertEqual(decoded.tokens, [1, 1])  # 2·2 - 0 = 4 for 1, 2·0 - 3 = -3 for 2
        self.assertEqual([a.tokens[:2] for a in model.asked], [[0, 1], [MASK, MASK]] * 2)

    def test_dream_orders(self):
        flat_top = [3.0, 2.9] + [-9.0] * 6  # little margin, little entropy
        broad = [2.2] + [0.0] * 7  # more margin, much entropy
        tall = [2.5] + [-9.0] * 6 + [2.4]  # MASK is next: neither emitted nor part of the margin
        table = {0: broad, 1: broad, 2: flat_top, 3: broad, 4: tall}
        for algorithm, orders in (
            ("entropy", [[2], [4], [3]]),
            ("topk_margin", [[4], [3], [2]]),
            ("maskgit_plus", [[3], [2], [4]]),
        ):
            prediction = decode.dream_confidence(algorithm, np.array([flat_top, broad, tall]), MASK)
            self.assertEqual([[p + 2] for p in decode.by_confidence(prediction.confidence)], orders, algorithm)
            result = decode.dream(Scripted(lambda p, t: table[p]), [0, 1], 2, 2, algorithm, eps=0.0)
            self.assertEqual(result.commits, [[p] for [p] in orders if p < 4], algorithm)

    def test_origin_follows_the_numbers_given(self):
        draws = {(2, 0): 0.1, (3, 0): 0.9, (4, 0): 0.49, (3, 1): 0.99}
        result = decode.dream(
            Scripted(lambda p, t: peak(1, 1.0)), [0, 1], 3, 2, "origin", eps=0.0, uniform=lambda p, s: draws[p, s]
        )
        self.assertEqual(result.commits, [[2, 4], [3]])

    def test_near_ties_are_reported(self):
        result, _ = self.llada(lambda p, t: [0.0, 2.0 + 1e-3 * p, 2.0, 0, 0, 0, 0, 0], n_gen=2)
        self.assertAlmostEqual(result.token_gap, 2e-3, places=5)
        self.assertLess(result.order_gap, 1e-3)


class CachedTest(unittest.TestCase):
    def run_scripted(self, logits, shift=False, prompt=(0, 1, 2), **fields):
        model = Scripted(logits, shift)
        result = cached(model, list(prompt), Options(**({"n_gen": 6, "block_length": 3} | fields)))
        return result, model

    @staticmethod
    def rising(p, t):
        """Later positions are surer; only position 5 passes 0.9."""
        return peak(1, 6.0 if p == 5 else 1.0 + p / 10)

    def test_threshold_commits_all_that_pass_or_the_best(self):
        result, _ = self.run_scripted(lambda p, t: peak(1, 6.0 if p in (3, 5) else 1.0))
        self.assertEqual(result.commits[:2], [[3, 5], [4]])

    def test_rows_of_each_step(self):
        result, model = self.run_scripted(self.rising, suffix="none", refresh_blocks=0)
        self.assertEqual(result.commits, [[5], [4], [3], [8], [7], [6]])
        rows = [a.positions for a in model.asked]
        self.assertEqual(rows[0], [0, 1, 2, 3, 4, 5])
        self.assertEqual(rows[1], [3, 4, 5], "masks, and what was just committed")
        self.assertEqual(rows[2], [3, 4])
        self.assertEqual(rows[3], [3, 6, 7, 8])
        self.assertEqual([a.n_past for a in model.asked], [0, 3, 4, 5, 6, 7])
        self.assertEqual(model.asked[1].tokens, [MASK, MASK, 1])

    def test_refresh_recomputes_what_is_committed(self):
        _, model = self.run_scripted(self.rising, suffix="none", refresh_blocks=1)
        self.assertEqual(model.asked[3].positions, list(range(9)))
        self.assertEqual(model.asked[3].n_past, 0)
        _, model = self.run_scripted(self.rising, suffix="none", refresh_blocks=2, n_gen=9)
        full = [i for i, a in enumerate(model.asked) if a.positions[0] == 0]
        self.assertEqual(full, [0, 6])

    def test_suffix(self):
        for suffix, rows in (("all", [3, 4, 5, 6, 7, 8]), (2, [3, 4, 5, 6, 7]), ("none", [3, 4, 5])):
            _, model = self.run_scripted(self.rising, suffix=suffix)
            self.assertEqual(model.asked[1].positions, rows, suffix)
            self.assertEqual(model.asked[0].positions, [0, 1, 2, *rows], suffix)

    def test_cached_suffix_is_computed_at_the_first_step_of_a_block(self):
        _, model = self.run_scripted(self.rising, suffix="cached", refresh_blocks=0, n_gen=9)
        self.assertEqual(model.asked[0].positions, list(range(12)))
        self.assertEqual((model.asked[1].positions, model.asked[1].n_past), ([3, 4, 5], 3 + 6))
        self.assertEqual((model.asked[3].positions, model.asked[3].n_past), ([3, 6, 7, 8, 9, 10, 11], 5))
        self.assertEqual((model.asked[4].positions, model.asked[4].n_past), ([6, 7, 8], 6 + 3))

    def test_shift_brings_the_predictor_along(self):
        _, model = self.run_scripted(self.rising, shift=True, suffix="none")
        self.assertEqual(model.asked[1].positions, [2, 3, 4, 5])
        self.assertEqual(model.asked[1].n_past, 2)
        _, model = self.run_scripted(self.rising, shift=True, suffix="none", prompt=())
        self.assertEqual(model.asked[1].positions[0], 0)

    def test_end_empties_the_canvas_behind_it(self):
        def logits(p, t):
            return peak(EOS if p == 4 else 1, {3: 1.0, 4: 6.0, 5: 6.0}.get(p, 2.0))

        result, model = self.run_scripted(logits, end_ids=(EOS, EOT))
        self.assertEqual(result.commits, [[4, 5], [3]])
        self.assertEqual(model.asked[1].positions, [3, 4])
        self.assertEqual(result.tokens, [1, EOS, 1, MASK, MASK, MASK])

    def test_nothing_behind_an_end_is_seen(self):
        def logits(p, t):
            return peak(EOS if p == 4 else 1, {4: 3.0, 5: 6.0}.get(p, 2.0))

        result, model = self.run_scripted(logits, end_ids=(EOS, EOT), threshold=math.inf, refresh_blocks=0)
        self.assertEqual(result.commits, [[5], [4], [3]])
        self.assertEqual(model.asked[1].positions, [3, 4, 5, 6, 7, 8])
        self.assertEqual((model.asked[2].positions, model.asked[2].n_past), ([3, 4], 3))


class RandomModelTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.models = {}
        with tempfile.TemporaryDirectory() as directory:
            for arch in ("llada", "dream"):
                path = Path(directory) / "model.gguf"
                make(path, Spec(arch, replace(SHAPES["tiny"], n_head_kv=1), type="F32", attention_gain=3.0))
                cls.models[arch] = Model.load(path, np.float64)

    def prompts(self):
        rng = np.random.default_rng(3)
        return [rng.integers(0, 256, n).tolist() for n in (0, 1, 9)]

    def test_cached_without_cache_is_reference_at_one_token_per_step(self):
        for model in self.models.values():
            for prompt in self.prompts():
                expected = decode.llada(model, prompt, 21, 8)
                for suffix in ("all", "cached"):
                    options = Options(21, 8, threshold=math.inf, suffix=suffix, refresh_every_step=True)
                    result = cached(model, prompt, options)
                    self.assertEqual(result.tokens, expected.tokens)
                    self.assertEqual(result.commits, expected.commits)

    def test_cache_and_suffix_change_what_is_computed(self):
        model, prompt = self.models["llada"], self.prompts()[2]
        texts = {
            tuple(cached(model, prompt, Options(24, 8, threshold=0.5, suffix=suffix, refresh_blocks=n)).tokens)
            for suffix in ("all", "none", "cached", 3)
            for n in (0, 1)
        }
        self.assertGreater(len(texts), 4)

    def test_full_with_everything_off_is_cached(self):
        for model in self.models.values():
            for prompt in self.prompts():
                for suffix, refresh in (("none", 0), (3, 1), ("all", 2)):
                    expected = cached(model, prompt, Options(21, 8, threshold=0.4, suffix=suffix, refresh_blocks=refresh))
                    options = full.Options(21, 8, tau_visible=0.4, suffix=suffix, refresh_blocks=refresh, budget=0, lookahead_max=0)
                    result = full.full(model, prompt, options)
                    self.assertEqual((result.tokens, result.commits, result.rows), (expected.tokens, expected.commits, expected.rows))

    def test_every_part_of_full_changes_what_is_computed(self):
        model, prompt = self.models["llada"], self.prompts()[2]
        low = {"tau_visible": 0.3, "tau_stable": 0.7, "draft_threshold": 0.4, "tau_replace": 0.4, "tau_remask": 0.2, "budget": 2}
        changes = ({}, {"budget": 8}, {"radius": 0}, {"final_sweep": 1}, {"lookahead_max": 2}, {"max_revisions": 1}, {"tau_remask": 0})
        rows = {full.full(model, prompt, full.Options(24, 8, **{**low, **change})).rows for change in changes}
        self.assertEqual(len(rows), len(changes))

    def test_every_algorithm_fills_the_canvas_in_its_own_order(self):
        model, prompt = self.models["dream"], self.prompts()[2]
        orders = set()
        for algorithm in ("maskgit_plus", "topk_margin", "entropy"):
            result = decode.dream(model, prompt, 24, 24, algorithm)
            self.assertNotIn(model.config.mask_id, result.tokens)
            self.assertEqual(sorted(p for c in result.commits for p in c), list(range(9, 33)))
            orders.add(str(result.commits))
        self.assertEqual(len(orders), 3)


if __name__ == "__main__":
    unittest.main()
