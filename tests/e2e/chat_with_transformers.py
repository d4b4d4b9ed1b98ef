"""sluice chat: each answer is what transformers generates for the whole conversation so far.

The program is the environment's SLUICE.
"""

import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import termios
import time
import unittest
from pathlib import Path

import torch

from exchange_models import SHAPE, stirred
from reference_gpt import MISSING
from sluice_runs import SLUICE, WAIT_S

if not MISSING:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

TEMPLATE = """{% for each in messages %}{% if each.content == 'never' %}{{
    raise_exception('not that') }}{% endif %}<|turn|>{{ each.role }}: {{ each.content }}{{ eos_token }}
{% endfor %}{% if add_generation_prompt %}<|turn|>assistant:{% endif %}"""
FP32 = ("--set", "run.device=cpu", "--set", "run.cpu_threads=1", "--set", "bf16.enabled=false")
CONTEXT, TOKENS = 16384, 20
FIRST, SECOND = "What is a </s>?", "Grüße! And a 🦆?"


def on_terminal(text):
    """Control characters would act there."""
    return re.sub(r"[\0-\x08\x0b-\x1f\x7f-\x9f]", lambda found: f"\\x{ord(found[0]):02x}", text)


@unittest.skipIf(MISSING, MISSING)
class Chat(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="sluice-e2e-", dir=os.getcwd())
        cls.addClassCleanup(folder.cleanup)
        cls.path = Path(folder.name)
        own = Tokenizer(models.BPE())
        own.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        own.decoder = decoders.ByteLevel()
        own.train_from_iterator(["What is a sluice? A gate. " * 9], trainers.BpeTrainer(
            vocab_size=280, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
        own.add_special_tokens(["</s>", "<|turn|>"])
        cls.tokenizer = PreTrainedTokenizerFast(tokenizer_object=own, eos_token="</s>")
        cls.tokenizer.chat_template = TEMPLATE
        cls.model = stirred({**SHAPE, "vocab": len(cls.tokenizer), "context": CONTEXT}, seed=10,
                            by=0.3).eval()
        end = cls.tokenizer.eos_token_id
        cls.model.config.eos_token_id = cls.model.generation_config.eos_token_id = end
        cls.model.save_pretrained(cls.path / "theirs")
        cls.tokenizer.save_pretrained(cls.path / "theirs")
        cls.run_folder = cls.path / "run"
        subprocess.run([SLUICE, "import", cls.path / "theirs", cls.run_folder], check=True,
                       capture_output=True)

    def sluice(self, command, *arguments, said="", code=0, run=None):
        done = subprocess.run([SLUICE, command, str(run or self.run_folder), *map(str, arguments)],
                              input=said.encode(), capture_output=True, check=False, timeout=WAIT_S)
        self.assertEqual(done.returncode, code, done.stderr)
        done.stdout, done.stderr = done.stdout.decode(), done.stderr.decode()
        return done

    def chat(self, *lines, options=(), tokens=TOKENS):
        return self.sluice("chat", *FP32, "--temperature", "0", "--tokens", tokens, *options,
                           said="\n".join(lines) + "\n")

    def ids(self, *said, system=None):
        """The tokens of a conversation: a message, its answer, the next message and so on."""
        messages = [{"role": "system", "content": system}] if system else []
        messages += [{"role": ("user", "assistant")[at % 2], "content": text}
                     for at, text in enumerate(said)]
        return self.tokenizer.apply_chat_template(messages, add_generation_prompt=True,
                                                  return_dict=False)

    def answer(self, *said, system=None, tokens=TOKENS, ends=True):
        """The greedy answer, by transformers."""
        ids = self.ids(*said, system=system)
        begin, cache = len(ids), None
        with torch.no_grad():
            while len(ids) < begin + tokens:
                found = self.model(torch.tensor([ids[-1:] if cache else ids]),
                                   past_key_values=cache, use_cache=True)
                cache = found.past_key_values
                ids.append(int(found.logits[0, -1].argmax()))
                if ends and ids[-1] == self.tokenizer.eos_token_id:
                    ids.pop()
                    break
        return self.tokenizer.decode(ids)[len(self.tokenizer.decode(ids[:begin])):]

    def conversation(self, *messages, **options):
        """The messages and their answers."""
        said = []
        for message in messages:
            said.append(message)
            said.append(self.answer(*said, **options))
        return said

    def answers(self, *messages, **options):
        return self.conversation(*messages, **options)[1::2]

    @staticmethod
    def text(answers):
        return "".join(answer + "\n" for answer in answers)

    def test_answers_are_those_of_transformers_for_the_conversation_so_far(self):
        first, second = self.answers(FIRST, SECOND)
        self.assertNotEqual(self.answer(SECOND), second)  # else the history changes nothing
        shown = self.chat(FIRST, "", SECOND)
        self.assertEqual(shown.stdout, self.text([first, second]))
        self.assertNotIn(">", shown.stderr)  # no prompt without a terminal
        single = self.sluice("generate", *FP32, "--chat", "--prompt", FIRST, "--temperature", "0",
                             "--tokens", TOKENS).stdout
        self.assertEqual(single, self.text([first]))
        told = self.answers(FIRST, SECOND, system="Öl")
        self.assertNotEqual(told[0], first)
        self.assertEqual(self.chat(FIRST, SECOND, options=("--system", "Öl")).stdout,
                         self.text(told))

    def test_commands_change_the_conversation(self):
        first, second = self.answers(FIRST, SECOND)
        told = self.answer(FIRST, first, SECOND, system="Öl  und mehr")
        lines = self.answer(FIRST + "\n" + SECOND)
        shown = self.chat(FIRST, SECOND, "/clear", FIRST, SECOND, "/undo", SECOND, "/retry",
                          "/undo", "/system Öl  und mehr", SECOND, "/reset", "/system",
                          f'"""{FIRST}', f'{SECOND}"""', "/undo", "/undo", "/retry", "/help", "/clearer",
                          FIRST, "/exit", SECOND)
        self.assertEqual(shown.stdout, self.text([first, second, first, second, second, second,
                                                  told, lines, first]))
        for said in ("to forget", "to answer again", "/retry  ",
                     'no command "/clearer": /help'):
            self.assertIn(said, shown.stderr)

    def test_a_message_that_cannot_be_taken_leaves_the_conversation_as_it_was(self):
        first, second = self.answers(FIRST, SECOND)
        context = ("--set", "data.sequence_length=160")
        shown = self.chat(FIRST, "x" * 300, "never", SECOND, options=context)
        self.assertEqual(shown.stdout, self.text([first, second]))
        self.assertRegex(shown.stderr, r"sluice: .* \d{3} tokens .* 160 ")
        self.assertIn("template refuses it: not that", shown.stderr)
        done = self.sluice("chat", *FP32, said="\n".join([FIRST, "x" * (1 << 20) + "y"]))
        self.assertIn("more than 1 MiB", done.stderr)
        done = subprocess.run([SLUICE, "chat", self.run_folder, *FP32], input=b"\xff\n",
                              capture_output=True, check=True, timeout=WAIT_S)
        self.assertIn(b"not UTF-8", done.stderr)

    def test_the_oldest_turns_are_left_out_when_the_context_is_full(self):
        context = 160
        messages = [f"{SECOND} {number}" for number in range(8)]
        kept, expected, left_out = [], [], 0
        for message in messages:
            kept.append(message)
            while len(self.ids(*kept, system="Öl")) + TOKENS > context:
                kept = kept[2:]
                left_out += 1
            expected.append(self.answer(*kept, system="Öl"))
            kept.append(expected[-1])
        self.assertGreater(left_out, 1)
        self.assertGreater(len(kept), 2)
        shown = self.chat(*messages, options=("--system", "Öl", "--set",
                                              f"data.sequence_length={context}"))
        self.assertEqual(shown.stdout, self.text(expected))
        self.assertEqual(shown.stderr.count("oldest turns are left out"), 1)

    def test_an_answer_that_fills_the_context_ends_there(self):
        context = len(self.ids(FIRST)) + 30
        run = self.endless()
        shown = self.sluice("chat", *FP32, "--temperature", "0", "--set",
                            f"data.sequence_length={context}", said=FIRST + "\n", run=run)
        self.assertEqual(shown.stdout, self.text([self.answer(FIRST, tokens=30, ends=False)]))
        self.assertIn("after 30 tokens", shown.stderr)

    def test_a_model_without_a_template_is_refused_before_it_is_loaded(self):
        run = self.path / "untaught"
        shutil.copytree(self.run_folder, run)
        for name in ("chat_template.jinja", "tokenizer_config.json"):
            (run / "tokenizer" / name).unlink()
        for weights in run.glob("checkpoints/*/master*"):
            weights.write_bytes(bytes(weights.stat().st_size))
        refusal = self.sluice("chat", run=run, code=2).stderr
        for said in ("has no chat template", "--chat-template FILE", "sluice generate"):
            self.assertIn(said, refusal)
        self.assertIn("no chat template",
                      self.sluice("chat", "--tokenizer", "bytes", code=2).stderr)
        self.assertIn("refuses it: not that", self.sluice("chat", "--system", "never", code=2).stderr)
        template = self.path / "other.jinja"
        template.write_text("{{ messages[-1].content }}", encoding="utf-8")
        shown = self.chat(FIRST, options=("--chat-template", template))
        with torch.no_grad():
            token = self.model(torch.tensor([self.tokenizer.encode(FIRST)])).logits[0, -1].argmax()
        self.assertTrue(shown.stdout.startswith(self.tokenizer.decode([int(token)])))

    # --- with a terminal -------------------------------------------------------------------------

    def endless(self):
        """A copy of the run whose answers never end by themselves."""
        run = self.path / "endless"
        if not run.exists():
            shutil.copytree(self.run_folder, run)
            file = run / "tokenizer/generation_config.json"
            settings = json.loads(file.read_text(encoding="utf-8"))
            file.write_text(json.dumps({**settings, "eos_token_id": 5000}), encoding="utf-8")
        return run

    def terminal(self, *arguments):
        words = [SLUICE, "chat", str(self.endless()), *FP32, "--temperature", "0", *arguments]
        process, master = pty.fork()
        if process == 0:
            settings = termios.tcgetattr(0)
            settings[1] &= ~termios.OPOST
            settings[3] &= ~termios.ECHO
            settings[3] |= termios.NOFLSH  # else Ctrl-C drops output that is not read yet
            termios.tcsetattr(0, termios.TCSANOW, settings)
            os.execv(SLUICE, words)
        self.addCleanup(os.close, master)
        return Terminal(self, process, master)

    def test_ctrl_c_stops_an_answer_and_ctrl_d_the_session(self):
        with self.terminal("--tokens", "16000") as terminal:
            self.assertIn("/help", terminal.until("> "))
            said = []
            for message in (FIRST, SECOND):
                terminal.type(message + "\n")
                terminal.more(30)
                terminal.type("\x03")
                answer = terminal.until("\n> ")
                said.append(message)
                expected = self.answer(*said, tokens=len(answer) + 20, ends=False)
                shown = answer.rstrip("\ufffd")  # the last character may be half of one
                self.assertTrue(on_terminal(expected).startswith(shown), (answer, expected))
                answer = next(expected[:end] for end in range(len(expected) + 1)
                              if on_terminal(expected[:end]) == shown) + answer[len(shown):]
                said.append(answer)
            terminal.type("\x04")
            self.assertEqual(terminal.end(), 0)

    def test_ctrl_c_at_the_prompt_ends_the_session_and_so_does_a_signal(self):
        for begun in ("", '"""half a\n'):
            with self.terminal() as terminal:
                terminal.until("> ")
                terminal.type(begun)
                if begun:
                    terminal.until("... ")
                terminal.type("\x03")
                self.assertEqual(terminal.end(), 0)
        with self.terminal("--tokens", "16000") as terminal:
            terminal.until("> ")
            terminal.type(FIRST + "\n")
            terminal.more(10)
            os.kill(terminal.process, signal.SIGTERM)
            self.assertEqual(terminal.end(), 130)


class Terminal:
    """A program in a terminal of its own, whose output is text of UTF-8."""

    def __init__(self, test, process, master):
        self.process = process
        self._test = test
        self._master = master
        self._read = b""
        self._has_ended = False

    def __enter__(self):
        return self

    def __exit__(self, *error):
        if not self._has_ended:
            os.kill(self.process, signal.SIGKILL)
            os.waitpid(self.process, 0)

    def type(self, text):
        os.write(self._master, text.encode())

    def _wait(self, is_there, what):
        deadline = time.monotonic() + WAIT_S
        while not is_there():
            ready, _, _ = select.select([self._master], [], [], deadline - time.monotonic())
            self._test.assertTrue(ready, f"no {what} in {self._read}")
            self._read += os.read(self._master, 65536)

    def more(self, count):
        self._wait(lambda: len(self._read) >= count, f"{count} bytes")

    def until(self, mark):
        """The text before the mark."""
        end = mark.encode()
        self._wait(lambda: end in self._read, mark)
        text, self._read = self._read.split(end, 1)
        return text.decode()

    def end(self):
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            process, status = os.waitpid(self.process, os.WNOHANG)
            if process:
                self._has_ended = True
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.02)
        raise AssertionError("it does not end")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]])
