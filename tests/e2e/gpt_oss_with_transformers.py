"""Folders of gpt-oss: experts in MXFP4 as on the Hub, and in bf16 as transformers writes them.

The programs are the environment's SLUICE and PRINT_SAMPLES.
"""

import json
import shutil
import sys
import unittest

import torch

from llama_with_transformers import LENGTH, LlamaRuns, loaded, make_model
from reference_gpt import MISSING, mean_loss

if not MISSING:
    from safetensors.torch import load_file, save_file
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

# Blocks of MXFP4 have 32 numbers.
SIZES = {"hidden_size": 64, "intermediate_size": 32, "num_local_experts": 3}
STACKS = ("gate_up_proj", "down_proj")


def mxfp4_folder(folder):
    """Writes the folder's experts as random blocks, and returns the state that transformers
    decodes from them."""
    weights = load_file(folder / "model.safetensors")
    state = dict(weights)
    torch.manual_seed(5)
    for name in list(weights):
        if not name.endswith(STACKS):
            continue
        experts, inner, outer = weights.pop(name).shape
        blocks = torch.randint(0, 256, (experts, outer, inner // 32, 16), dtype=torch.uint8)
        # About 2^-5, and in each row also the smallest.
        scales = torch.randint(120, 124, (experts, outer, inner // 32), dtype=torch.uint8)
        scales[..., 0] = 0
        weights[f"{name}_blocks"], weights[f"{name}_scales"] = blocks, scales
        state[name] = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": [
        "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return state


@unittest.skipIf(MISSING, MISSING)
class GptOss(LlamaRuns):
    def make_folder(self):
        model = make_model("gpt_oss", **SIZES)
        folder = self.path / "theirs"
        model.save_pretrained(folder)
        return model, folder

    def test_mxfp4_is_read_as_transformers_decodes_it_and_written_in_bf16(self):
        model, folder = self.make_folder()
        state = mxfp4_folder(folder)
        model.load_state_dict(state)
        expected = mean_loss(model, self.text, LENGTH)
        self.sluice("import", folder, self.path / "run")
        self.assert_close(self.evaluate(folder, self.path / "run"), expected, 1e-5)
        self.sluice("export", self.path / "run", self.path / "ours", "--dtype", "bf16")
        config = json.loads((self.path / "ours/config.json").read_text(encoding="utf-8"))
        self.assertNotIn("quantization_config", config)
        written = load_file(self.path / "ours/model.safetensors")
        self.assertEqual(set(written), set(state))
        for name, value in state.items():
            self.assertTrue(torch.equal(written[name], value.to(torch.bfloat16)), name)
        loaded(self.path / "ours")

    def test_an_mxfp4_folder_is_the_base_of_adapters(self):
        model, folder = self.make_folder()
        model.load_state_dict(mxfp4_folder(folder))
        file = self.write_run({"model": {"path": str(folder)},
                               "recipe": {"lora": {"rank": 2, "targets": ["q_proj", "o_proj"]}}})
        self.sluice("train", file, "--out", self.path / "run", "--steps", 2, *self.words())
        first = self.metrics("run")[0]
        self.sluice("export", self.path / "run", self.path / "adapters")
        self.sluice("export", self.path / "run", self.path / "merged", "--merged")
        merged = mean_loss(loaded(self.path / "merged"), self.text, LENGTH)
        self.assertLess(merged, mean_loss(model, self.text, LENGTH))
        self.assertGreater(first["loss"], 0)

    def test_blocks_that_do_not_fit_are_refused_by_name(self):
        _, folder = self.make_folder()
        mxfp4_folder(folder)
        whole = load_file(folder / "model.safetensors")
        name = "model.layers.1.mlp.experts.down_proj"
        blocks, scales = whole[f"{name}_blocks"], whole[f"{name}_scales"]
        changes = {
            "without scales": {f"{name}_scales": None},
            "of other scales": {f"{name}_scales": scales[:, 1:].contiguous()},
            "of other blocks": {f"{name}_blocks": blocks[..., :8].contiguous()},
            "of fewer experts": {f"{name}_blocks": blocks[1:].contiguous(),
                                 f"{name}_scales": scales[1:].contiguous()},
            "in both forms": {name: torch.zeros(3, 32, 64)},
        }
        for case, change in changes.items():
            with self.subTest(case=case):
                made = {key: value for key, value in {**whole, **change}.items()
                        if value is not None}
                save_file(made, folder / "model.safetensors", metadata={"format": "pt"})
                said = self.refused("import", folder, self.path / "other")
                self.assertIn("layers.1.mlp.experts", said)
                self.assertFalse((self.path / "other/config.json").exists())

    def test_numbers_that_are_not_finite_are_refused_by_place(self):
        _, folder = self.make_folder()
        mxfp4_folder(folder)
        whole = load_file(folder / "model.safetensors")
        name = "model.layers.2.mlp.experts.gate_up_proj"
        whole[f"{name}_blocks"][1, 5, 0, 0] = 0x77  # the largest number, twice
        whole[f"{name}_scales"][1, 5, 0] = 255
        save_file(whole, folder / "model.safetensors", metadata={"format": "pt"})
        said = self.refused("import", folder, self.path / "run", code=1)
        self.assertIn("layers.2.mlp.experts.1.up_proj.weight", said)

    def test_keys_that_are_not_computed_are_refused_by_name(self):
        _, folder = self.make_folder()
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        for key, value in {"swiglu_limit": 5.0, "swiglu_alpha": 1.5,
                           "quantization_config": {"quant_method": "gptq"}}.items():
            with self.subTest(key=key):
                (folder / "config.json").write_text(json.dumps({**config, key: value}),
                                                    encoding="utf-8")
                self.assertIn(key, self.refused("import", folder, self.path / "other"))

    def test_experts_in_one_tensor_are_read_as_transformers_has_them_in_memory(self):
        for case in ("qwen3_moe", "mixtral", "qwen3_5_moe"):
            with self.subTest(case=case):
                model = make_model(case)
                theirs, fused = self.path / f"{case}-theirs", self.path / f"{case}-fused"
                run = self.path / case
                model.save_pretrained(theirs)
                self.sluice("import", theirs, run)
                state = {name: value.detach() for name, value in model.state_dict().items()}
                self.assertIn("model.layers.0.mlp.experts.gate_up_proj", state)
                shutil.copytree(theirs, fused)
                save_file(state, fused / "model.safetensors", metadata={"format": "pt"})
                self.assertEqual(self.evaluate(fused, run), self.evaluate(theirs, run))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]])
