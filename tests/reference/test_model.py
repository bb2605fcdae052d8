"""The forward pass against itself: what must not depend on how the work is cut up, stored, or labelled."""

import os
import sys
import tempfile
import unittest
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from gguf import GGUFReader

from reference import adapter
from reference.container import Container
from reference.make_gguf import SHAPES, TYPES, Spec, make
from reference.model import Model
from reference.twin import twin

TRIAL_MODEL = os.environ.get("REFERENCE_TRIAL_MODEL")


def made(directory: Path, arch: str, **fields) -> Path:
    """A small model; K/V heads shared by four query heads."""
    path = directory / "model.gguf"
    shape = replace(SHAPES["tiny"], n_head_kv=1)
    make(path, Spec(**({"arch": arch, "shape": shape, "type": "F32", "attention_gain": 3.0} | fields)))
    return path


class ModelTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)
        self.tokens = np.random.default_rng(7).integers(0, SHAPES["tiny"].n_vocab, 40)

    def load(self, arch: str, dtype=np.float64, **fields) -> Model:
        return Model.load(made(self.directory, arch, **fields), dtype)

    def assert_close(self, a, b, tolerance=1e-9):
        self.assertEqual(a.shape, b.shape)
        self.assertLess(np.abs(a - b).max(), tolerance)

    def test_rows_against_kv_of_a_full_forward_equal_the_full_forward(self):
        for arch in ("llada", "dream"):
            model = self.load(arch)
            full = model.forward(self.tokens)
            rows = [3, 17, 18, 39]
            others = [i for i in range(40) if i not in rows]
            past = [(k[others], v[others]) for k, v in full.kv]
            part = model.forward(self.tokens[rows], rows, past)
            self.assert_close(part.logits, full.logits[rows])
            for (k, v), (full_k, full_v) in zip(part.kv, full.kv, strict=True):
                self.assert_close(k, full_k[rows])
                self.assert_close(v, full_v[rows])

    def test_order_of_rows_does_not_matter_positions_do(self):
        for arch in ("llada", "dream"):
            model = self.load(arch)
            order = np.random.default_rng(1).permutation(40)
            full = model.logits(self.tokens)
            self.assert_close(model.logits(self.tokens[order], order), full[order])
            moved = model.logits(self.tokens[order])
            self.assertGreater(np.abs(moved - full[order]).max(), 0.1)

    def test_only_differences_of_positions_matter(self):
        for arch in ("llada", "dream"):
            model = self.load(arch)
            self.assert_close(model.logits(self.tokens, np.arange(40) + 1000), model.logits(self.tokens), 1e-6)

    def test_hidden_rows_have_no_effect(self):
        model = self.load("dream")
        visible = np.ones((40, 40), dtype=bool)
        visible[:30, 30:] = False
        self.assert_close(model.logits(self.tokens, attend=visible)[:30], model.logits(self.tokens[:30]))
        with self.assertRaises(ValueError):
            model.logits(self.tokens, attend=np.zeros((40, 40), dtype=bool))

    def test_every_row_sees_later_rows(self):
        for arch in ("llada", "dream"):
            model = self.load(arch)
            changed = self.tokens.copy()
            changed[39] += 1
            self.assertGreater(np.abs(model.logits(changed) - model.logits(self.tokens))[0].max(), 1e-3)

    def test_biases_matter(self):
        model = self.load("dream")
        with_bias = model.logits(self.tokens)
        for layer in model.layers:
            layer.qkv_bias = None
        self.assertGreater(np.abs(model.logits(self.tokens) - with_bias).max(), 1.0)

    def test_chosen_logit_rows(self):
        model = self.load("llada")
        rows = [39, 0, 0]
        self.assert_close(model.forward(self.tokens, logit_rows=rows).logits, model.logits(self.tokens)[rows])
        self.assertEqual(model.forward(self.tokens, logit_rows=[]).logits.shape, (0, model.config.n_vocab))

    def test_float32_agrees_with_float64(self):
        for arch in ("llada", "dream"):
            path = made(self.directory, arch)
            single, double = (Model.load(path, t).logits(self.tokens) for t in (np.float32, np.float64))
            self.assertEqual(single.dtype, np.float32)
            self.assertLess(((single - double) ** 2).sum() / (double**2).sum(), 1e-9)

    def test_tied_output_is_the_embedding(self):
        model = self.load("dream", tied=True)
        self.assertIs(model.output, model.token_embd)

    def test_fused_qkv_equals_its_parts(self):
        for arch in ("llada", "dream"):
            path = made(self.directory, arch)
            apart = Model.load(path)
            fused = Container.read(path)
            for i in range(apart.config.n_layer):
                for suffix in ("weight", "bias") if arch == "dream" else ("weight",):
                    fuse(fused, [f"blk.{i}.attn_{part}.{suffix}" for part in "qkv"], f"blk.{i}.attn_qkv.{suffix}")
            path.write_bytes(fused.encode())
            np.testing.assert_array_equal(Model.load(path).logits(self.tokens), apart.logits(self.tokens))

    def test_an_adapter_adds_products_of_its_factors(self):
        path = made(self.directory, "llada")
        model, out = Model.load(path, np.float64), self.directory / "adapter.gguf"
        n_layer = SHAPES["tiny"].n_layer
        self.assertEqual(adapter.make(path, out, 4, 8.0, "F32", adapter.ALL, 1, 0.5), 7 * n_layer)
        plain, added = model.logits(self.tokens), adapter.add(model, out, 0.5).logits(self.tokens)
        self.assertGreater(np.abs(added - plain).max(), 0.1)
        self.assert_close(adapter.add(model, out, 0.0).logits(self.tokens), plain)
        self.assert_close(model.logits(self.tokens), plain)
        # Twice one half is the whole, and a product apart is the same as one of the sum.
        whole = adapter.add(model, out, 1.0)
        self.assert_close(adapter.add(adapter.add(model, out, 0.5), out, 0.5).logits(self.tokens), whole.logits(self.tokens))
        factors = {t.name: t.data for t in GGUFReader(out).tensors}
        x = np.random.default_rng(3).standard_normal((5, SHAPES["tiny"].n_ff))
        a, b = (factors[f"blk.1.ffn_down.weight.lora_{name}"].astype(np.float64) for name in "ab")
        apart = x @ model.layers[1].ffn_down.T + 8.0 / 4 * (x @ a.T @ b.T)
        self.assert_close(x @ whole.layers[1].ffn_down.T, apart)

    def test_twin_has_the_same_logits(self):
        for arch, other in (("llada", "llama"), ("dream", "qwen2")):
            path = made(self.directory, arch)
            target = self.directory / "twin.gguf"
            self.assertEqual(twin(path, target), other)
            relabelled = Model.load(target)
            self.assertEqual(relabelled.config.arch, other)
            self.assertFalse(any(k.name.startswith(arch.encode()) for k in Container.read(target).keys))
            np.testing.assert_array_equal(relabelled.logits(self.tokens), Model.load(path).logits(self.tokens))

    def test_defaults_of_the_architecture(self):
        cases = (("llada", None, False), ("llada", True, True), ("dream", None, True), ("dream", False, False))
        for arch, key, shifted in cases:
            self.assertEqual(self.load(arch, shift=key).config.shift_logits, shifted, (arch, key))
        self.assertEqual(self.load("llada").config.mask_id, self.load("llada", mask_key=False).config.mask_id)

    @unittest.skipUnless(TRIAL_MODEL, "REFERENCE_TRIAL_MODEL names no file")
    def test_trained_model_completes_its_task(self):
        prompt = [2, 301, 29, 224, 25, 24, 19, 21, 23, 3]
        logits = Model.load(TRIAL_MODEL).logits(prompt + [1] * 46 + [0] * 32)
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        self.assertEqual(logits[9:17].argmax(axis=1).tolist(), [261, 86, 346, 362, 386, 366, 359, 0])
        self.assertAlmostEqual(float(p[9].max()), 0.303, places=2)
        self.assertGreater(p[10:17].max(axis=1).min(), 0.999)


