"""llama-diffusion-cli with a backend's decoding mode: what the host program itself has to get right.

The backend is scripted, so every answer is known; the sequence of calls it received is part of what is checked.
"""

import re
import shutil
import subprocess
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from reference.container import string
from tools.harness import (
    SCRATCH,
    STOCK,
    TOOL,
    environment,
    fake,
    fake_backend,
    fake_on_terminal,
    interrupt_after,
    load_json,
    model,
    run,
    variant,
)

UNSUPPORTED, FAILED = -2, -3


def set_template(text: bytes):
    """A change of the model's chat template."""
    def change(container):
        container.key("tokenizer.chat_template").value = string(text)
    return change


class Answer(unittest.TestCase):
    def test_answer_alone_is_on_stdout(self):
        result = fake(text="hello")
        self.assertEqual((result.code, result.out), (0, b"hello\n"), result.err)
        self.assertIn("5 forwards (prefill 1, refresh 0, step 4", result.err)
        self.assertIn("tokens per step", result.err)
        self.assertIn("tokens/s", result.err)

    def test_empty_answer(self):
        self.assertEqual(fake(text="").out, b"\n")

    def test_sequences_of_several_tokens(self):
        for text in ("naïve ąęł", "日本語", "😀😀", "a\nb\tc"):
            self.assertEqual(fake(text=text).out.decode(), text + "\n")

    def test_only_whole_sequences_are_written(self):
        # interrupted in the middle of a four-byte sequence
        code, out, err = interrupt_after(2, FAKE_TEXT="ab😀", FAKE_STEP_MS="300")
        self.assertEqual(code, 130, err)
        self.assertIn(out.decode(), ("ab\n", "ab\ufffd\n"))

    def test_bytes_that_are_no_text(self):
        self.assertEqual(fake(text=b"a\xffb\xe2\x82").out.decode(), "a\ufffdb\ufffd\n")

    def test_every_run_prints_it(self):
        self.assertEqual({fake(text="forty two").out for _ in range(20)}, {b"forty two\n"})

    def test_length_is_n(self):
        result = fake("-n", "7", text="0123456789")
        self.assertEqual(result.out, b"0123456\n")
        self.assertIn("check n_prompt=19 n_generate=7", result.calls)

    def test_default_length(self):
        self.assertIn("check n_prompt=19 n_generate=128", fake().calls)
        self.assertIn("check n_prompt=19 n_generate=21", fake("-c", "40").calls)

    def test_progress_does_not_cut_the_answer_in_one_file(self):
        done = subprocess.run([TOOL, "-m", model(), "-p", "hi", "--backend", "fake"], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, env=environment(GGML_BACKEND_PATH=str(fake_backend())), check=False)
        self.assertIn("hello", done.stdout.decode().splitlines())

    def test_unwritable_stdout(self):
        with open("/dev/full", "wb") as full:
            done = subprocess.run([TOOL, "-m", model(), "-p", "hi", "--backend", "fake"], stdout=full,
                                  stderr=subprocess.PIPE, env=environment(GGML_BACKEND_PATH=str(fake_backend())), check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"error: cannot write the answer to the standard output", done.stderr)


class Prompt(unittest.TestCase):
    def test_chat_template(self):
        self.assertEqual(fake().call("generate"), ["128 <us<|hi<|<assist<t|"])  # "er" and "an" are one token each

    def test_no_chat_template(self):
        self.assertEqual(fake("--no-chat-template").call("generate"), ["128 hi"])

    def test_system_prompt(self):
        self.assertEqual(fake("-sys", "no").call("generate"), ["128 <system|no<|<us<|hi<|<assist<t|"])

    def test_system_prompt_without_template(self):
        result = fake("-sys", "no", "--no-chat-template")
        self.assertEqual((result.code, result.calls), (1, []))
        self.assertIn("error: a system prompt needs a chat template", result.err)

    def test_prompt_file(self):
        path = SCRATCH / "prompt.txt"
        path.write_text("yo\n")
        self.assertEqual(fake("--no-chat-template", "-f", path).call("generate"), ["128 yo"])

    def test_model_without_template(self):
        plain = variant("no-template", lambda container: container.remove_key("tokenizer.chat_template"))
        self.assertEqual(fake("-m", plain).call("generate"), ["128 hi"])

    def test_template_that_cannot_be_used(self):
        broken = variant("broken-template", set_template(b"{% for message in messages %}{{ message"))
        result = fake("-m", broken)
        self.assertEqual((result.code, result.out), (1, b""))
        self.assertEqual(result.call("load"), [])
        self.assertIn("--no-chat-template", result.err)
        self.assertEqual(fake("-m", broken, "--no-chat-template").code, 0)


