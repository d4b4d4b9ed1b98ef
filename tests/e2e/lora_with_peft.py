"""Adapters trained by sluice, compared with PEFT's and exchanged in both directions.

The programs are the environment's SLUICE and PRINT_SAMPLES.
"""

import contextlib
import copy
import json
import shutil
import sys
import unittest

import torch

from llama_with_transformers import (ACCUMULATION, ADAMW, CLIP, LENGTH, MICRO, NVME, STEPS,
                                     LlamaRuns, loaded, make_model)
from reference_gpt import MISSING, Training, mean_loss, windows

if not MISSING:
    from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
    from safetensors.torch import load_file, save_file

EVERY = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
WORSE_THAN_PEER = 1.5  # in bf16, compared with fp32
EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
# Fused products with some parts adapted, and with all; tied and untied; both scales.
RECIPES = {
    "llama": {"r": 4, "lora_alpha": 12, "target_modules": EVERY},
    "qwen2": {"r": 3, "lora_alpha": 5, "target_modules": ["q_proj", "v_proj"], "use_rslora": True},
    "qwen3": {"r": 5, "lora_alpha": 5, "target_modules": ["k_proj", "o_proj", "up_proj",
                                                          "down_proj"]},
    "gemma3": {"r": 3, "lora_alpha": 6, "target_modules": ["q_proj", "o_proj", "gate_proj",
                                                           "down_proj"]},
    "qwen3_5": {"r": 3, "lora_alpha": 6, "target_modules": ["q_proj", "in_proj_qkv", "in_proj_a",
                                                            "out_proj", "up_proj"]},
    "qwen3_5_moe": {"r": 2, "lora_alpha": 5, "target_modules": [
        "k_proj", "in_proj_z", "gate_proj", "down_proj", "shared_expert_gate"]},
    "phi3": {"r": 3, "lora_alpha": 6, "target_modules": ["qkv_proj", "down_proj"]},
    "smollm3": {"r": 4, "lora_alpha": 12, "target_modules": ["q_proj", "k_proj", "o_proj",
                                                            "down_proj"]},
}
# With the experts' tensors, whose adapters have no modules; with and without attention.
RECIPES_OF_EXPERTS = {
    "qwen3_moe": {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"],
                  "target_parameters": EXPERTS},
    "qwen3_moe_balanced": {"r": 3, "lora_alpha": 6, "target_modules": [],
                           "target_parameters": EXPERTS, "use_rslora": True},
    "mixtral": {"r": 8, "lora_alpha": 5, "target_modules": [], "target_parameters": EXPERTS},
    "gpt_oss": {"r": 3, "lora_alpha": 6, "target_modules": ["o_proj"],
                "target_parameters": EXPERTS},
    "qwen3_5_moe_experts": {"r": 2, "lora_alpha": 5, "target_modules": [
        "in_proj_z", "gate_proj", "shared_expert_gate"], "target_parameters": EXPERTS},
}
ALL_RECIPES = {**RECIPES, **RECIPES_OF_EXPERTS}


def rounded_to_int8(matrix, block=128):
    flat = matrix.flatten()
    blocks = torch.nn.functional.pad(flat, (0, -len(flat) % block)).view(-1, block)
    scale = blocks.abs().amax(1, keepdim=True) / 127
    return (torch.round(blocks / scale) * scale).flatten()[:len(flat)].view_as(matrix)


NF4 = (-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
       -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
       0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
       0.7229568362236023, 1.0)


def dynamic_codes():
    """bitsandbytes' create_dynamic_map()."""
    codes = [torch.zeros(1), torch.ones(1)]
    for decade in range(7):
        boundaries = torch.linspace(0.1, 1, 2 ** decade + 1)
        means = 10.0 ** (decade - 6) * (boundaries[:-1] + boundaries[1:]) / 2
        codes += [means, -means]
    return torch.cat(codes).sort().values


