"""Gemma 3 compared with transformers: greedy tokens with a cache, and folders of models that also
see images, with the names of transformers 5 and of earlier versions.

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
    from safetensors.torch import load_file, save_file
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration

VISION = {"model_type": "siglip_vision_model", "hidden_size": 16, "intermediate_size": 24,
          "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 8, "patch_size": 4,
          "vision_use_head": False}


@unittest.skipIf(MISSING, MISSING)
class Gemma3(llama.LlamaRuns):
    def generated(self, run, prompt, count, *words):
        return self.sluice("generate", run, "--prompt", prompt, "--tokenizer", "bytes",
                           "--temperature", "0", "--tokens", count,
                           *self.words(**{"data.sequence_length": 96}), *words).stdout

    def test_greedy_tokens_are_transformers(self):
        # With a tied head, random weights repeat the last token.
        model, run = self.imported("gemma3", stir=0.25, tie_word_embeddings=False)
        placed = [word for key, value in NVME.items() for word in ("--set", f"{key}={value}")]
        for prompt in ("a", "once upon a time", "x" * 70):  # within the window, and beyond it
            with self.subTest(prompt=prompt):
                expected = self.greedy(model.eval(), prompt.encode(), 24)
                self.assertGreater(len(set(expected)), 4)  # else the test proves little
                text = bytes(expected).decode(errors="replace").replace("\r", "\n") + "\n"
                self.assertEqual(self.generated(run, prompt, 24), text)
                self.assertEqual(self.generated(run, prompt, 24, *placed), text)

    def with_images(self):
        """A folder as on the hub, and its text model's parameters."""
        torch.manual_seed(5)
        text = make_model("gemma3")
        keys = {**SIZES, **CASES["gemma3"][1]}
        config = Gemma3Config(text_config=keys, vision_config=VISION, mm_tokens_per_image=4,
                              image_token_index=255)
        whole = Gemma3ForConditionalGeneration(config)
        whole.model.language_model.load_state_dict(text.model.state_dict())
        folder = self.path / "images"
        whole.save_pretrained(folder)
        return text, folder

    def test_of_a_model_that_sees_images_the_text_is_trained(self):
        text, folder = self.with_images()
        before = mean_loss(text, self.text, LENGTH)
        file = folder / "model.safetensors"
        bare = {name.replace("model.language_model.", "").replace("language_model.model.", "")
                .removeprefix("model."): value for name, value in load_file(file).items()}
        of_text = {name for name in bare
                   if not name.startswith(("vision_tower.", "multi_modal_projector."))}
        self.assertGreater(len(bare), len(of_text))
        for of, others in (("model.language_model.", "model."), ("language_model.model.", "")):
            with self.subTest(names=of):
                save_file({(of if name in of_text else others) + name: value
                           for name, value in bare.items()}, file)
                run = self.path / of.replace(".", "-")
                shown = self.sluice("import", folder, run)
                self.assertIn("vision encoder", shown.stdout + shown.stderr)
                self.assert_close(self.evaluate(folder, run), before, 1e-5)
        self.train(run, 3)
        self.sluice("export", run, self.path / "ours")
        after = mean_loss(loaded(self.path / "ours"), self.text, LENGTH)
        self.assertLess(after, before)
        self.assert_close(self.evaluate(self.path / "ours", run), after, 1e-5)

    def test_what_transformers_would_compute_otherwise_is_refused_by_key(self):
        _, folder = self.with_images()
        file = folder / "config.json"
        whole = json.loads(file.read_text(encoding="utf-8"))
        for key, value in (("hidden_activation", "silu"), ("final_logit_softcapping", 30.0),
                           ("layer_types", ["full_attention"] + ["sliding_attention"] * 2),
                           ("rope_parameters", {"full_attention": {"rope_type": "yarn",
                                                                   "factor": 2.0}})):
            with self.subTest(key=key):
                text = {**whole["text_config"], key: value}
                file.write_text(json.dumps({**whole, "text_config": text}), encoding="utf-8")
                said = self.refused("import", folder, self.path / "run")
                self.assertIn({"rope_parameters": "yarn"}.get(key, key), said)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]])