class Options(unittest.TestCase):
    def test_nothing_given_means_argmax(self):
        self.assertEqual(fake("-t", "2").call("session"),
                         ["n_ctx=0 n_threads=2 type_k=-1 type_v=-1 seed=4294967295 temperature=0 top_k=0 top_p=1"])

    def test_common_options_are_forwarded(self):
        result = fake("-t", "3", "-c", "99", "-s", "7", "--temp", "0.5", "--top-k", "4", "--top-p", "0.5", "-ctk", "f32",
                      "-ctv", "q8_0", "--check-tensors")
        self.assertEqual(result.call("session"),
                         ["n_ctx=99 n_threads=3 type_k=0 type_v=8 seed=7 temperature=0.5 top_k=4 top_p=0.5"])
        self.assertTrue(result.call("load")[0].endswith("check_tensors=1"))

    def test_diffusion_options_are_passed_as_given(self):
        result = fake("--diffusion-mode", "reference", "--diffusion-steps", "016", "--diffusion-threshold", "nan",
                      "--diffusion-algorithm", "entropy", "--diffusion-logits-eos-inf", "on")
        self.assertEqual(result.call("set"),
                         ["mode=reference", "steps=016", "threshold=nan", "algorithm=entropy", "logits-eos-inf=on"])

    def test_options_by_their_names(self):
        result = fake("--diffusion-set", "mode=reference,steps=016", "--diffusion-threshold", "0.5", "--diffusion-set",
                      'threshold=a=b,"eps=1,2"', "--diffusion-set", "algorithm=")
        self.assertEqual((result.code, result.out), (0, b"hello\n"), result.err)
        self.assertEqual(result.call("set"),
                         ["mode=reference", "steps=016", "threshold=0.5", "threshold=a=b", "eps=1,2", "algorithm="])
        self.assertNotIn("multiple times", result.err)

    def test_options_by_their_names_that_are_none(self):
        for given in ("threshold", "=1", "", "mode=full,", "mode=full,steps"):
            with self.subTest(given):
                result = fake("--diffusion-set", given)
                self.assertEqual((result.code, result.out, result.calls), (1, b"", []), result.err)
                self.assertIn("is not KEY=VALUE", result.err)

    def test_what_the_backend_refuses(self):
        for call in ("set", "check", "session", "load", "generate"):
            for args in (["--diffusion-threshold", "2"], ["--diffusion-set", "threshold=2"]):
                result = fake(*args, FAKE_FAIL=f"{call}:{FAILED}:threshold: 2 is above 1")
                self.assertEqual(result.code, 1)
                self.assertIn("error: threshold: 2 is above 1\n", result.err)

    def test_option_unknown_to_the_backend(self):
        for args in (["--diffusion-suffix", "all"], ["--diffusion-set", "mode=full,suffix=all"]):
            result = fake(*args)
            self.assertEqual((result.code, result.calls), (1, []))
            self.assertIn("error: the decoding mode of backend 'fake' has no option 'suffix'\n", result.err)

    def test_options_of_no_meaning_are_refused_before_loading(self):
        for args in (["-ot", "x=CPU"], ["--override-kv", "a=int:1"], ["--lora", "x.gguf"], ["-fa", "on"], ["--min-p", "0.1"],
                     ["--control-vector", "x.gguf"], ["--repeat-penalty", "1.1"], ["-l", "5+1"], ["--ignore-eos"],
                     ["--grammar", "root ::= 'a'"], ["-tb", "4"], ["--rope-freq-base", "1"], ["--no-repack"],
                     ["--samplers", "top_k"], ["--mirostat", "1"], ["--keep", "1"], ["-sm", "none"], ["--xtc-threshold", "0.2"]):
            with self.subTest(args):
                result = fake(*args)
                self.assertEqual((result.code, result.calls), (1, []), result.err)
                self.assertIn(f"error: {args[0]} is not supported by the decoding mode of backend 'fake'\n", result.err)

    def test_options_of_no_effect_are_told(self):
        result = fake("-b", "64", "-ub", "64", "-ngl", "99")
        self.assertEqual(result.code, 0, result.err)
        for name in ("-b", "-ub", "-ngl"):
            self.assertIn(f"warning: {name} has no effect", result.err)

    def test_environment_is_for_all_programs(self):
        result = fake(LLAMA_ARG_FLASH_ATTN="on", LLAMA_ARG_N_PREDICT="9")
        self.assertEqual(result.code, 0, result.err)
        self.assertIn("warning: LLAMA_ARG_FLASH_ATTN has no effect", result.err)
        self.assertIn("check n_prompt=19 n_generate=9", result.calls)

    def test_lengths(self):
        for n in ("0", "-1", "-5"):
            result = fake("-n", n)
            self.assertEqual((result.code, result.calls), (1, []))
            self.assertIn(f"error: -n {n}:", result.err)
        result = fake("-c", "19")
        self.assertEqual(result.code, 1)
        self.assertIn("the prompt (19 tokens) leaves no room in the context (19 tokens)", result.err)


