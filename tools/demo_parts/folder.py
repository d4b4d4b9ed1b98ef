"""The folder of a demo: its contents, and whether a demo can continue with it.

  DIR/corpus/       from tools/prepare: the standard library's sources as tokens
  DIR/nvme/         parameters and optimizer state while training runs
  DIR/run/          from sluice train: checkpoints, metrics, the tokenizer
  DIR/generate.log  the messages of sluice generate

Nothing that exists is replaced unless the user asks for it. Other files are left alone.
"""

import fcntl
import os
import re

from toolbox import read_json

SHAPE = ("layers", "hidden", "heads", "context", "vocab")
WAY_OUT = "--out DIR puts this demo elsewhere, --overwrite replaces what is there"
TAIL_BYTES = 4096  # more than the last line of the metrics


class Refused(Exception):
    """A sentence about a folder that this demo cannot use."""


class DemoFolder:
    """A context that keeps other demos out of the folder."""

    def __init__(self, path):
        self.path = path
        self.corpus = path / "corpus"
        self.nvme = path / "nvme"
        self.run = path / "run"
        self.log = path / "generate.log"
        self._lock = None  # a file descriptor

    def __enter__(self):
        if self.path.exists() and not self.path.is_dir():
            raise Refused(f"{self.path} is not a folder: name another with --out")
        self.nvme.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._lock)
            raise Refused(f"another demo is at work in {self.path}: wait for it, or name another "
                          "folder with --out") from error
        except OSError:
            pass  # a file system without locks; sluice train has a lock of its own
        return self

    def __exit__(self, *unused):
        os.close(self._lock)

    def check(self, model):
        """Refuses a folder in which a demo of this model would have to replace something."""
        step, kept = self.newest_step(), _read_json(self.run / "config.json")
        if step > 0:
            other = kept.get("model") or {}
            if any(other.get(key) != model[key] for key in SHAPE):
                raise Refused(f"{self.run} has another model in it, {_shape(other)}, trained to "
                              f"step {step}, and this demo's has {_shape(model)}: {WAY_OUT}")
            data = (kept.get("data") or {}).get("train") or [""]
            if os.path.abspath(self.run / data[0]) != os.path.abspath(self.corpus / "train.bin"):
                raise Refused(f"{self.run} is a run of other data, trained to step {step}: "
                              f"{WAY_OUT}")
        why = self.why_no_corpus(model["vocab"])
        if why:
            raise Refused(f"{self.corpus} cannot be trained on ({why}): {WAY_OUT}")

    def newest_step(self):
        """The steps of the newest checkpoint; 0 without one."""
        try:
            names = os.listdir(self.run / "checkpoints")
        except (FileNotFoundError, NotADirectoryError):
            return 0
        found = (re.fullmatch(r"step-(\d+)", name) for name in names)
        return max((int(match[1]) for match in found if match), default=0)

    def why_no_corpus(self, vocab):
        """The reason why the existing corpus cannot be used; "" if there is none, None if it
        can."""
        if not self.corpus.exists() or self.corpus.is_dir() and not os.listdir(self.corpus):
            return ""
        for name in ("train.bin", "val.bin"):
            path = self.corpus / name
            sidecar = _read_json(self.corpus / f"{name}.json")
            kind = (sidecar.get("tokenizer") or {}).get("kind")
            if kind is None:
                return f"{name} has no description beside it"
            if kind != "bpe":
                return f"its tokens are {kind}, not byte pairs"
            if sidecar.get("vocab_size") != vocab:
                return f"its vocabulary has {sidecar.get('vocab_size')} tokens, the model's {vocab}"
            if not path.exists() or path.stat().st_size != 2 * sidecar.get("tokens", 0):
                return f"{name} is not as long as its description says"
        if not (self.corpus / "tokenizer.json").exists():
            return "tokenizer.json is missing"
        return None

    def metrics_seen(self):
        """A value that changes whenever a run writes its metrics."""
        try:
            found = os.stat(self.run / "metrics.jsonl")
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns

    def last_step(self):
        """The last step in the metrics; 0 before the first."""
        try:
            with open(self.run / "metrics.jsonl", "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
                lines = file.read().split(b"\n")[:-1]
        except FileNotFoundError:
            return 0
        return read_json(lines[-1])["step"] if lines else 0

    def metrics(self):
        try:
            text = (self.run / "metrics.jsonl").read_text(encoding="utf-8")
        except FileNotFoundError:
            return []
        return [read_json(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def _shape(model):
    return ", ".join(f"{key} {model.get(key)}" for key in SHAPE)


def _read_json(path):
    """The JSON object, or {} if it is not one."""
    try:
        value = read_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
