"""Stock tools on the device: repacked weights are made once, shared, never needed, and give the logits of the CPU."""

from __future__ import annotations

import os
import re
import signal
import struct
import subprocess
import tempfile
import time
import unittest
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from reference.make_gguf import SHAPES, Spec, make

from .harness import REPO, STOCK, environment, flush_log

BIN = STOCK / "build" / "bin"
TARGET = Path(os.environ.get("CARGO_TARGET_DIR") or REPO / "target")
PLUGIN = TARGET / "release" / "libggml-llada-npu.so"

# What a cache that cannot be used costs.
WARNING = "repack cache .*weights are repacked in memory"

_scratch = tempfile.TemporaryDirectory(prefix="llada-npu-repack-")
SCRATCH = Path(_scratch.name)


def model(arch: str, qtype: str, **gains: float) -> Path:
    """Makes a small model with random weights."""
    path = SCRATCH / ("-".join([arch, qtype, *map(str, gains.values())]) + ".gguf")
    if not path.exists():
        make(path, Spec(arch, SHAPES["256"], type=qtype, quick=True, **gains))
    return path


def device(cache: Path | str, **extra: str) -> dict[str, str]:
    """The environment of a tool with the plug-in and a cache of its own."""
    return environment(GGML_BACKEND_PATH=str(PLUGIN), LLADA_NPU_CACHE=str(cache), LLADA_NPU_LOG="debug",
                       LD_PRELOAD=str(flush_log()), **extra)


def completion(path: Path, n: int = 8) -> list[str | Path]:
    """A command that generates `n` tokens on the device."""
    return [BIN / "llama-completion", "-m", path, "-p", "1 2 3", "-no-cnv", "-n", str(n), "-c", "512", "--temp", "0",
            "--ignore-eos", "-t", "2", "--device", "llada-npu", "-lv", "5"]


def generate(path: Path, env: dict[str, str], under: Sequence[str] = ()) -> tuple[str, str]:
    """Generates, under another command if there is one; returns the text and what was logged."""
    done = subprocess.run([*under, *completion(path)], env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-2000:]
    return done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")


def tiles(cache: Path) -> dict[str, int]:
    """The files of a cache, and when each was written: its inode."""
    return {path.name: path.stat().st_ino for path in (cache / "repack").glob("*.tiles")}


def nmse(values: np.ndarray, wanted: np.ndarray) -> float:
    """The power of the error over that of what is wanted, each row about its mean."""
    return float(((values - wanted) ** 2).sum() / ((wanted - wanted.mean(axis=1, keepdims=True)) ** 2).sum())