class Files(unittest.TestCase):
    def test_report(self):
        path = SCRATCH / "report.json"
        self.assertEqual(fake("--diffusion-json", path, text="abc").code, 0)
        self.assertEqual(load_json(path), {"n_generated": 3})

    def test_unwritable_report_is_refused_first(self):
        path = SCRATCH / "missing" / "report.json"
        result = fake("--diffusion-json", path)
        self.assertEqual((result.code, result.calls), (1, []))
        self.assertIn(f"error: cannot write the report to '{path}'", result.err)

    def test_failure_leaves_reports_alone(self):
        old, new = SCRATCH / "old.json", SCRATCH / "new.json"
        old.write_text("{}")
        for path in (old, new):
            self.assertEqual(fake("--diffusion-json", path, FAKE_FAIL=f"check:{FAILED}:no").code, 1)
        self.assertEqual(old.read_text(), "{}")
        self.assertFalse(new.exists())

    def test_missing_model(self):
        result = fake("-m", "/nonexistent.gguf", FAKE_FAIL=f"load:{FAILED}:/nonexistent.gguf: no such file")
        self.assertEqual((result.code, result.out), (1, b""))
        self.assertIn("error: /nonexistent.gguf: no such file\n", result.err)


class Models(unittest.TestCase):
    def test_diffusion_model_that_the_mode_lacks(self):
        result = fake("-n", "8", FAKE_FAIL=f"load:{UNSUPPORTED}:architecture 'llada' is not known")
        self.assertEqual(result.code, 0, result.err)
        self.assertIn("warning: architecture 'llada' is not known; using the plain loop", result.err)
        self.assertTrue(result.out.endswith(b"\n"))
        self.assertGreater(len(result.out), 1)

    def test_plain_loop_never_aborts(self):
        lacking = f"load:{UNSUPPORTED}:no"
        for args in (["--diffusion-block-length", "24"], ["--diffusion-block-length", "2147483647"], ["--diffusion-steps", "33"],
                     ["--diffusion-steps", "1"], ["--diffusion-steps", "2147483647"], ["--diffusion-eps", "0.001"]):
            with self.subTest(args):
                result = fake("-n", "9", *args, FAKE_FAIL=lacking)
                self.assertEqual(result.code, 0, result.err)
                self.assertNotEqual(result.out, b"")
        for args in (["-n", "2147483647"], ["--diffusion-block-length", "-1"], ["--diffusion-steps", "0"],
                     ["--diffusion-eps", "0.1", "--diffusion-block-length", "8"], ["--diffusion-threshold", "0.9"],
                     ["--diffusion-algorithm", "entropy"], ["--diffusion-set", "steps=4"]):
            with self.subTest(args):
                result = fake("-n", "9", *args, FAKE_FAIL=lacking)
                self.assertEqual((result.code, result.out), (1, b""), result.err)
                self.assertIn("error: ", result.err)

    def test_plain_loop_is_greedy_by_default(self):
        failing = f"load:{UNSUPPORTED}:no"
        self.assertEqual(len({fake("-n", "16", "-s", str(seed), FAKE_FAIL=failing).out for seed in range(3)}), 1)

    def test_autoregressive_model(self):
        result = fake("-m", model("llama"), FAKE_FAIL=f"load:{UNSUPPORTED}:architecture 'llama' is autoregressive")
        self.assertEqual((result.code, result.out), (1, b""))
        self.assertIn("error: architecture 'llama' is autoregressive\n", result.err)


