"""scripts/run.sh: the plug-in in the patched tool, with the trained model."""

import json
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tools.harness import REPO, environment


def run(*args: str, **extra: str) -> subprocess.CompletedProcess:
    """Runs the script from another directory."""
    return subprocess.run([REPO / "scripts" / "run.sh", *args], env=environment(**extra), cwd="/", capture_output=True,
                          text=True, check=False, stdin=subprocess.DEVNULL)


class Run(unittest.TestCase):
    def test_three_prompts_get_right_answers(self):
        done = run()
        self.assertEqual(done.returncode, 0, done.stderr)
        tasks = [json.loads(line) for line in (REPO / "tests" / "tasks" / "test.jsonl").read_text().splitlines()]
        answers = {task["prompt"]: task["answer"] for task in tasks}
        prompts = [line.removeprefix("> ") for line in done.stderr.splitlines() if line.startswith("> ")]
        self.assertEqual(len(prompts), 3)
        self.assertEqual(done.stdout.splitlines(), [answers[prompt] for prompt in prompts])
        for what in (" forwards (", " tokens per step", " tokens/s "):
            self.assertEqual(done.stderr.count(what), 3, done.stderr)

    def test_help_sets_nothing_up(self):
        with tempfile.TemporaryDirectory() as directory:
            cache = Path(directory) / "cache"
            for flag in ("-h", "--help"):
                done = run(flag, LLADA_NPU_CACHE=str(cache))
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                self.assertIn("Usage: scripts/run.sh", done.stdout)
            self.assertFalse(cache.exists())

    def test_arguments_are_passed_on(self):
        done = run("-p", "Spell: 46881", "-n", "3")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(" 3 tokens generated", done.stderr)
        self.assertTrue("forty six thousand".startswith(done.stdout.strip()) and done.stdout.strip(), done.stdout)
        done = run("-p", "x", "-n", "0")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("error: -n 0: ", done.stderr)

    def test_every_option_of_the_plug_in_can_be_set(self):
        spell = ["-p", "Spell: 46881", "-n", "24", "--diffusion-set"]
        n_forwards = []
        for options in ("mode=full", "tau-visible=inf,revision-budget=0,lookahead-max=0"):
            done = run(*spell, options)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(done.stdout, "forty six thousand eight hundred eighty one\n")
            n_forwards.append(int(re.search(r"diffusion: ([0-9]+) forwards", done.stderr)[1]))
        self.assertLess(3 * n_forwards[0], n_forwards[1])
        for options, error in (
            ("tau-visible=x", "option `tau-visible`: `x` is not a number of 0 or more, or inf"),
            ("threshold=0.5", "option `threshold` has no meaning in mode `full`"),
        ):
            done = run(*spell, options)
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertIn(f"error: {error}\n", done.stderr)


if __name__ == "__main__":
    unittest.main()
