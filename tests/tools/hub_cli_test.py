"""Models by their names on the Hugging Face hub, which a small hub on this machine stands for."""

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import fake_hub

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import reference_packages  # noqa: E402 pylint: disable=wrong-import-position
import tool_packages  # noqa: E402 pylint: disable=wrong-import-position
from fuzz_inputs import write_hf_model  # noqa: E402 pylint: disable=wrong-import-position
from sluice_program import HAS_ENGINE, TokenData  # noqa: E402 pylint: disable=wrong-import-position

reference_packages.use()
HAS_HUB = importlib.util.find_spec("huggingface_hub") is not None
NEEDS_HUB = unittest.skipUnless(HAS_HUB, "the package huggingface_hub is not there")
NAME = "Own/Tiny"
SNAPSHOT = f"hub/models--Own--Tiny/snapshots/{fake_hub.COMMIT}"
TOKENIZER = {
    "version": "1.0", "truncation": None, "padding": None, "added_tokens": [
        {"id": 0, "content": "<|endoftext|>", "single_word": False, "lstrip": False,
         "rstrip": False, "normalized": False, "special": True}],
    "normalizer": None, "pre_tokenizer": None, "post_processor": None, "decoder": None,
    "model": {"type": "WordLevel", "vocab": {"<|endoftext|>": 0, "x": 1}, "unk_token": "x"}}


class OnHub(unittest.TestCase):
    """A hub with the tiny GPT-2 Own/Tiny, Own/Gated with the same files, and Own/Old without
    safetensors. Everything that is started finds this hub and an empty cache."""

    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory(prefix="sluice-hub-")
        self.addCleanup(folder.cleanup)
        self.files = Path(folder.name)
        write_hf_model(self.files / "tiny")
        self.put("tiny/README.md", "---\nlicense: mit\n---\n")
        self.put("tiny/tokenizer.json", json.dumps(TOKENIZER))
        for name in ("tiny/pytorch_model.bin", "tiny/consolidated.safetensors",
                     "tiny/onnx/config.json", "old/pytorch_model.bin"):
            self.put(name, "not to be downloaded")
        self.put("old/config.json", "{}")
        self.cache = self.files / "cache"
        stack = contextlib.ExitStack()
        self.addCleanup(stack.close)
        self.hub = stack.enter_context(fake_hub.running(
            {NAME: self.files / "tiny", "Own/Gated": self.files / "tiny",
             "Own/Old": self.files / "old"}, gated=["Own/Gated"]))
        (self.files / "bin").mkdir()
        (self.files / "bin/python3").symlink_to(sys.executable)  # whose version the packages are for
        packages = os.pathsep.join(it for it in sys.path if it.startswith(
            str(reference_packages.folder())))
        kept = {name: value for name, value in os.environ.items()
                if not name.startswith("HF_") and not name.lower().endswith("_proxy")}
        stack.enter_context(mock.patch.dict(os.environ, {
            **kept, "HF_ENDPOINT": self.hub.address, "HF_HOME": str(self.cache),
            "PYTHONPATH": packages, "PATH": f"{self.files / 'bin'}{os.pathsep}{kept['PATH']}"},
            clear=True))

    def put(self, name, text):
        path = self.files / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def close_hub(self):
        self.hub.shutdown()
        self.hub.server_close()

    def in_cache(self):
        return sorted(str(it.relative_to(self.cache / SNAPSHOT))
                      for it in (self.cache / SNAPSHOT).rglob("*"))


