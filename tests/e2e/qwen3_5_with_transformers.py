"""Qwen3.5 compared with transformers, dense and with experts: greedy tokens with a state, and folders
of models that also see images.

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
    import transformers
    from safetensors.torch import load_file, save_file

# The class of a model that also sees images, by that of its text model.
WITH_IMAGES = {"qwen3_5": "Qwen3_5", "qwen3_5_moe": "Qwen3_5Moe"}

VISION = {"depth": 1, "hidden_size": 16, "intermediate_size": 24, "num_heads": 2, "patch_size": 4,
          "out_hidden_size": SIZES["hidden_size"], "num_position_embeddings": 16}


@unittest.skipIf(MISSING, MISSING)
class Qwen35(llama.LlamaRuns):
    def generated(self, run, prompt, count, *words):
        return self.sluice("generate", run, "--prompt", prompt, "--tokenizer", "bytes",
                           "--temperature", "0", "--tokens", count,
                           *self.words(**{"data.sequence_length": 96}), *words).stdout

    def test_greedy_tokens_are_transformers(self):
        placed = [word for key, value in NVME.items() for word in ("--set", f"{key}={value}")]
        for case in WITH_IMAGES:
            model, run = self.imported(case, stir=0.25)
            for prompt in ("a", "once upon a time", "x" * 70):  # one token, some, and two chunks
                with self.subTest(case=case, prompt=prompt):
                    expected = self.greedy(model.eval(), prompt.encode(), 24)
                    self.assertGreater(len(set(expected)), 4)  # else the test proves little
                    text = bytes(expected).decode(errors="replace").replace("\r", "\n") + "\n"
                    self.assertEqual(self.generated(run, prompt, 24), text)
                    self.assertEqual(self.generated(run, prompt, 24, *placed), text)

    def with_images(self, case="qwen3_5", **more):
        """A folder of a model that sees images, and its text model."""
        torch.manual_seed(5)
        text = make_model(case)
        keys = {**SIZES, **CASES[case][1]}
        name = WITH_IMAGES[case]
        config = getattr(transformers, f"{name}Config")(text_config=keys, vision_config=VISION,
                                                        **more)
        whole = getattr(transformers, f"{name}ForConditionalGeneration")(config)
        whole.model.language_model.load_state_dict(text.model.state_dict())
        whole.lm_head.load_state_dict(text.lm_head.state_dict())
        folder = self.path / f"{case}-images"
        whole.save_pretrained(folder, max_shard_size="40KB")
        return text, folder

    def test_of_a_model_that_sees_images_the_text_is_trained(self):
        for case in WITH_IMAGES:
            with self.subTest(case=case):
                text, folder = self.with_images(case)
                index = json.loads((folder / "model.safetensors.index.json").read_text("utf-8"))
                names = index["weight_map"]
                self.assertTrue(any(name.startswith("model.visual.") for name in names))
                self.assertTrue(any(name.startswith("model.language_model.") for name in names))
                run, ours = self.path / f"{case}-run", self.path / f"{case}-ours"
                shown = self.sluice("import", folder, run)
                self.assertIn("vision encoder", shown.stdout + shown.stderr)
                before = mean_loss(text, self.text, LENGTH)
                self.assert_close(self.evaluate(folder, run), before, 1e-5)
                self.train(run, 3)
                self.sluice("export", run, ours)
                after = mean_loss(loaded(ours), self.text, LENGTH)
                self.assertLess(after, before)
                self.assert_close(self.evaluate(ours, run), after, 1e-5)
                # The export says what it lacks.
                self.assertIn("vision encoder", (ours / "README.md").read_text("utf-8"))

    def test_a_folder_as_on_the_hub_has_fused_experts_and_more_layers_for_later_tokens(self):
        text, folder = self.with_images("qwen3_5_moe")
        theirs = self.path / "hub"
        theirs.mkdir()
        (theirs / "config.json").write_bytes((folder / "config.json").read_bytes())
        state = {name.replace("model.", "model.language_model.", 1): value.detach().clone()
                 for name, value in text.state_dict().items()}
        fused = "model.language_model.layers.1.mlp.experts.gate_up_proj"
        self.assertEqual(state[fused].shape, (6, 80, 48))
        more = {"mtp.fc.weight": torch.ones(48, 96),
                "mtp.layers.0.mlp.experts.gate_up_proj": torch.ones(6, 80, 48),
                "mtp.layers.0.mlp.experts.down_proj": torch.ones(6, 48, 40),
                "mtp.layers.0.mlp.gate.weight": torch.ones(6, 48),
                "mtp.norm.weight": torch.ones(48),
                "model.visual.blocks.0.mlp.linear_fc1.weight": torch.ones(24, 16)}
        save_file({**state, **more}, theirs / "model.safetensors", metadata={"format": "pt"})
        run = self.path / "run"
        self.sluice("import", theirs, run)
        expected = mean_loss(text, self.text, LENGTH)
        self.assert_close(self.evaluate(theirs, run), expected, 1e-5)
        self.sluice("export", run, self.path / "ours")
        written = load_file(self.path / "ours/model.safetensors")
        self.assertEqual(written.keys(), text.state_dict().keys())
        for name, value in text.state_dict().items():
            self.assertTrue(torch.equal(written[name], value), name)
        self.sluice("import", self.path / "ours", self.path / "again")
        self.assertEqual(self.evaluate(self.path / "ours", self.path / "again"),
                         self.evaluate(theirs, run))

    def test_experts_that_do_not_fit_are_refused_by_name(self):
        model = make_model("qwen3_5_moe")
        folder = self.path / "theirs"
        model.save_pretrained(folder)
        whole = {name: value.detach().clone() for name, value in model.state_dict().items()}
        name = "model.layers.1.mlp.experts.gate_up_proj"
        changes = {
            "of fewer experts": {name: whole[name][1:].contiguous()},
            "of another width": {name: whole[name][:, 2:].contiguous()},
            "without one": {name: None},
            "in both forms": {"model.layers.1.mlp.experts.0.up_proj.weight": torch.zeros(40, 48)},
            "of another gate": {"model.layers.1.mlp.shared_expert_gate.weight": torch.zeros(2, 48)},
        }
        for case, change in changes.items():
            with self.subTest(case=case):
                made = {key: value for key, value in {**whole, **change}.items()
                        if value is not None}
                save_file(made, folder / "model.safetensors", metadata={"format": "pt"})
                self.assertIn("layers.1.mlp.", self.refused("import", folder, self.path / "run"))
                self.assertFalse((self.path / "run/config.json").exists())

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