class Backends(unittest.TestCase):
    def test_unknown(self):
        result = run("-m", model(), "-p", "hi", "--backend", "nothing-of-that-name")
        self.assertEqual((result.code, result.out), (1, b""))
        self.assertIn("backend 'nothing-of-that-name' not found", result.err)
        self.assertIn("GGML_BACKEND_PATH (not set)", result.err)
        self.assertIn("available backends: CPU", result.err)

    def test_name_in_any_case(self):
        result = run("-m", model(), "-p", "hi", "--backend", "FAKE", backend=fake_backend(), FAKE_TEXT="x")
        self.assertEqual((result.code, result.out), (0, b"x\n"), result.err)

    def test_beside_the_executable(self):
        tool = SCRATCH / "bin" / TOOL.name
        tool.parent.mkdir()
        shutil.copy(TOOL, tool)
        for name in (fake_backend(), TOOL.parent / "libggml-cpu.so"):
            shutil.copy(name, tool.parent)
        result = run("-m", model(), "-p", "hi", "--backend", "fake", tool=tool, FAKE_TEXT="x")
        self.assertEqual((result.code, result.out), (0, b"x\n"), result.err)
        self.assertNotEqual(run("-m", model(), "-p", "hi", "--backend", "fake").code, 0)

    def test_other_version_of_the_interface(self):
        result = fake(FAKE_VERSION="2")
        self.assertEqual((result.code, result.calls), (1, []))
        self.assertIn("its decoding mode has version 2, version 1 is needed", result.err)

    def test_device_of_another_backend(self):
        self.assertNotEqual(fake("--device", "none").code, 0)

    def test_backend_without_a_decoding_mode(self):
        args = ["-m", model(), "-p", "hi", "-ub", "64", "--diffusion-block-length", "32", "--diffusion-steps", "2", "-s", "1"]
        self.assertEqual(answer_of_stock(*args), answer_of_stock(*args, "--backend", "cpu"))
        result = run(*args, "--diffusion-threshold", "0.9")
        self.assertEqual(result.code, 1)
        self.assertIn("--diffusion-threshold 0.9 needs a backend with a decoding mode", result.err)
        result = run(*args, "--diffusion-set", "steps=4")
        self.assertEqual((result.code, result.out), (1, b""))
        self.assertIn("error: --diffusion-set needs a backend with a decoding mode (--backend)\n", result.err)

    def test_nothing_new_given_means_nothing_changed(self):
        args = ["-m", model(), "-p", "hi", "-ub", "64", "--diffusion-block-length", "32", "--diffusion-steps", "4", "-s", "1",
                "--top-k", "1"]
        self.assertEqual(answer_of_stock(*args, tool=STOCK / "build" / "bin" / TOOL.name), answer_of_stock(*args))


def answer_of_stock(*args, tool=TOOL):
    """What the loop without a decoding mode prints after its timings, on stderr; now and then its log loses that."""
    for _ in range(10):
        result = run(*args, "--no-log-prefix", "--no-log-timestamps", tool=tool)
        if result.code != 0 or result.out != b"":
            break
        at = result.err.rfind("total time:")
        _, _, answer = result.err[at:].partition("\n")
        if at >= 0 and answer:
            return answer
    raise AssertionError(f"no answer, exit code {result.code}: {result.err}")


class Interrupt(unittest.TestCase):
    def test_stable_text_is_kept(self):
        path = SCRATCH / "interrupted.json"
        code, out, err = interrupt_after(3, "--diffusion-json", path, FAKE_TEXT="abcdefghij", FAKE_STEP_MS="300")
        self.assertEqual(code, 130, err)
        self.assertTrue(out.startswith(b"abc") and out.endswith(b"\n") and len(out) < 10, out)
        self.assertEqual(load_json(path)["n_generated"], len(out) - 1)