@NEEDS_HUB
class Names(OnHub):
    def found(self, *arguments, **environment):
        done = self.run_tool(*arguments, **environment)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done

    def refused(self, *arguments, **environment):
        done = self.run_tool(*arguments, **environment)
        self.assertEqual((done.returncode, done.stdout), (1, ""), done.stderr)
        last = done.stderr.splitlines()[-1]
        self.assertTrue(last.startswith("tools/hub: "), done.stderr)
        return last

    def run_tool(self, *arguments, **environment):
        return subprocess.run([ROOT / "tools/hub", *arguments], env={**os.environ, **environment},
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120,
                              check=False)

    def test_are_folders_with_what_a_model_needs_and_no_more(self):
        self.assertEqual(self.found(NAME, "--files", "config").stdout,
                         f"{self.cache / SNAPSHOT}\n")
        self.assertEqual(self.in_cache(), ["config.json"])
        self.assertIn("model.safetensors of Own/Tiny",
                      self.refused(NAME, HF_HUB_OFFLINE="1"))
        self.assertIn(f"downloading Own/Tiny from {self.hub.address}", self.found(NAME).stderr)
        self.assertEqual(self.in_cache(), ["README.md", "config.json", "model.safetensors",
                                           "tokenizer.json"])
        self.assertTrue((self.cache / SNAPSHOT / "model.safetensors").is_symlink())
        self.assertEqual(self.found(f"{NAME}@{fake_hub.COMMIT}").stderr, "")
        self.close_hub()
        self.assertEqual(self.found(NAME, HF_HUB_OFFLINE="1").stderr, "")
        # Another program may have filled the cache with fewer files than are asked for here.
        (self.cache / SNAPSHOT / "README.md").unlink()
        self.assertIn("cannot be reached (", self.found(NAME).stderr)

    def test_that_are_refused_say_why(self):
        for arguments, said in (
                (["Own/Old"], "Own/Old has no model.safetensors"),
                (["Own/Gated"], f"accept its licence at {self.hub.address}/Own/Gated, then log in"),
                (["Own/None"], "no folder Own/None here, and no model Own/None at "),
                ([f"{NAME}@v9"], "Own/Tiny has no revision v9"), ([f"{NAME}@"], "is not OWNER/NAME"),
                (["Own/../x"], "is not OWNER/NAME"), ([f"{NAME}@../x"], "is not OWNER/NAME"),
                ([f"{NAME}@$(x)"], "is not OWNER/NAME"),
                ([f"{NAME}@\x1b[2J"], f"{NAME}@?[2J is not OWNER/NAME"),
                (["Own/a--b"], "Own/a--b is not a model's name: ")):
            with self.subTest(arguments):
                self.assertIn(said, self.refused(*arguments))
        self.found("Own/Gated", HF_TOKEN="secret")
        self.assertRegex(self.refused(f"{NAME}@v9", HF_HUB_OFFLINE="1"),
                         "HF_HUB_OFFLINE.*`hf download Own/Tiny --revision v9`")
        self.close_hub()
        self.assertRegex(self.refused(NAME),
                         f"Own/Tiny is not in.*{self.cache}/hub.*{self.hub.address}")


@NEEDS_HUB
class Models(OnHub, TokenData):
    def masters(self, run):
        folder, = (self.path / run / "checkpoints").iterdir()
        files = {it.name: it.read_bytes() for it in folder.glob("master*")}
        self.assertTrue(files)
        return files

    def test_are_imported_by_name_as_by_folder(self):
        self.assertIn(f"parameters of {NAME}",
                      self.sluice("import", NAME, "a").stdout)
        self.sluice("import", self.files / "tiny", "b")
        self.assertEqual(self.masters("a"), self.masters("b"))
        base = json.loads((self.path / "a/base_model.json").read_text(encoding="utf-8"))
        self.assertEqual([base[key] for key in ("name", "revision", "folder", "license")],
                         [NAME, fake_hub.COMMIT, str(self.cache / SNAPSHOT), "mit"])
        self.assertIn("Own/Gated is gated", self.refused("import", "Own/Gated", "c"))
        self.assertFalse((self.path / "c").exists())
        # A folder of that name is taken for itself, and a path in a folder for a path.
        write_hf_model((self.path / "Own").mkdir() or self.path / "Own/None")
        asked = len(self.hub.asked)
        self.sluice("import", "Own/None", "d")
        self.assertIn("there is no Own/Tiny/config.json", self.refused("import", NAME, "e"))
        self.assertEqual(len(self.hub.asked), asked)

    def test_of_a_configuration_are_shown_without_their_weights(self):
        self.write("run.json", {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True},
                                "model": {"path": NAME}})
        shown = self.sluice("config", "run.json").stdout
        self.assertRegex(shown, r"model\.path .*Own/Tiny ")
        self.assertRegex(shown, r"model\.hidden +16 ")
        if HAS_ENGINE:
            self.sluice("plan", NAME, "--gpu", "rtx4090", "--ram", 64, "--set",
                        "data.sequence_length=8")
        self.assertEqual(self.in_cache(), ["config.json"])
        self.close_hub()
        self.assertIn("model.path: Own/None",
                      self.refused("config", "run.json", "--set", "model.path=Own/None"))

    @unittest.skipUnless(HAS_ENGINE, "built without LibTorch")
    def test_of_a_shown_configuration_are_downloaded_when_it_is_trained(self):
        self.train("a", self.files / "tiny")
        run = json.loads((self.path / "by.json").read_text(encoding="utf-8"))
        self.write("run.json", {**run, "model": {"path": NAME}})
        self.write("shown.json", json.loads(self.sluice("config", "run.json", "--json").stdout))
        self.assertEqual(self.in_cache(), ["config.json"])
        self.sluice("train", "shown.json", "--out", "b", "--save-weights", "b.safetensors",
                    "--force")
        self.assertEqual((self.path / "a.safetensors").read_bytes(),
                         (self.path / "b.safetensors").read_bytes())

    @unittest.skipUnless(HAS_ENGINE, "built without LibTorch")
    def test_are_trained_by_name_as_by_folder(self):
        for out, path in (("a", NAME), ("b", self.files / "tiny")):
            self.train(out, path)
        self.assertEqual((self.path / "a.safetensors").read_bytes(),
                         (self.path / "b.safetensors").read_bytes())
        kept = json.loads((self.path / "a/config.json").read_text(encoding="utf-8"))
        self.assertEqual(kept["model"]["path"], str(self.cache / SNAPSHOT))
        self.close_hub()
        self.train("a", NAME, "--resume", "--set", "run.steps=2")
        self.sluice("export", "a", "exported")
        self.assertRegex((self.path / "exported/README.md").read_text(encoding="utf-8"),
                         f"`{NAME}`.*`{fake_hub.COMMIT}`")

    def train(self, out, path, *more):
        run = json.loads((self.path / "run.json").read_text(encoding="utf-8"))
        run.update(model={"path": str(path)})
        run["data"]["train"] = ["small.bin"]
        (self.path / "small.bin").write_bytes(bytes(byte for at in range(400)
                                                    for byte in (at % 61, 0)))
        self.write("by.json", run)
        self.sluice("train", "by.json", "--out", out, "--save-weights", f"{out}.safetensors",
                    "--force", *more)

    @unittest.skipUnless(HAS_ENGINE, "built without LibTorch")
    def test_are_the_base_of_adapters_with_their_commit(self):
        run = json.loads((self.path / "run.json").read_text(encoding="utf-8"))
        del run["bf16"]
        self.write("scratch.json", {**run, "model": {
            "preset": "custom", "family": "llama", "layers": 1, "hidden": 32, "heads": 2,
            "context": 16, "vocab": 257, "kv_heads": 2, "head_dim": 16}})
        self.sluice("train", "scratch.json", "--out", "scratch", *self.of("unknown"))
        self.sluice("export", "scratch", "base")
        self.hub.models["Own/Base"] = self.path / "base"
        self.write("lora.json", {**run, "model": {"path": "Own/Base"}})
        self.sluice("train", "lora.json", "--out", "a", *self.of("unknown"), "--set",
                    "recipe.lora.rank=2")
        for folder, more, expected in (("adapter", [], ["Own/Base", fake_hub.COMMIT]),
                                       ("named", ["--base-name", "me/base"], ["me/base", None])):
            self.sluice("export", "a", folder, *more)
            config = json.loads((self.path / folder / "adapter_config.json").read_text("utf-8"))
            self.assertEqual([config["base_model_name_or_path"], config["revision"]], expected)
        self.sluice("export", "a", "merged", "--merged", "--base", "Own/Base")
        self.sluice("export", "a", "again", "--merged", "--base", "base")
        self.assertEqual((self.path / "merged/model.safetensors").read_bytes(),
                         (self.path / "again/model.safetensors").read_bytes())


