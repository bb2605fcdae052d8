"""Runs the patched llama-diffusion-cli, with the scripted backend of tests/fixtures/fake_backend.c or with another one."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import tempfile
import termios
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from reference.container import Container
from reference.make_gguf import SHAPES, Spec, make

REPO = Path(__file__).resolve().parents[2]
CACHE = Path(os.environ.get("LLADA_NPU_CACHE") or Path.home() / ".cache" / "llada-npu")
STOCK = CACHE / "llama.cpp" / "stock"
TOOL = CACHE / "llama.cpp" / "patched" / "build" / "bin" / "llama-diffusion-cli"

_scratch = tempfile.TemporaryDirectory(prefix="llada-npu-tools-")
SCRATCH = Path(_scratch.name)


@dataclass(frozen=True)
class Result:
    """How a run ended, what it printed, and the calls the scripted backend received."""

    code: int
    out: bytes
    err: str
    calls: list[str]

    def call(self, name: str) -> list[str]:
        """The calls of that name, without it."""
        return [line[len(name) + 1:] for line in self.calls if line.split(" ")[0] == name]


@cache
def fake_backend() -> Path:
    """Compiles the scripted backend."""
    library = SCRATCH / "libggml-fake.so"
    subprocess.run(
        ["cc", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC",
         "-I", STOCK / "ggml" / "include", "-I", STOCK / "ggml" / "src", "-I", REPO / "backend" / "include",
         REPO / "tests" / "fixtures" / "fake_backend.c", "-o", library],
        check=True,
    )
    return library


@cache
def flush_log() -> Path:
    """Compiles the library that keeps stock's tools from losing the end of what they write, for LD_PRELOAD."""
    library = SCRATCH / "libflush_log.so"
    source = REPO / "tests" / "fixtures" / "flush_log.c"
    subprocess.run(["cc", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", source, "-o", library], check=True)
    return library


@cache
def model(arch: str = "llada") -> Path:
    """Makes a small model with random weights and a byte-level vocabulary."""
    path = SCRATCH / f"{arch}.gguf"
    make(path, Spec(arch, SHAPES["tiny"]))
    return path


def variant(name: str, change: Callable[[Container], None]) -> Path:
    """Writes a changed copy of the model."""
    path = SCRATCH / f"{name}.gguf"
    container = Container.read(model())
    change(container)
    path.write_bytes(container.encode())
    return path


def environment(**extra: str) -> dict[str, str]:
    """This process's environment without what would change the tool's behaviour."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("LLAMA_ARG_", "FAKE_", "GGML_"))}
    return {**kept, **extra}


def run(*args: str | Path, tool: Path = TOOL, backend: Path | None = None, timeout: float = 120, cwd: Path | None = None,
        **extra: str) -> Result:
    """Runs the tool with standard output and standard error apart."""
    log = Path(tempfile.mkstemp(dir=SCRATCH)[1])
    env = environment(FAKE_LOG=str(log), **extra)
    if backend is not None:
        env["GGML_BACKEND_PATH"] = str(backend)
    done = subprocess.run([tool, *args], env=env, capture_output=True, timeout=timeout, check=False, cwd=cwd,
                          stdin=subprocess.DEVNULL)
    return Result(done.returncode, done.stdout, done.stderr.decode(errors="replace"), log.read_text().splitlines())


def fake(*args: str | Path, text: str | bytes = "hello", prompt: str = "hi", **extra: str) -> Result:
    """Runs the tool with the scripted backend, which answers with the text."""
    raw = text.encode() if isinstance(text, str) else text
    extra["FAKE_TEXT"] = os.fsdecode(raw)
    return run("-m", model(), "-p", prompt, "--backend", "fake", *args, backend=fake_backend(), **extra)


def fake_on_terminal(*args: str | Path, stdout_too: bool, text: str = "hello", size: tuple[int, int] = (80, 24),
                     **extra: str) -> tuple[int, bytes, bytes]:
    """The same with standard error (and standard output) on a terminal; returns the exit code, stdout, and the terminal."""
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, size[::-1])
    env = environment(**{"FAKE_TEXT": text, "GGML_BACKEND_PATH": str(fake_backend()), "TERM": "xterm", "NO_COLOR": "", **extra})
    command = [TOOL, "-m", model(), "-p", "hi", "--backend", "fake", *args]
    process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stderr=slave,
                               stdout=slave if stdout_too else subprocess.PIPE)
    os.close(slave)
    screen = bytearray()
    while True:
        try:
            read = os.read(master, 4096)
        except OSError:  # the other end is closed
            break
        if not read:
            break
        screen += read
    out = b""
    if process.stdout is not None:
        with process.stdout as pipe:
            out = pipe.read()
    os.close(master)
    return process.wait(timeout=60), out, bytes(screen)


def interrupt_after(n_bytes: int, *args: str | Path, **extra: str) -> tuple[int, bytes, str]:
    """Starts the tool with the scripted backend and sends SIGINT when it has printed some bytes of the answer."""
    env = environment(GGML_BACKEND_PATH=str(fake_backend()), **extra)
    process = subprocess.Popen([TOOL, "-m", model(), "-p", "hi", "--backend", "fake", *args], env=env,
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    first = process.stdout.read(n_bytes)
    process.send_signal(signal.SIGINT)
    started = time.monotonic()
    out, err = process.communicate(timeout=60)
    assert time.monotonic() - started < 30
    return process.returncode, first + out, err.decode(errors="replace")


def load_json(path: Path) -> dict[str, object]:
    """Reads a report."""
    return json.loads(path.read_text())