def fuse(container: Container, parts: list[str], whole: str) -> None:
    """Replaces tensors of equal row length by their concatenation."""
    infos = [container.tensor(part) for part in parts]
    data = b"".join(container.data[t.offset : t.offset + t.size_bytes()] for t in infos)
    new = replace(infos[0], name=whole.encode(), dims=infos[0].dims[:-1] + [sum(t.dims[-1] for t in infos)])
    for part in parts:
        container.remove_tensor(part)
    new.offset = len(container.data)
    container.tensors.append(new)
    container.data += data + b"\0" * (-len(data) % container.alignment)


class MakeTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)

    def test_same_arguments_same_bytes(self):
        a, b = self.directory / "a.gguf", self.directory / "b.gguf"
        for path in (a, b):
            make(path, Spec("dream", SHAPES["tiny"], seed=3))
        self.assertEqual(a.read_bytes(), b.read_bytes())
        make(b, Spec("dream", SHAPES["tiny"], seed=4))
        self.assertNotEqual(a.read_bytes(), b.read_bytes())

    def test_every_type_has_the_wanted_spread(self):
        path = self.directory / "a.gguf"
        for name in TYPES:
            for quick in (False, True):
                make(path, Spec("llada", SHAPES["256"], type=name, quick=quick))
                weight = Model.load(path).layers[1].ffn_down
                spread = weight.std() * SHAPES["256"].n_ff ** 0.5
                # Three levels cannot follow a normal distribution closely.
                self.assertAlmostEqual(spread, 1.0, delta=0.25 if name.startswith("TQ") else 0.1, msg=name)
                self.assertTrue(np.isfinite(weight).all(), name)

    def test_types_by_name(self):
        path = self.directory / "a.gguf"
        make(path, Spec("llada", SHAPES["tiny"], type="Q8_0", tensor_types=(("ffn_", "Q4_0"), ("attn_[qk]", "F32"))))
        container = Container.read(path)
        names = ("blk.0.ffn_up.weight", "blk.1.attn_k.weight", "blk.1.attn_v.weight", "output_norm.weight")
        self.assertEqual([container.tensor(name).type for name in names], [2, 0, 8, 0])


if __name__ == "__main__":
    unittest.main()
