"""The broken files: each differs from the good one in what its name says, and the odd but right ones can be read."""

import json
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from reference.container import Container
from reference.corrupt import write_all
from reference.make_gguf import SHAPES, Spec, make
from reference.model import Model


class CorruptTest(unittest.TestCase):
    def test_variants(self):
        with tempfile.TemporaryDirectory() as directory:
            good = Path(directory) / "good.gguf"
            make(good, Spec("llada", SHAPES["tiny"], shift=False))
            data = good.read_bytes()
            self.assertEqual(Container.read(good).encode(), data, "taking apart and putting together changes nothing")
            out = Path(directory) / "bad"
            manifest = write_all(good, out)
            self.assertEqual(json.loads((out / "manifest.json").read_text()), manifest)
            names = [entry["file"] for entry in manifest]
            self.assertEqual(len(set(names)), len(names))
            self.assertGreater(len(names), 70)
            for entry in manifest:
                bad = (out / entry["file"]).read_bytes()
                self.assertNotEqual(bad, data, entry["file"])
                if entry["loads"]:
                    Model.load(out / entry["file"]).logits([1, 2, 3])
            missing = Container.read(out / "missing-blk.1.attn_k.weight.gguf")
            whole = Container.read(good)
            for t in missing.tensors:
                same = whole.tensor(t.name.decode())
                a = missing.data[t.offset : t.offset + t.size_bytes()]
                self.assertEqual(a, whole.data[same.offset : same.offset + same.size_bytes()], t.name)


if __name__ == "__main__":
    unittest.main()