def rounded_to_nf4(matrix, twice=False, block=64, group=256):
    """bitsandbytes' quantize_4bit() and dequantize_4bit(), with compress_statistics if `twice`."""
    flat = matrix.flatten()
    blocks = torch.nn.functional.pad(flat, (0, -len(flat) % block)).view(-1, block)
    absmax = blocks.abs().amax(1, keepdim=True)
    codes = torch.tensor(NF4)
    found = torch.bucketize(blocks * (1 / absmax), (codes[:-1] + codes[1:]) / 2)
    if twice:
        dynamic = dynamic_codes()
        offset = absmax.mean()
        rest = [part - offset for part in absmax.flatten().split(group)]
        nearest = [(part[:, None] / part.abs().max() - dynamic).abs().argmin(1) for part in rest]
        absmax = torch.cat([dynamic[code] * part.abs().max() + offset
                            for code, part in zip(nearest, rest)])[:, None]
    return (codes[found] * absmax).flatten()[:len(flat)].view_as(matrix)


@unittest.skipIf(MISSING, MISSING)
class Adapters(LlamaRuns):
    def folders(self, case, seed=1, stir=0.05, halves=False):
        """Folders of a base and of adapters that change its output. With `halves` bf16 represents
        the numbers of the base exactly."""
        base = self.path / f"{case}-base"
        model = make_model(case.removesuffix("_experts"))
        if halves:
            with torch.no_grad():
                for value in model.parameters():
                    value.copy_(value.bfloat16())
        model.save_pretrained(base)
        torch.manual_seed(seed)
        adapted = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **ALL_RECIPES[case]))
        with torch.no_grad():
            for name, value in adapted.named_parameters():
                if "lora_B" in name:
                    value.add_(stir * torch.randn_like(value))
        adapted.save_pretrained(self.path / f"{case}-adapter")
        return adapted, base, self.path / f"{case}-adapter"

    def recipe(self, case, adapter=None):
        if adapter:
            return {"lora": {"adapter": str(adapter)}}  # its folder has the rest of the recipe
        peft = ALL_RECIPES[case]
        experts = ["experts"] if "target_parameters" in peft else []
        return {"lora": {"rank": peft["r"], "alpha": peft["lora_alpha"],
                         "targets": peft["target_modules"] + experts,
                         "rank_stabilised": peft.get("use_rslora", False)}}

    def run_file(self, case, base, adapter=None):
        return self.write_run({"model": {"path": str(base)}, "recipe": self.recipe(case, adapter)})

    def test_thirty_steps_are_pefts(self):
        for case in ALL_RECIPES:
            with self.subTest(case=case):
                adapted, base, adapter = self.folders(case)
                file = self.run_file(case, base, adapter)
                self.sluice("train", file, "--out", self.path / case, "--steps", STEPS,
                            *self.words())
                steps = self.assert_steps_are_those_of(adapted, case)
                self.assertLess(steps[-1]["loss"], steps[0]["loss"] - 0.05)
                # The adapters agree as well.
                self.sluice("export", self.path / case, self.path / f"{case}-ours")
                adapted.save_pretrained(self.path / f"{case}-trained")
                name = "adapter_model.safetensors"
                ours = load_file(self.path / f"{case}-ours" / name)
                theirs = load_file(self.path / f"{case}-trained" / name)
                self.assertEqual(ours.keys(), theirs.keys())
                for key, value in theirs.items():
                    self.assertLess((ours[key] - value).norm(), 1e-3 * value.norm(), key)

    def test_an_encoded_base_is_the_numbers_that_it_stands_for(self):
        def encoded_matrices(name, value, bits):
            of_experts = value.dim() == 3 and "mlp.experts." in name
            if of_experts:
                return [part for matrix in value
                        for part in matrix.chunk(2 if "gate_up_proj" in name else 1)]
            keeps = any(part in name for part in ("lora_", "mlp.gate.", "shared_expert_gate."))
            in_16_bits = bits == 4 and ".layers." not in name
            return [] if keeps or in_16_bits or value.dim() != 2 else [value]

        for case, rounded, words in (
                *((case, rounded_to_int8, {"base_bits": 8})
                  for case in ("llama", "qwen2", "qwen3_5_moe")),
                ("llama", rounded_to_nf4, {"base_bits": 4}),
                ("qwen3_5_moe", rounded_to_nf4, {"base_bits": 4}),
                ("qwen2", lambda matrix: rounded_to_nf4(matrix, twice=True),
                 {"base_bits": 4, "double_quant": "true"})):
            with self.subTest(case=case, **words):
                adapted, base, adapter = self.folders(case)
                file = self.run_file(case, base, adapter)
                of_base = [part for key, value in words.items()
                           for part in ("--set", f"recipe.lora.{key}={value}")]
                name = f"{case}-{len(of_base)}-{words['base_bits']}"
                self.sluice("train", file, "--out", self.path / name, "--steps", STEPS,
                            *of_base, *self.words())
                with torch.no_grad():
                    for key, value in adapted.named_parameters():
                        for matrix in encoded_matrices(key, value, words["base_bits"]):
                            matrix.copy_(rounded(matrix))
                encoded = mean_loss(adapted, self.text, LENGTH)
                as_it_was = self.evaluate(base, file, "--adapter", adapter)
                self.assertGreater(abs(encoded - as_it_was), 2e-5 * as_it_was)
                self.assert_close(self.evaluate(base, file, "--adapter", adapter, *of_base),
                                  encoded, 1e-5)
                # A checkpoint says how its base was stored.
                trained = self.evaluate(base, self.path / name, "--adapter", self.path / name)
                self.assert_steps_are_those_of(adapted, name)
                self.assert_close(trained, mean_loss(adapted, self.text, LENGTH), 1e-5)

    def trained_by_peft(self, adapted, computing):
        """The losses and adapters after the same steps; `computing` makes a context."""
        training = Training(adapted, ADAMW, lambda applied: ADAMW["lr"])
        firsts = self.samples(STEPS * ACCUMULATION * MICRO)
        losses = []
        for _ in range(STEPS):
            batch = [windows(self.text, [next(firsts) for _ in range(MICRO)], LENGTH)
                     for _ in range(ACCUMULATION)]
            with computing():
                losses.append(training.step(batch, CLIP)[0])
        return losses, get_peft_model_state_dict(adapted)

    def test_is_as_close_to_fp32_as_peft_is_in_bf16(self):
        def distances(made, exact):
            """The distances of the losses, and of all adapters together."""
            losses = sum((a - b) ** 2 for a, b in zip(made[0], exact[0])) ** 0.5
            self.assertEqual(made[1].keys(), exact[1].keys())
            return losses, sum((made[1][key] - value).norm() ** 2
                               for key, value in exact[1].items()).item() ** 0.5

        for case in RECIPES:
            with self.subTest(case=case):
                adapted, base, adapter = self.folders(case, halves=True)
                # Like transformers' Trainer: a base in bf16, adapters in fp32, autocast.
                halves = copy.deepcopy(adapted)
                for name, value in halves.named_parameters():
                    if "lora_" not in name:
                        value.data = value.data.bfloat16()
                exact = self.trained_by_peft(adapted, contextlib.nullcontext)
                theirs = distances(self.trained_by_peft(
                    halves, lambda: torch.autocast("cpu", torch.bfloat16)), exact)
                self.sluice("train", self.run_file(case, base, adapter), "--out",
                            self.path / case, "--steps", STEPS,
                            *self.words(**{"bf16.enabled": "true"}))
                self.sluice("export", self.path / case, self.path / f"{case}-ours")
                ours = distances(([step["loss"] for step in self.metrics(case)], load_file(
                    self.path / f"{case}-ours/adapter_model.safetensors")), exact)
                print(f"{case} bf16: losses {ours[0]:.1e} from fp32, PEFT's {theirs[0]:.1e}; "
                      f"adapters {ours[1]:.1e}, PEFT's {theirs[1]:.1e}")
                self.assertGreater(min(ours), 0)  # the run was not in fp32
                for our, their in zip(ours, theirs):
                    self.assertLess(our, WORSE_THAN_PEER * their)

    def test_peft_gives_the_loss_of_what_is_exported_and_sluice_of_what_peft_saves(self):
        for case in ALL_RECIPES:
            with self.subTest(case=case):
                adapted, base, adapter = self.folders(case)
                file = self.run_file(case, base, adapter)
                run = self.path / case
                theirs = mean_loss(adapted, self.text, LENGTH)
                shown = self.evaluate(base, file, "--adapter", adapter)
                self.assert_close(shown, theirs, 1e-5)
                # Without an adapter, the base itself is evaluated.
                self.assert_close(self.evaluate(base, file),
                                  mean_loss(make_model(case.removesuffix("_experts")),
                                            self.text, LENGTH), 1e-5)
                self.sluice("train", file, "--out", run, "--steps", 3, *self.words())
                self.sluice("export", run, self.path / f"{case}-ours")
                again = PeftModel.from_pretrained(loaded(base), self.path / f"{case}-ours")
                self.assertEqual(again.peft_config["default"].base_model_name_or_path, base.name)
                after = mean_loss(again, self.text, LENGTH)
                self.assertNotAlmostEqual(after, theirs, 4)
                self.assert_close(
                    self.evaluate(base, run, "--adapter", self.path / f"{case}-ours"), after, 1e-5)
                # The run and its checkpoint evaluate like its export.
                for named in (run, run / "checkpoints/step-000000003"):
                    self.assert_close(self.evaluate(None, run, "--adapter", named), after, 1e-5)
                # Merged weights are an ordinary model.
                self.sluice("export", run, self.path / f"{case}-merged", "--merged")
                self.assert_close(mean_loss(loaded(self.path / f"{case}-merged"), self.text,
                                            LENGTH), after, 1e-6)
                self.assert_close(self.evaluate(self.path / f"{case}-merged", run), after, 1e-5)
                # If the base has been moved, the message names it.
                base.rename(self.path / f"{case}-moved")
                self.assertIn("with --base", self.refused(
                    "export", run, self.path / "x", "--merged"))
                self.assertRegex(self.refused("eval", run / "config.json", "--adapter", run,
                                              *self.words()), "--weights:.*no file")
                self.assert_close(self.evaluate(self.path / f"{case}-moved", run, "--adapter",
                                                run), after, 1e-5)
                self.sluice("export", run, self.path / f"{case}-again", "--merged", "--base",
                            self.path / f"{case}-moved")
                weights = "model.safetensors"
                self.assertEqual((self.path / f"{case}-again" / weights).read_bytes(),
                                 (self.path / f"{case}-merged" / weights).read_bytes())

    def test_greedy_tokens_are_those_of_the_merged_model(self):
        _, base, adapter = self.folders("llama", stir=0.3)
        run = self.path / "run"
        self.sluice("train", self.run_file("llama", base, adapter), "--out", run, "--steps", 2,
                    *self.words())
        self.sluice("export", run, self.path / "merged", "--merged")
        expected = self.greedy(loaded(self.path / "merged").eval(), b"once upon a time", 30)
        self.assertGreater(len(set(expected)), 4)
        shown = self.sluice("generate", run, "--prompt", "once upon a time", "--tokenizer", "bytes",
                            "--temperature", "0", "--tokens", 30,
                            *self.words(**{"data.sequence_length": 96})).stdout
        text = bytes(expected).decode(errors="replace").replace("\r", "\n")
        self.assertEqual(shown, text + "\n")

    def test_placements_and_a_stop_half_way_change_no_bit(self):
        for case in ("qwen3", "qwen3_moe"):
            with self.subTest(case=case):
                self.assert_placements_change_no_bit(case)

    def assert_placements_change_no_bit(self, case):
        _, base, adapter = self.folders(case)
        file = self.run_file(case, base, adapter)
        files = set()
        for name, placement, stops in (("cpu", {}, [6]), ("nvme", NVME, [6]),
                                       ("stopped", NVME, [3, 6])):
            run = self.path / f"{case}-{name}"
            words = self.words(**{"bf16.enabled": "true"}, **placement)
            self.sluice("train", file, "--out", run, "--steps", stops[0], *words)
            for steps in stops[1:]:
                self.sluice("train", run / "config.json", "--out", run, "--resume", "--steps",
                            steps, *words)
            self.sluice("export", run, self.path / f"{case}-{name}-out")
            files.add((self.path / f"{case}-{name}-out/adapter_model.safetensors").read_bytes())
        self.assertEqual(len(files), 1)

    def test_adapters_of_some_tensors_of_experts_are_refused_by_name(self):
        _, base, adapter = self.folders("qwen3_moe")
        file = self.run_file("qwen3_moe", base, adapter)
        words = ("train", file, "--out", self.path / "run", "--steps", 2, *self.words())
        config = adapter / "adapter_config.json"
        kept = json.loads(config.read_text(encoding="utf-8"))
        for parameters in (EXPERTS[:1], EXPERTS[1:], [*EXPERTS, "mlp.gate.weight"], "experts", [3],
                           [f"model.layers.0.{name}" for name in EXPERTS]):
            config.write_text(json.dumps({**kept, "target_parameters": parameters}),
                              encoding="utf-8")
            self.assertIn("target_parameters is", self.refused(*words))
        for parameters in (["gate_up_proj", "down_proj"], EXPERTS[::-1]):
            config.write_text(json.dumps({**kept, "target_parameters": parameters}),
                              encoding="utf-8")
            self.evaluate(base, file, "--adapter", adapter)
        config.write_text(json.dumps({**kept, "target_parameters": None}), encoding="utf-8")
        self.assertIn("target_modules is [", self.refused(*words))
        config.write_text(json.dumps(kept), encoding="utf-8")
        self.assertIn("recipe.lora.dropout is given", self.refused(
            *words, "--set", "recipe.lora.dropout=0.1"))
        weights = adapter / "adapter_model.safetensors"
        tensors = load_file(weights)
        experts = "base_model.model.model.layers.0.mlp.experts."
        for part in ("base_layer.lora_A.weight", "lora_B.weight"):
            save_file({name: value for name, value in tensors.items() if name != experts + part},
                      weights)
            self.assertIn(f"no tensor {experts}{part}", self.refused(*words))
        # Older versions of PEFT saved experts that were modules.
        save_file({**tensors, experts + "3.gate_proj.lora_A.weight": torch.zeros(4, 48)}, weights)
        self.assertIn("experts.3.gate_proj", self.refused(*words))
        plain = self.write_run({"model": {"path": str(base)}, "recipe": {"lora": {"rank": 2}}})
        for target in ("gate_proj", "down_proj"):
            self.assertIn(f"names {target}", self.refused(
                "train", plain, "--out", self.path / "run", "--steps", 2, *self.words(),
                "--set", f'recipe.lora.targets=["{target}"]'))
        self.assertFalse((self.path / "run").exists())

    def test_adapters_that_sluice_has_not_are_refused_by_name(self):
        _, base, adapter = self.folders("llama")
        file = self.run_file("llama", base, adapter)
        words = ("train", file, "--out", self.path / "run", "--steps", 2, *self.words())
        config = adapter / "adapter_config.json"
        kept = config.read_text(encoding="utf-8")

        def edited(**keys):
            config.write_text(json.dumps({**json.loads(kept), **keys}), encoding="utf-8")
            return words

        for keys, named in (({"use_dora": True}, "use_dora is true"),
                            ({"peft_type": "IA3"}, 'peft_type is "IA3"'),
                            ({"bias": "all"}, 'bias is "all"'),
                            ({"rank_pattern": {"q_proj": 2}}, "rank_pattern is"),
                            ({"modules_to_save": ["lm_head"]}, "modules_to_save is"),
                            ({"init_lora_weights": "pissa"}, 'init_lora_weights is "pissa"'),
                            ({"r": 8}, "q_proj.lora_A.weight is 4"),
                            ({"layers_to_transform": 0}, "layers_to_transform is 0"),
                            ({"kasa_config": {"beta": 1}}, "kasa_config is"),
                            ({"target_modules": ["q_proj"]},
                             "target_modules is [q_proj], but the adapters in the same folder "
                             "are for"),
                            ({"lora_alpha": 1e300}, "adapters is 1e+300")):
            self.assertIn(named, self.refused(*edited(**keys)))
        # Values of the recipe have to match the adapter's.
        for keys, said, named in (
                ({"lora_alpha": 5}, "alpha=12", "recipe.lora.alpha is 12.0, and the adapter's is 5"),
                ({"use_rslora": True}, "rank_stabilised=false",
                 "recipe.lora.rank_stabilised is false")):
            self.assertIn(named, self.refused(*edited(**keys), "--set", f"recipe.lora.{said}"))
        deep = kept.replace('"use_dora": false', '"use_dora": ' + "[" * 200000 + "]" * 200000)
        self.assertNotEqual(deep, kept)
        config.write_text(deep, encoding="utf-8")
        self.assertIn("adapter_config.json", self.refused(*words))
        config.write_text(kept[:50], encoding="utf-8")
        self.assertRegex(self.refused(*words, code=1), r"adapter_config\.json:.*JSON.*byte 50")
        config.write_text(kept, encoding="utf-8")
        # An adapter's folder is not a model.
        named = "not its base model: name the base model"
        self.assertIn(named, self.refused("import", adapter, self.path / "run"))
        self.assertIn(named, self.refused("eval", file, "--weights", adapter, *self.words()))
        self.assertRegex(self.refused(*words, "--set", f"model.path={adapter}"),
                         r"contains an adapter.*recipe\.lora\.adapter")
        self.assertIn("recipe.lora.targets is [q_proj]", self.refused(
            *words, "--set", 'recipe.lora.targets=["q_proj"]'))
        self.assertIn("the only one", self.refused(
            *words, "--set", 'recipe.lora.targets=["all-linear", "q_proj"]'))
        self.assertIn("recipe.lora.targets is empty", self.refused(
            *words, "--set", "recipe.lora.targets=[]"))
        self.assertIn("names gate", self.refused(
            *words, "--set", 'recipe.lora.targets=["gate"]'))
        self.assertIn("cannot have adapters", self.refused(
            *words, "--set", "model.path=", "--set", "model.preset=gpt2-small"))
        weights = adapter / "adapter_model.safetensors"
        tensors = load_file(weights)
        first = next(iter(tensors))
        save_file({key: value for key, value in tensors.items() if key != first}, weights)
        self.assertIn(f"has no tensor {first}", self.refused(*words))
        save_file({**tensors, "base_model.model.lm_head.lora_A.weight": torch.zeros(4, 48)}, weights)
        self.assertRegex(self.refused(*words), r"lm_head\.lora_A\.weight.*not an adapter")
        save_file({key: value.to(torch.int32) for key, value in tensors.items()}, weights)
        self.assertRegex(self.refused(*words), r"lora_A\.weight is I32.*F32")
        save_file({**tensors, first: torch.full_like(tensors[first], torch.inf)}, weights)
        self.assertIn(f"element 0 of {first}", self.refused(*words, code=1))
        weights.unlink()
        self.assertIn("adapter_model.safetensors", self.refused(*words))
        shutil.rmtree(adapter)
        self.assertIn("there is no", self.refused(*words))
        self.assertFalse((self.path / "run").exists())

    def test_what_is_accepted_of_a_configuration_means_what_it_does_to_peft(self):
        _, base, adapter = self.folders("llama", stir=0.3)
        file = self.run_file("llama", base)
        config = adapter / "adapter_config.json"
        kept = json.loads(config.read_text(encoding="utf-8"))
        modules = [f"model.layers.{layer}.{part}.{name}" for layer in range(3)
                   for part, names in (("self_attn", EVERY[:4]), ("mlp", EVERY[4:]))
                   for name in names]
        losses = set()
        for keys in ({"target_modules": "all-linear"},
                     {"target_modules": r".*\.(q|k|v|o|gate|up|down)_proj"},
                     {"target_modules": [f"self_attn.{name}" for name in EVERY[:4]] +
                                        [f"mlp.{name}" for name in EVERY[4:]]},
                     {"target_modules": modules},
                     {"use_rslora": True}, {"lora_alpha": 2.5}, {"lora_dropout": 0.4},
                     {"modules_to_save": [], "layers_to_transform": []},
                     {"init_lora_weights": "gaussian", "use_dora": None}):
            with self.subTest(keys=list(keys), first=str(list(keys.values())[0])[:40]):
                config.write_text(json.dumps({**kept, **keys}), encoding="utf-8")
                theirs = mean_loss(PeftModel.from_pretrained(loaded(base), adapter), self.text,
                                   LENGTH)
                self.assert_close(self.evaluate(base, file, "--adapter", adapter), theirs, 1e-5)
                losses.add(round(theirs, 4))
        self.assertEqual(len(losses), 3)  # only the scale matters

    def test_a_run_goes_on_beside_its_own_base_alone(self):
        _, base, adapter = self.folders("llama")
        run = self.path / "run"
        self.sluice("train", self.run_file("llama", base, adapter), "--out", run, "--steps", 2,
                    *self.words())
        more = ("train", run / "config.json", "--out", run, "--resume", "--steps", 3)
        base.rename(self.path / "moved")
        generate = ("generate", run, "--prompt", "once", "--tokenizer", "bytes", "--tokens", 1)
        for command in (more, generate):
            self.assertRegex(self.refused(*command),
                             rf"model\.path:.*{base}.*--set model\.path=FOLDER")
        self.sluice(*generate, "--set", f"model.path={self.path / 'moved'}")
        make_model("llama", seed=8).save_pretrained(base)
        other = f"on other base weights than those of {base}: "
        merge = ("export", run, self.path / "x", "--merged")
        for command in (more, generate):
            told = self.refused(*command)
            self.assertIn(other + "set model.path", told)
            self.assertNotIn("on the CPU", told)  # refused before planning
        self.assertIn(other + "name the right ones with --base", self.refused(*merge))
        evaluation = ("eval", run / "config.json", "--adapter", run, "--data",
                      self.path / "text.bin", *self.words())
        told = self.refused(*evaluation)
        self.assertIn(other + "name the base weights of the run with --weights", told)
        self.assertNotIn("on the CPU", told)
        # One changed number, which no sampled check reads, is found while reading.
        shutil.rmtree(base)
        shutil.copytree(self.path / "moved", base)
        weights = load_file(base / "model.safetensors")
        weights["model.layers.1.self_attn.q_proj.weight"].view(-1)[300] += 1e-3
        save_file(weights, base / "model.safetensors", metadata={"format": "pt"})
        for command in (more, generate, evaluation):
            told = self.refused(*command)
            self.assertIn(other, told)
            self.assertIn("on the CPU", told)
        self.assertIn(other, self.refused(*merge, code=1))
        self.assertFalse((self.path / "x").exists())
        # A checkpoint of adapters does not have a model's weights.
        newest = sorted((run / "checkpoints").iterdir())[-1]
        self.assertIn("contains adapters", self.refused(
            "eval", run / "config.json", "--weights", newest, "--data", self.path / "text.bin",
            *self.words()))
        shutil.rmtree(base)
        (self.path / "moved").rename(base)
        self.sluice(*more)
        # What --adapter accepts and refuses.
        evaluate = ("eval", run / "config.json", *self.words())
        self.assertIn("nothing to evaluate", self.refused(*evaluate))
        self.assertIn("PEFT folder", self.refused(*evaluate, "--adapter", base))
        self.assertIn("PEFT folder", self.refused(*evaluate, "--adapter", "gone"))
        self.assertIn("needs its base model", self.refused(*evaluate, "--adapter", adapter))
        self.sluice("import", base, self.path / "whole")
        self.assertIn("a whole model", self.refused(
            *evaluate, "--adapter", self.path / "whole"))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]])