class Terminal(unittest.TestCase):
    def test_progress_bar(self):
        code, out, screen = fake_on_terminal(stdout_too=False)
        self.assertEqual((code, out), (0, b"hello\n"))
        self.assertIn(b"\rdiffusion step: 5 [", screen)
        self.assertIn(b"] 100%", screen)
        self.assertNotIn(b"hello", screen)

    def test_visual_draws_the_canvas_in_place(self):
        code, out, screen = fake_on_terminal("--diffusion-visual", "-n", "8", stdout_too=False)
        self.assertEqual((code, out), (0, b"hello\n"))
        self.assertEqual(screen.count(b"\x1b[2J\x1b[?2026h"), 1)  # emptied once, drawn over after that
        self.assertEqual(screen.count(b"\x1b[?2026h\x1b[H"), screen.count(b"\x1b[?2026l"))
        self.assertIn("hel\x1b[0;2m░░░░░\x1b[0m\x1b[K".encode(), screen)

    def test_visual_shows_every_stage_in_its_colour(self):
        _, _, screen = fake_on_terminal("--diffusion-visual", "-n", "6", stdout_too=False, FAKE_STAGES="1")
        self.assertIn("h\x1b[0;1;36me\x1b[0;33ml\x1b[0;35ml\x1b[0;2m░░\x1b[0m".encode(), screen)

    def test_visual_respects_no_color_and_dumb_terminals(self):
        _, _, screen = fake_on_terminal("--diffusion-visual", "-n", "8", stdout_too=False, NO_COLOR="1")
        self.assertIn("hel░░░░░\x1b[K".encode(), screen)
        self.assertNotIn(b"\x1b[0", screen)
        _, out, screen = fake_on_terminal("--diffusion-visual", "-n", "8", stdout_too=False, TERM="dumb")
        self.assertEqual(out, b"hello\n")
        self.assertNotIn(b"\x1b", screen)
        self.assertIn(b"diffusion step: 1 [", screen)

    def test_visual_keeps_characters_line_breaks_and_tabs(self):
        text = "a\tb\n日👩‍👧"
        _, _, screen = fake_on_terminal("--diffusion-visual", "-n", "40", stdout_too=False, text=text, NO_COLOR="1")
        self.assertIn("a       b\x1b[K\r\n日👩‍👧".encode(), screen)
        half = "a\tb\n░░".encode()  # the first byte of three beside a mask is a mask
        self.assertIn(half.replace(b"\t", b" " * 7).replace(b"\n", b"\x1b[K\r\n"), screen)

    def test_visual_fits_a_small_terminal(self):
        _, _, screen = fake_on_terminal("--diffusion-visual", "-n", "100", stdout_too=False, size=(12, 6), NO_COLOR="1")
        for frame in screen.split(b"\x1b[?2026h")[1:]:
            lines = frame.partition(b"\x1b[?2026l")[0].split(b"\n")
            self.assertLessEqual(len(lines), 6)
            for line in lines:
                text = re.sub(rb"\x1b\[[0-9]*[HKJ]|\r", b"", line).decode()
                self.assertLessEqual(len(text), 11, frame)

    def test_visual_shows_sequences_once_they_are_whole(self):
        _, _, screen = fake_on_terminal("--diffusion-visual", "-n", "8", stdout_too=False, text="é€")
        self.assertIn("é€".encode(), screen)

    def test_visual_without_a_terminal_is_plain(self):
        result = fake("--diffusion-visual")
        self.assertEqual(result.out, b"hello\n")
        self.assertNotIn("\x1b", result.err)

    def test_answer_and_progress_on_one_terminal(self):
        for args in ([], ["--diffusion-visual"]):
            code, _, screen = fake_on_terminal(*args, stdout_too=True)
            self.assertEqual(code, 0)
            self.assertIn(b"hello\r\n", screen)

    def test_text_cannot_drive_the_terminal_in_the_canvas(self):
        _, _, screen = fake_on_terminal("--diffusion-visual", "-n", "4", stdout_too=False, text="a\x1b[31m")
        self.assertNotIn(b"\x1b[31m", screen)


if __name__ == "__main__":
    unittest.main()
