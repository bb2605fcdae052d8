"""Stock tools place their threads (`-t`, `--cpu-mask`, `--cpu-strict`): the threads of the device go where theirs are."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

from .test_repack import BIN, PLUGIN, completion, device, model


def placed(pid: int, name: str) -> list[str]:
    """The processors that the threads of a process may run on whose name starts so."""
    places = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            comm, status = ((task / file).read_text(encoding="utf-8") for file in ("comm", "status"))
        except (FileNotFoundError, ProcessLookupError):
            continue
        if comm.startswith(name):
            places += [line.split()[1] for line in status.splitlines() if line.startswith("Cpus_allowed_list:")]
    return places


@unittest.skipUnless({0, 1} <= os.sched_getaffinity(0), "needs processors 0 and 1")
class Threads(unittest.TestCase):
    """The pool of the device under llama-completion."""

    def test_they_are_as_many_as_asked_for_and_go_where_the_tool_says(self) -> None:
        for needed in (BIN / "llama-completion", PLUGIN):
            if not needed.exists():
                self.skipTest(f"{needed} is missing")
        path = model("llama", "Q4_0")
        both, strict = ("--cpu-mask", "0x3"), ("--cpu-strict", "1")
        for arguments, expected in (
            (("-t", "1", *both), []),
            (("-t", "2", "--cpu-mask", "0x1"), ["0"]),
            (("-t", "2", "--cpu-mask", "0x2"), ["1"]),
            (("-t", "2", *both), ["0-1"]),
            (("-t", "2", *both, *strict), ["0-1"]),
            (("-t", "3", "--cpu-range", "0-1"), ["0-1", "0-1"]),
        ):
            with self.subTest(arguments=arguments), tempfile.TemporaryDirectory(prefix="llada-npu-cache-") as cache:
                env = device(cache)
                self.check(completion(path, 100000) + list(arguments), env, expected)

    def check(self, command: list[str | Path], env: dict[str, str], expected: list[str]) -> None:
        """Runs a tool until its text has begun, and looks where its threads are: ours follow within some steps."""
        with subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL) as process:
            try:
                assert process.stdout
                deadline = time.monotonic() + 10
                while True:
                    self.assertTrue(process.stdout.read(16))  # the prompt and the first tokens, then more
                    process.send_signal(signal.SIGSTOP)
                    places = placed(process.pid, "llada-npu-")
                    if places == expected or time.monotonic() > deadline:
                        break
                    process.send_signal(signal.SIGCONT)
                    time.sleep(0.02)
                self.assertEqual(places, expected)
            finally:
                process.kill()


if __name__ == "__main__":
    unittest.main()
