#!/usr/bin/env python3
"""Every reader of JSON from outside survives deep nesting.

The environment is that of sluice_program.py.
"""

import json
import os
import subprocess
import sys
import unittest
from pathlib import Path

TOOLS = Path(__file__).resolve().parent.parent.parent / "tools"
sys.dont_write_bytecode = True
sys.path.insert(0, str(TOOLS))

from corpus import conversations, messages, vocabulary
from corpus.left_out import LeftOut
from sluice_program import HAS_ENGINE, SLUICE, Program, Training
from toolbox import Failure

# The first depth overflows the stack of recursive C++. Python's parser accepts the second, but code
# that then copies or writes the value recurses.
DEPTHS = (100_000, 900)


def deep(depth):
    return "[" * depth + "]" * depth


class Reading(Program):
    def survives(self, words, what):
        """It ends with a result or a sentence, not by a signal or with a traceback."""
        done = subprocess.run(list(map(str, words)), cwd=self.path, check=False, text=True,
                              stdin=subprocess.DEVNULL, capture_output=True, timeout=120)
        said = f"{what}: {' '.join(map(str, words))}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        self.assertIn(done.returncode, (0, 1, 2, 3), said)
        self.assertNotIn("Traceback", done.stderr, said)
        self.assertNotIn("RecursionError", done.stderr, said)
        return done

    def readers(self, file, commands):
        """Runs each command with a deep value in the file's object, or in the object of its last
        line."""
        path = self.path / file
        before = path.read_bytes() if path.exists() else None
        lines = (before or b"").splitlines()
        if file.endswith(".jsonl"):
            lines[-1] = json.dumps({**json.loads(lines[-1]), "x": "DEEP"}).encode()
            text = b"\n".join([*lines, b""]).decode()
        else:
            text = json.dumps({**(json.loads(before) if before else {}), "x": "DEEP"})
        for depth in DEPTHS:
            path.write_text(text.replace('"DEEP"', deep(depth)), encoding="utf-8")
            for command in commands:
                if depth == DEPTHS[0] or command[0] != SLUICE:
                    self.survives(command, f"{file}, {depth} deep")
        if before is None:
            path.unlink()
        else:
            path.write_bytes(before)


@unittest.skipUnless(HAS_ENGINE, "built without LibTorch")
class Deep(Reading, Training):
    def test_configurations(self):
        (self.path / "ds.json").write_text('{"train_batch_size": 2}', encoding="utf-8")
        self.readers("run.json", [[SLUICE, "config", "run.json"]])
        self.readers("ds.json", [[SLUICE, "config", "--deepspeed", "ds.json"]])

    def test_files_of_models(self):
        self.sluice("train", "run.json", "--out", "run", "--steps", 1)
        self.sluice("export", "run", "hf")
        plan = [SLUICE, "config", "run.json", "--set", "model.path=hf"]
        take = [SLUICE, "import", "hf", "run", "--overwrite"]
        train = [SLUICE, "train", "run.json", "--set", "model.path=hf", "--out", "other",
                 "--overwrite", "--steps", 1]
        self.readers("hf/config.json", [plan, take])
        for file in ("generation_config.json", "tokenizer.json", "tokenizer_config.json"):
            self.readers(f"hf/{file}", [train])
        (self.path / "adapter").mkdir()
        self.readers("adapter/adapter_config.json", [
            [SLUICE, "config", "run.json", "--set", "recipe.lora.adapter=adapter"]])
        os.rename(self.path / "hf/model.safetensors", self.path / "hf/model-1.safetensors")
        self.readers("hf/model.safetensors.index.json", [take])
        header = ('{"a": ' + deep(DEPTHS[0]) + "}").encode()
        (self.path / "hf/model.safetensors").write_bytes(
            len(header).to_bytes(8, "little") + header)
        self.survives(take, "a safetensors header")

    def test_files_of_runs(self):
        self.sluice("train", "run.json", "--out", "run", "--steps", 1, "--trace", "1:1")
        looks = [[SLUICE, "report", "run", "-o", "page.html", "--force"],
                 [SLUICE, "metrics", "run"],
                 [sys.executable, "-B", TOOLS / "sluice-log", "run", "--csv", "csv"]]
        self.readers("run/metrics.jsonl", looks)
        self.readers("run/events.jsonl", looks)
        self.readers("run/config.json", looks)
        self.readers("run/trace.json", [looks[0],
                                        [sys.executable, "-B", TOOLS / "trace_summary", "run"]])
        manifest = next((self.path / "run/checkpoints").rglob("checkpoint.json"))
        self.readers(str(manifest.relative_to(self.path)), [
            [SLUICE, "ls", "run"], [SLUICE, "train", "run.json", "--out", "run", "--resume",
                                    "--steps", 2]])
        self.readers("text.bin.json", [[SLUICE, "data", "run.json"]])


class DeepData(Reading):
    def test_rows_of_texts(self):
        for depth in DEPTHS:
            bad = '{"text": ' + deep(depth) + "}"
            (self.path / "rows.jsonl").write_text(f'{{"text": "a"}}\n{bad}\n', encoding="utf-8")
            done = self.survives([sys.executable, "-B", TOOLS / "prepare", "rows.jsonl", "--out",
                                  "out", "--overwrite", "--validation-fraction", "0"], "a text")
            self.assertIn("nested deeper", done.stderr)

    def test_conversations_data_sets_and_tokenizers(self):
        for depth in DEPTHS:
            with self.assertRaisesRegex(LeftOut, "not JSON"):
                messages.parse(('{"messages": ' + deep(depth) + "}").encode())
            with self.assertRaisesRegex(LeftOut, "nested deeper"):
                messages.parse(json.dumps({"messages": [
                    {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
                    "tools": deep(depth)}).encode())
            for file in ("state.json", "dataset_dict.json"):
                (self.path / file).write_text(deep(depth), encoding="utf-8")
                with self.assertRaisesRegex(Failure, f"{file} .*nested deeper"):
                    conversations._json_file(self.path, file)
            with self.assertRaisesRegex(Failure, "nested deeper"):
                vocabulary.fingerprint('{"model": ' + deep(depth) + "}")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]])