def log_probabilities(path: Path, *arguments: str, env: dict[str, str]) -> np.ndarray:
    """Log probabilities of a text's second halves, as llama-perplexity keeps them: 16 bits, at most 16 below the best."""
    text, out = SCRATCH / "text.txt", SCRATCH / "log-probabilities"
    text.write_text(" ".join(map(str, range(400))), encoding="utf-8")
    subprocess.run(
        [BIN / "llama-perplexity", "-m", path, "-f", text, "-c", "128", "-b", "128", "--chunks", "3", "-t", "2",
         "--kl-divergence-base", out, *arguments],
        env=env, capture_output=True, timeout=120, check=True,
    )
    data = out.read_bytes()
    assert data[:8] == b"_logits_"
    n_ctx, n_vocab, n_chunk = struct.unpack("<iii", data[8:20])
    rows = np.frombuffer(data[20 + 4 * n_ctx * n_chunk:], dtype="<u2").reshape(-1, 2 * ((n_vocab + 1) // 2) + 4)
    scale = rows[:, :4].copy().view("<f4")
    return rows[:, 4:4 + n_vocab] * scale[:, :1] + scale[:, 1:]


class Repack(unittest.TestCase):
    """The repack cache under stock tools."""

    def setUp(self) -> None:
        for needed in (BIN / "llama-completion", PLUGIN):
            if not needed.exists():
                self.skipTest(f"{needed} is missing")
        directory = tempfile.TemporaryDirectory(prefix="llada-npu-cache-")
        self.addCleanup(directory.cleanup)
        self.cache = Path(directory.name)

    def test_the_second_load_packs_nothing_and_gives_the_same_text(self) -> None:
        path = model("llama", "Q4_0")
        plain, _ = generate(path, device(self.cache, LLADA_NPU_REPACK="memory"))
        self.assertEqual(tiles(self.cache), {})
        first, _ = generate(path, device(self.cache))
        files = tiles(self.cache)
        # Seven matrices in each of two layers, and the output.
        self.assertEqual(len(files), 15)
        second, _ = generate(path, device(self.cache))
        self.assertEqual(tiles(self.cache), files)
        self.assertEqual([first, second], [plain, plain])

    def test_damage_is_noticed_and_repaired(self) -> None:
        path = model("llama", "Q4_0")
        text, _ = generate(path, device(self.cache))
        files = tiles(self.cache)
        for i, name in enumerate(files):
            file = self.cache / "repack" / name
            data = bytearray(file.read_bytes())
            data[(i * 997) % len(data)] ^= 1
            file.write_bytes(data)
        again, _ = generate(path, device(self.cache))
        self.assertEqual(again, text)
        self.assertEqual(tiles(self.cache).keys(), files.keys())

    def test_a_killed_writer_leaves_a_working_cache(self) -> None:
        path = model("llama", "Q4_0")
        text, _ = generate(path, device(self.cache, LLADA_NPU_REPACK="memory"))
        with subprocess.Popen(completion(path), env=device(self.cache), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL) as writer:
            repack = self.cache / "repack"
            while writer.poll() is None and not (repack.exists() and any(repack.iterdir())):
                time.sleep(0.0005)
            writer.send_signal(signal.SIGKILL)
        again, _ = generate(path, device(self.cache))
        self.assertEqual(again, text)
        self.assertEqual(len(tiles(self.cache)), 15)

    def test_places_that_cannot_hold_a_cache_cost_one_warning(self) -> None:
        path = model("llama", "Q4_0")
        text, _ = generate(path, device(self.cache, LLADA_NPU_REPACK="memory"))
        file = self.cache / "file"
        file.write_bytes(b"")
        places = [file, Path("/proc/none")]
        for name, options in (("full", "size=64k"), ("read-only", "ro")):
            place = self.cache / name
            place.mkdir()
            mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", place]
            if subprocess.run(mount, capture_output=True, check=False).returncode == 0:
                self.addCleanup(subprocess.run, ["umount", place], check=True)
                places.append(place)
        for place in places:
            again, log = generate(path, device(place))
            self.assertEqual(again, text, place)
            self.assertEqual(len(re.findall(WARNING, log)), 1, place)

    def test_a_directory_without_permission_to_write_is_read(self) -> None:
        # Root may write everywhere unless that is taken from it.
        unprivileged = [] if os.geteuid() else ["setpriv", "--bounding-set=-dac_override", "--inh-caps=-dac_override"]
        path = model("llama", "Q4_0")
        text, _ = generate(path, device(self.cache))
        repack = self.cache / "repack"
        files = tiles(self.cache)
        made_again = sorted(files)[0]
        (repack / made_again).unlink()
        repack.chmod(0o555)
        self.addCleanup(repack.chmod, 0o755)
        again, log = generate(path, device(self.cache), unprivileged)
        self.assertEqual(again, text)
        self.assertEqual(tiles(self.cache), {name: file for name, file in files.items() if name != made_again})
        self.assertEqual(len(re.findall(WARNING, log)), 1, log[-2000:])

    def test_a_writer_that_may_write_no_more_goes_on_without(self) -> None:
        path = model("llama", "Q4_0")
        text, _ = generate(path, device(self.cache, LLADA_NPU_REPACK="memory"))
        # Files of at most 64 KiB, and an error instead of the signal: the small matrices are kept, the larger ones not.
        again, log = generate(path, device(self.cache), ["env", "--ignore-signal=XFSZ", "prlimit", "--fsize=65536"])
        self.assertEqual(again, text)
        files = tiles(self.cache)
        self.assertTrue(0 < len(files) < 15, files)
        self.assertEqual(len(re.findall(WARNING, log)), 1, log[-2000:])
        self.assertEqual(sorted(path.name for path in (self.cache / "repack").iterdir() if path.suffix != ".lock"), sorted(files))
        again, _ = generate(path, device(self.cache))
        self.assertEqual((again, len(tiles(self.cache))), (text, 15))

    def test_processes_share_the_pages(self) -> None:
        path = model("llama", "Q8_0")
        generate(path, device(self.cache))
        started = [subprocess.Popen(completion(path, 100000), env=device(self.cache), stdin=subprocess.DEVNULL,
                                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for _ in range(2)]
        try:
            deadline = time.monotonic() + 60
            while True:
                maps = [mapped(process.pid) for process in started]
                if all(n == 15 for n, _, _ in maps):
                    break
                self.assertTrue(all(process.poll() is None for process in started) and time.monotonic() < deadline, maps)
                time.sleep(0.02)
            # The first was looked at before the second had its maps.
            for n, rss, pss in [mapped(process.pid) for process in started]:
                self.assertGreater(rss, 500, (n, rss, pss))
                self.assertLess(pss, 0.75 * rss, (n, rss, pss))
        finally:
            for process in started:
                process.kill()
                process.wait()

    def test_logits_are_those_of_the_cpu(self) -> None:
        # An activation near the middle between two integers is rounded one way or the other by the last bit of a sum. In networks
        # whose layers add little to a row, as where training begins, the CPU gives its own logits within these limits again when
        # norms move by one unit in the last place; where they add more it does not (README).
        for qtype, limit in (("F16", 1e-6), ("Q8_0", 1e-4), ("Q4_0", 1e-4), ("Q4_K", 1e-4), ("Q6_K", 1e-4)):
            for arch in ("llada", "dream", "llama", "qwen2"):
                path = model(arch, qtype, attention_gain=1.0, branch_gain=0.25)
                cpu = log_probabilities(path, "--device", "none", env=environment())
                ours = log_probabilities(path, "--device", "llada-npu", env=device(self.cache))
                error = nmse(ours, cpu)
                with self.subTest(arch=arch, type=qtype, error=error):
                    self.assertLessEqual(error, limit)


def mapped(pid: int) -> tuple[int, int, int]:
    """Maps of tiles in a process: how many, KiB that are resident, and its share of them."""
    n, rss, pss, inside = 0, 0, 0, False
    try:
        lines = Path(f"/proc/{pid}/smaps").read_text(encoding="utf-8").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        lines = []
    for line in lines:
        if re.match("[0-9a-f]+-[0-9a-f]+ ", line):
            inside = ".tiles" in line
            n += inside
        elif inside and line.startswith("Rss:"):
            rss += int(line.split()[1])
        elif inside and line.startswith("Pss:"):
            pss += int(line.split()[1])
    return n, rss, pss


if __name__ == "__main__":
    unittest.main()
