"""Stock `ggml-rpc-server` serves the device: a client on loopback gets the logits that it gets from the device itself."""

from __future__ import annotations

import socket
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

import numpy as np

from reference.make_gguf import Shape, Spec, make

from .harness import STOCK, environment
from .test_repack import PLUGIN, device, log_probabilities, tiles

BIN = STOCK / "build-rpc" / "bin"
SERVER = BIN / "ggml-rpc-server"
# K and V have 24 rows, the output 501: no multiples of a tile's 32.
SHAPE = Shape(n_embd=768, n_layer=2, n_head=32, n_head_kv=1, n_ff=768, n_vocab=501)


class Server:
    """A server of the device on a port of its own."""

    def __init__(self, cache: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.log = cache / "server.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [SERVER, "-H", "127.0.0.1", "-p", str(self.port), "-d", "llada-npu"],
                env=device(cache) | {"LLADA_NPU_LOG": "trace"}, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log,
            )

    def __enter__(self) -> Server:
        deadline = time.monotonic() + 30
        while self.process.poll() is None and time.monotonic() < deadline:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return self
            except OSError:
                time.sleep(0.02)
        self.__exit__()
        raise AssertionError(f"the server did not start: {self.log.read_text(errors='replace')[-2000:]}")

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()


class Rpc(unittest.TestCase):
    """The device behind stock's server."""

    def test_a_client_gets_the_logits_of_the_device(self) -> None:
        for needed in (SERVER, PLUGIN):
            if not needed.exists():
                self.skipTest(f"{needed} is missing")
        for qtype, limit in (("Q4_K", 2e-3), ("Q6_K", 4e-3)):
            with self.subTest(type=qtype), tempfile.TemporaryDirectory(prefix="llada-npu-rpc-") as name:
                scratch = Path(name)
                path = scratch / "model.gguf"
                make(path, Spec("llama", SHAPE, type=qtype, quick=True))
                cpu = log_probabilities(path, "--device", "none", env=environment())
                local = log_probabilities(path, "--device", "llada-npu", env=device(scratch / "local"))
                with Server(scratch) as server:
                    # The client has the backend of the client's side and not the plug-in.
                    client = environment(GGML_BACKEND_PATH=str(BIN / "libggml-rpc.so"))
                    remote = log_probabilities(path, "--rpc", f"127.0.0.1:{server.port}", "--device", "RPC0", env=client)
                    log = server.log.read_text(errors="replace")
                self.assertIn("MUL_MAT native", log)
                self.assertNotIn("MUL_MAT delegated", log)
                self.assertEqual(len(tiles(scratch)), 15)
                np.testing.assert_array_equal(remote, local)
                nmse = ((remote - cpu) ** 2).sum() / ((cpu - cpu.mean(axis=1, keepdims=True)) ** 2).sum()
                self.assertLessEqual(nmse, limit)


if __name__ == "__main__":
    unittest.main()