@NEEDS_HUB
class Tokenizers(OnHub):
    def prepare(self, tokenizer, out, **environment):
        return subprocess.run(
            [sys.executable, "-B", ROOT / "tools/prepare", "text.txt", "--out", out, "--tokenizer",
             tokenizer, "--validation-fraction", "0"], cwd=self.files,
            env={**os.environ, **environment}, stdin=subprocess.DEVNULL, capture_output=True,
            text=True, timeout=120, check=False)

    def test_of_models_on_the_hub_are_those_of_their_folders(self):
        self.put("text.txt", "x y x")
        for tokenizer, out in ((NAME, "a"), ("tiny", "b")):
            done = self.prepare(tokenizer, out)
            self.assertEqual(done.returncode, 0, done.stderr)
        for name in ("train.bin", "tokenizer.json"):
            self.assertEqual((self.files / "a" / name).read_bytes(),
                             (self.files / "b" / name).read_bytes())
        self.assertEqual(self.in_cache(), ["config.json", "tokenizer.json"])
        refused = self.prepare("Own/Old", "c", HF_HUB_OFFLINE="1")
        self.assertEqual(refused.returncode, 1)
        self.assertRegex(refused.stderr,
                         r"\Atools/prepare: Own/Old .*HF_HUB_OFFLINE")
        self.assertFalse((self.files / "c").exists())


class WithoutPackage(unittest.TestCase):
    def test_says_how_to_install_it(self):
        with tempfile.TemporaryDirectory() as folder:
            venv = Path(folder, "sluice", tool_packages.folder().name)  # which has no packages
            (venv / "bin").mkdir(parents=True)
            (venv / "bin/python").symlink_to(sys.executable)
            (venv / ".complete").touch()
            done = subprocess.run([sys.executable, "-BES", ROOT / "tools/hub", NAME], check=False,
                                  env={**os.environ, "XDG_CACHE_HOME": folder}, text=True,
                                  capture_output=True, timeout=60)
        self.assertEqual(done.returncode, 1)
        self.assertIn(f"needs huggingface_hub. Run\n\n  {venv}/bin/python -m pip install "
                      "huggingface_hub\n", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]])
