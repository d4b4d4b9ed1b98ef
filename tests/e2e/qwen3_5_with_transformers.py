"""Qwen3.5 compared with transformers: greedy tokens with a state, and folders of models that also
see images.

The programs are the environment's SLUICE and PRINT_SAMPLES. llama_with_transformers.py has what the
family shares with others: steps, exports, documents.
"""

import json
import sys
import unittest

import torch

import llama_with_transformers as llama  # as a module: its tests must not run here
from llama_with_transformers import CASES, LENGTH, NVME, SIZES, loaded, make_model
from reference_gpt import MISSING, mean_loss

if not MISSING:
    from transformers import Qwen3_5Config, Qwen3_5ForConditionalGeneration

VISION = {"depth": 1, "hidden_size": 16, "intermediate_size": 24, "num_heads": 2, "patch_size": 4,
          "out_hidden_size": SIZES["hidden_size"], "num_position_embeddings": 16}


@unittest.skipIf(MISSING, MISSING)
class Qwen35(llama.LlamaRuns):
    def generated(self, run, prompt, count, *words):
        return self.sluice("generate", run, "--prompt", prompt, "--tokenizer", "bytes",
                           "--temperature", "0", "--tokens", count,
                           *self.words(**{"data.sequence_length": 96}), *words).stdout

    def test_greedy_tokens_are_transformers(self):
        model, run = self.imported("qwen3_5", stir=0.25)
        placed = [word for key, value in NVME.items() for word in ("--set", f"{key}={value}")]
        for prompt in ("a", "once upon a time", "x" * 70):  # one token, some, and two chunks
            with self.subTest(prompt=prompt):
                expected = self.greedy(model.eval(), prompt.encode(), 24)
                self.assertGreater(len(set(expected)), 4)  # else the test proves little
                text = bytes(expected).decode(errors="replace").replace("\r", "\n") + "\n"
                self.assertEqual(self.generated(run, prompt, 24), text)
                self.assertEqual(self.generated(run, prompt, 24, *placed), text)

    def with_images(self, **more):
        """A folder as on the hub, and its text model's parameters."""
        torch.manual_seed(5)
        text = make_model("qwen3_5")
        keys = {**SIZES, **CASES["qwen3_5"][1]}
        config = Qwen3_5Config(text_config=keys, vision_config=VISION, **more)
        whole = Qwen3_5ForConditionalGeneration(config)
        whole.model.language_model.load_state_dict(text.model.state_dict())
        whole.lm_head.load_state_dict(text.lm_head.state_dict())
        folder = self.path / "images"
        whole.save_pretrained(folder, max_shard_size="40KB")
        return text, folder

    def test_of_a_model_that_sees_images_the_text_is_trained(self):
        text, folder = self.with_images()
        index = json.loads((folder / "model.safetensors.index.json").read_text(encoding="utf-8"))
        names = index["weight_map"]
        self.assertTrue(any(name.startswith("model.visual.") for name in names))
        self.assertTrue(any(name.startswith("model.language_model.layers.") for name in names))
        shown = self.sluice("import", folder, self.path / "run")
        self.assertIn("vision encoder", shown.stdout + shown.stderr)
        before = mean_loss(text, self.text, LENGTH)
        self.assert_close(self.evaluate(folder, self.path / "run"), before, 1e-5)
        self.train(self.path / "run", 3)
        self.sluice("export", self.path / "run", self.path / "ours")
        after = mean_loss(loaded(self.path / "ours"), self.text, LENGTH)
        self.assertLess(after, before)
        self.assert_close(self.evaluate(self.path / "ours", self.path / "run"), after, 1e-5)

    def test_what_transformers_would_compute_otherwise_is_refused_by_key(self):
        _, folder = self.with_images()
        file = folder / "config.json"
        whole = json.loads(file.read_text(encoding="utf-8"))
        for key, value in (("hidden_act", "gelu"), ("linear_num_value_heads", 3),
                           ("layer_types", ["full_attention"] + ["linear_attention"] * 2),
                           ("rope_parameters", {"rope_type": "yarn", "factor": 2.0})):
            with self.subTest(key=key):
                text = {**whole["text_config"], key: value}
                file.write_text(json.dumps({**whole, "text_config": text}), encoding="utf-8")
                said = self.refused("import", folder, self.path / "run")
                named = {"linear_num_value_heads": "delta_value_heads", "rope_parameters": "yarn"}
                self.assertIn(named.get(key, key), said)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]])
