"""Folders of the Llama family, written by transformers, trained by sluice and read again.

The programs are the environment's SLUICE and PRINT_SAMPLES.
"""

import json
import os
import re
import shutil
import struct
import subprocess
import sys
import unittest
from pathlib import Path

import numpy
import torch

from reference_gpt import MISSING, Training, mean_loss, windows
from sluice_runs import SLUICE, SluiceRuns

if not MISSING:
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

PREPARE = Path(__file__).resolve().parents[2] / "tools/prepare"
PRINT_SAMPLES = os.path.abspath(os.environ.get("PRINT_SAMPLES", "build/bin/print_samples"))
MICRO, ACCUMULATION, LENGTH, STEPS = 4, 2, 24, 30
SEED, CLIP = 7, 1.0
END = 256  # the end token of the byte tokenizer
ADAMW = {"lr": 0.002, "betas": [0.9, 0.98], "eps": 1e-8, "weight_decay": 0.1}
SIZES = {"vocab_size": 257, "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 3,
         "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 96}
# Cases: a window shorter than the text; tied and untied; scaled positions.
CASES = {
    "llama": ("LlamaConfig", {"rope_parameters": {
        "rope_type": "llama3", "rope_theta": 1000.0, "factor": 4.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 32}}),
    "mistral": ("MistralConfig", {"sliding_window": 7}),
    "qwen2": ("Qwen2Config", {"tie_word_embeddings": True, "use_sliding_window": True,
                              "sliding_window": 9, "max_window_layers": 1}),
    "qwen3": ("Qwen3Config", {"head_dim": 32}),
    "qwen3_moe": ("Qwen3MoeConfig", {"head_dim": 16, "num_experts": 6, "num_experts_per_tok": 2,
                                     "moe_intermediate_size": 40, "norm_topk_prob": True}),
    "mixtral": ("MixtralConfig", {"num_local_experts": 4, "num_experts_per_tok": 2,
                                  "rope_theta": 1000.0}),
    "qwen3_moe_balanced": ("Qwen3MoeConfig", {
        "head_dim": 16, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 40,
        "output_router_logits": True, "router_aux_loss_coef": 0.3}),
    "qwen3_5": ("Qwen3_5TextConfig", {
        "head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
        "linear_key_head_dim": 16, "linear_value_head_dim": 12,
        "layer_types": ["linear_attention", "linear_attention", "full_attention"]}),
    "qwen3_5_moe": ("Qwen3_5MoeTextConfig", {
        "head_dim": 16, "linear_num_key_heads": 1, "linear_num_value_heads": 3,
        "linear_key_head_dim": 16, "linear_value_head_dim": 12, "num_experts": 6,
        "num_experts_per_tok": 2, "moe_intermediate_size": 40,
        "shared_expert_intermediate_size": 28,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"]}),
    "gpt_oss": ("GptOssConfig", {"head_dim": 16, "num_local_experts": 5, "num_experts_per_tok": 2,
                                 "sliding_window": 7}),
    # With a padding token, the row of that one would have no gradient as an input.
    "gemma3": ("Gemma3TextConfig", {
        "pad_token_id": None, "head_dim": 16, "sliding_window": 7, "query_pre_attn_scalar": 24,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0}}}),
    "gemma2": ("Gemma2Config", {
        "pad_token_id": None, "head_dim": 16, "sliding_window": 7, "query_pre_attn_scalar": 24,
        "attn_logit_softcapping": 0.7, "final_logit_softcapping": 2.0}),
    "phi3": ("Phi3Config", {"sliding_window": 9, "pad_token_id": None, "rope_parameters": {
        "rope_type": "default", "rope_theta": 1000.0, "partial_rotary_factor": 0.5}}),
    # Rows and answers are longer than the original context, documents shorter and longer.
    "phi3_longrope": ("Phi3Config", {
        "pad_token_id": None, "original_max_position_embeddings": 20, "rope_parameters": {
            "rope_type": "longrope", "rope_theta": 1000.0, "short_factor": [1.0, 1.1, 1.5],
            "long_factor": [1.3, 3.0, 9.0], "partial_rotary_factor": 0.5}}),
    "smollm3": ("SmolLM3Config", {
        "pad_token_id": None, "no_rope_layer_interval": 2, "use_sliding_window": True,
        "sliding_window": 9, "tie_word_embeddings": False}),
}
OTHERS = {
    "ministral": ("MinistralConfig", {"sliding_window": 9, "head_dim": 12,
                                       "layer_types": ["full_attention"] * 3}),
}
NVME = {"zero_optimization.offload_param.device": "nvme",
        "zero_optimization.offload_optimizer.device": "nvme",
        "zero_optimization.stage3_param_persistence_threshold": 0}


def eager(model):
    """With experts one by one, since grouped products have no float64."""
    if hasattr(model.config, "num_experts"):
        model.set_experts_implementation("eager")
    return model


def make_model(case, seed=3, stir=None, **more):
    """A model with weights so large that each of them matters. In larger ones a recurrence amplifies
    rounding: PyTorch in fp32 then leaves the steps of PyTorch in float64."""
    if stir is None:
        stir = 0.05 if case.startswith("qwen3_5") else 0.1
    kind, keys = {**CASES, **OTHERS}[case]
    torch.manual_seed(seed)
    config = getattr(transformers, kind)(**{**SIZES, **keys, **more}, bos_token_id=None, eos_token_id=None)
    model = eager(AutoModelForCausalLM.from_config(config, attn_implementation="eager"))
    with torch.no_grad():
        for value in model.parameters():
            value.add_(stir * torch.randn_like(value))
    return model


def loaded(folder):
    """Loads a folder with unmodified transformers: no tensor is missing or unexpected."""
    model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True,
                                                       attn_implementation="eager")
    problems = {problem: names for problem, names in info.items() if names}
    assert not problems, problems
    return eager(model).float()


TEMPLATE = """\
{% for message in messages %}{{ "<|im_start|>" + message.role + "\\n" }}\
{% if message.role == "assistant" %}{% generation %}{{ message.content + "<|im_end|>" }}\
{% endgeneration %}{% else %}{{ message.content + "<|im_end|>" }}{% endif %}{{ "\\n" }}\
{% endfor %}"""


def chat_tokenizer():
    """A byte tokenizer with the special tokens of the template."""
    made = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(
        sorted(pre_tokenizers.ByteLevel.alphabet()))}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    # The vocabulary of 257 has room for one special token, so the begin of a turn is plain text.
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|im_end|>")
    tokenizer.chat_template = TEMPLATE
    return tokenizer


class LlamaRuns(SluiceRuns):
    """Shared by tests of the family: runs on one text."""

    maxDiff = None

    def setUp(self):
        super().setUp()
        self.text = self.tokens("text.bin", 6000, seed=9)

    def imported(self, case, **options):
        model = make_model(case, **options)
        model.save_pretrained(self.path / f"{case}-theirs", max_shard_size="40KB")
        self.assertGreater(len(list((self.path / f"{case}-theirs").glob("*.safetensors"))), 2)
        self.sluice("import", self.path / f"{case}-theirs", self.path / case)
        return model, self.path / case

    def words(self, **more):
        settings = {"data.train": f'["{self.path / "text.bin"}"]', "data.dtype": "uint16",
                    "data.sequence_length": LENGTH, "data.validation_fraction": 0,
                    "data.shuffle_seed": SEED, "run.device": "cpu", "run.cpu_threads": 1,
                    "bf16.enabled": "false", "train_micro_batch_size_per_gpu": MICRO,
                    "gradient_accumulation_steps": ACCUMULATION, "gradient_clipping": CLIP,
                    "optimizer.params": str(ADAMW).replace("'", '"'),
                    "budget.nvme_paths": f'["{self.path / "nvme"}"]', **more}
        return [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]

    def train(self, run, steps, **more):
        self.sluice("train", run / "config.json", "--out", run, "--resume", "--steps", steps,
                    *self.words(**more))

    def samples(self, count):
        shown = subprocess.run([PRINT_SAMPLES, self.path / "text.bin", str(LENGTH), str(SEED),
                                str(count)], capture_output=True, check=True).stdout
        return iter(map(int, shown.split()))

    def assert_steps_are_those_of(self, model, case, bound=1e-5, norm_bound=2e-4):
        """Trains `model` by PyTorch for the reported steps, compares each, and returns the
        steps."""
        training = Training(model, ADAMW, lambda applied: ADAMW["lr"])
        firsts = self.samples(STEPS * ACCUMULATION * MICRO)
        steps = self.metrics(case)
        self.assertEqual(len(steps), STEPS)
        worst = 0
        for step in steps:
            batch = [windows(self.text, [next(firsts) for _ in range(MICRO)], LENGTH)
                     for _ in range(ACCUMULATION)]
            loss, norm, _ = training.step(batch, CLIP)
            worst = max(worst, abs(step["loss"] - loss) / loss)
            self.assertEqual("balance_loss" in step, "balanced" in case)
            if "balanced" in case:
                self.assert_close(step["balance_loss"], training.balance_loss, bound)
            self.assertLess(abs(step["grad_norm"] - norm), norm_bound * norm, step["step"])
        print(f"{case}: loss {steps[0]['loss']:.3f} -> {steps[-1]['loss']:.3f}, "
              f"worst difference {worst:.1e} of it")
        self.assertLess(worst, bound)
        return steps

    def refused(self, *arguments, code=2):
        done = subprocess.run([SLUICE, *map(str, arguments)], capture_output=True, text=True,
                              check=False)
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stderr

    def greedy(self, model, ids, count):
        """The ids that follow, up to the end of a text, by whole forward passes."""
        made = list(ids)
        with torch.no_grad():
            for _ in range(count):
                token = int(model(torch.tensor([made])).logits[0, -1].argmax())
                if token == END:
                    break
                made.append(token)
        return made[len(ids):]

    def evaluate(self, weights, run, *more):
        file = run / "config.json" if run.is_dir() else run
        named = () if weights is None else ("--weights", weights)
        shown = self.sluice("eval", file, *named, "--data", self.path / "text.bin", *self.words(),
                            *more).stdout
        return float(re.match(r"loss (\S+) ", shown).group(1))

    def assert_close(self, ours, expected, bound):
        self.assertLess(abs(ours - expected), bound * expected, f"{ours}, expected {expected}")


@unittest.skipIf(MISSING, MISSING)
class Llamas(LlamaRuns):
    def test_thirty_steps_are_pytorchs(self):
        for case in CASES:
            with self.subTest(case=case):
                model, run = self.imported(case)
                self.train(run, STEPS)
                steps = self.assert_steps_are_those_of(model, case)
                self.assertLess(steps[-1]["loss"], steps[0]["loss"] - 0.3)

    def test_a_ministral_without_windows_runs_in_transformers(self):
        model, run = self.imported("ministral")
        self.sluice("export", run, self.path / "ours")
        self.assertEqual(mean_loss(loaded(self.path / "ours"), self.text, LENGTH),
                         mean_loss(model, self.text, LENGTH))

    def test_what_is_exported_is_what_sluice_evaluates(self):
        for case in CASES:
            with self.subTest(case=case):
                model, run = self.imported(case)
                before = mean_loss(model, self.text, LENGTH)
                self.assert_close(self.evaluate(self.path / f"{case}-theirs", run), before, 1e-5)
                self.train(run, 3)
                self.sluice("export", run, self.path / f"{case}-ours", "--max-shard-size", "60K")
                after = loaded(self.path / f"{case}-ours")
                expected = mean_loss(after, self.text, LENGTH)
                self.assertLess(expected, before)
                self.assert_close(self.evaluate(self.path / f"{case}-ours", run), expected, 1e-5)
                unlike = {"transformers_version", "dtype", "_name_or_path"}
                if not getattr(model.config, "use_sliding_window", True):
                    unlike.add("max_window_layers")  # unused without a window
                if getattr(model.config, "head_dim", 0) is None:
                    unlike.add("head_dim")  # ours says what follows
                if case == "qwen3_5_moe":
                    unlike.add("intermediate_size")  # a key of SIZES that it does not read
                theirs = {key: value for key, value in model.config.to_dict().items()
                          if key not in unlike}
                ours = after.config.to_dict()
                ours["rope_parameters"].pop("type", None)  # transformers 4's name of rope_type
                self.assertEqual({key: ours.get(key) for key in theirs}, theirs)

    def write_documents(self, lengths):
        """Random tokens and masks in the form that tools/prepare --chat writes."""
        torch.manual_seed(1)
        documents = [torch.randint(0, 256, (length,)) for length in lengths]
        masks = [torch.randint(0, 3, (length,)) == 0 for length in lengths]
        for mask in masks:
            mask[-1] = True
        flat = torch.cat(documents).numpy().astype("<u2")
        bits = torch.cat(masks).numpy()
        starts = [0, *torch.tensor(lengths).cumsum(0).tolist()]
        path = self.path / "chat.bin"
        flat.tofile(path)
        Path(f"{path}.documents").write_bytes(struct.pack(f"<{len(starts)}Q", *starts))
        numpy.packbits(bits, bitorder="little").tofile(f"{path}.mask")
        Path(f"{path}.json").write_text(json.dumps({
            "format": "sluice-tokens", "version": 2, "dtype": "uint16", "tokens": len(flat),
            "vocab_size": 257, "documents": len(lengths), "trained_tokens": int(bits.sum()),
            "tokenizer": {"kind": "bytes"}}), encoding="utf-8")
        return documents, masks

    def expected_step(self, model, documents, masks):
        """(loss, gradient norm) over the targets, with each document on its own."""
        total = sum(int(mask[1:].sum()) for mask in masks)
        loss = 0
        for document, mask in zip(documents, masks):
            targets = torch.where(mask[1:], document[1:], -100)
            logits = model(document[None, :-1]).logits[0]
            loss += torch.nn.functional.cross_entropy(logits, targets, reduction="sum") / total
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9).item()
        return loss.item(), norm

    def test_documents_that_share_a_row_train_as_if_alone(self):
        # Four rows: 24; 24; 14 and 10; 11, 8 and 4, with room for one more.
        documents, masks = self.write_documents([25, 15, 12, 25, 9, 11, 5])
        for case in sorted(CASES.keys() - {"qwen3_moe_balanced"}):  # whose balance is that of a row
            with self.subTest(case=case):
                model, _ = self.imported(case)
                loss, norm = self.expected_step(model, documents, masks)
                # In one micro-batch, and in two with different numbers of targets.
                for name, micro, accumulation in (("one", 4, 1), ("two", 2, 2)):
                    self.sluice("import", self.path / f"{case}-theirs", self.path / name)
                    self.train(self.path / name, 1,
                               **{"data.train": f'["{self.path / "chat.bin"}"]',
                                  "train_micro_batch_size_per_gpu": micro,
                                  "gradient_accumulation_steps": accumulation})
                    step, = self.metrics(name)
                    self.assert_close(step["loss"], loss, 2e-6)
                    self.assert_close(step["grad_norm"], norm, 2e-5)
                    shutil.rmtree(self.path / name)

    def test_dynamic_frequencies_are_those_of_each_document(self):
        documents, masks = self.write_documents([25, 15, 12, 25, 9, 11, 5])
        model = make_model("qwen3", max_position_embeddings=8, rope_parameters={
            "rope_type": "dynamic", "rope_theta": 1000.0, "factor": 4.0})
        model.save_pretrained(self.path / "theirs")
        file = self.write_run({"model": {"path": str(self.path / "theirs")}})
        # Shortest first: transformers keeps the frequencies of the longest sequence so far.
        loss, norm = self.expected_step(model, *zip(*sorted(zip(documents, masks),
                                                            key=lambda it: len(it[0]))))
        self.sluice("train", file, "--out", self.path / "qwen3", "--steps", 1,
                    *self.words(**{"data.train": f'["{self.path / "chat.bin"}"]',
                                   "model.context": LENGTH, "train_micro_batch_size_per_gpu": 4,
                                   "gradient_accumulation_steps": 1}))
        step, = self.metrics("qwen3")
        self.assert_close(step["loss"], loss, 2e-6)
        self.assert_close(step["grad_norm"], norm, 2e-5)

    def test_a_folder_is_trained_without_an_import(self):
        model = make_model("qwen3")
        model.save_pretrained(self.path / "theirs", max_shard_size="40KB")
        file = self.write_run({"model": {"path": str(self.path / "theirs")}})
        words = self.words()
        self.sluice("train", file, "--out", self.path / "run", "--steps", 3, *words)
        first = self.metrics("run")[0]
        firsts = self.samples(ACCUMULATION * MICRO)
        batch = [windows(self.text, [next(firsts) for _ in range(MICRO)], LENGTH)
                 for _ in range(ACCUMULATION)]
        loss, norm, _ = Training(model, ADAMW, lambda applied: ADAMW["lr"]).step(batch, CLIP)
        self.assert_close(first["loss"], loss, 1e-5)
        self.assert_close(first["grad_norm"], norm, 2e-4)
        # From now on the run has all that it needs.
        shutil.rmtree(self.path / "theirs")
        self.sluice("train", self.path / "run/config.json", "--out", self.path / "run", "--resume",
                    "--steps", 5)
        self.assertEqual(len(self.metrics("run")), 5)
        self.sluice("export", self.path / "run", self.path / "ours")
        loaded(self.path / "ours")

    def test_sequences_may_be_longer_than_a_model_was_made_for(self):
        for scaling in ("dynamic", "default"):
            with self.subTest(scaling=scaling):
                rope = {"rope_type": scaling, "rope_theta": 1000.0}
                if scaling == "dynamic":
                    rope["factor"] = 2.0
                model = make_model("qwen3", max_position_embeddings=16, rope_parameters=rope)
                folder, run = self.path / scaling, self.path / f"{scaling}-run"
                model.save_pretrained(folder)
                file = self.write_run({"model": {"path": str(folder)}})
                words = ("train", file, "--out", run, "--steps", 2, *self.words())
                self.assertRegex(self.refused(*words),
                                 r"data\.sequence_length 24.*model\.context 16.*model\.context")
                self.assertRegex(self.refused(*words, "--set", "model.context=12", "--set",
                                              "data.sequence_length=8"),
                                 "max_position_embeddings is 16.*12")
                self.sluice(*words, "--set", f"model.context={LENGTH}")
                training = Training(model, ADAMW, lambda applied: ADAMW["lr"])
                firsts = self.samples(2 * ACCUMULATION * MICRO)
                for step in self.metrics(run.name):
                    batch = [windows(self.text, [next(firsts) for _ in range(MICRO)], LENGTH)
                             for _ in range(ACCUMULATION)]
                    loss, norm, _ = training.step(batch, CLIP)
                    self.assert_close(step["loss"], loss, 1e-5)
                    self.assert_close(step["grad_norm"], norm, 2e-4)
                ours = self.path / f"{scaling}-ours"
                self.sluice("export", run, ours)
                expected = mean_loss(loaded(ours), self.text, LENGTH)
                self.assert_close(expected, mean_loss(model, self.text, LENGTH), 1e-5)
                # The length at which scaling begins is that of the model's own configuration.
                self.assertEqual(loaded(ours).config.max_position_embeddings,
                                 16 if scaling == "dynamic" else LENGTH)
                self.assert_close(self.evaluate(ours, run), expected, 1e-5)

    def test_conversations_are_prepared_and_learned_as_transformers_would(self):
        folder = self.path / "theirs"
        model = make_model("qwen2", max_position_embeddings=512)
        model.save_pretrained(folder)
        tokenizer = chat_tokenizer()
        tokenizer.save_pretrained(folder)
        lines = [[{"role": "user", "content": f"What is {i} and {i}?"},
                  {"role": "assistant", "content": f"It is {2 * i}."},
                  {"role": "user", "content": "Sure?"},
                  {"role": "assistant", "content": "Yes. " * (i % 4 + 1)}] for i in range(12)]
        (self.path / "chat.jsonl").write_text(
            "".join(json.dumps({"messages": messages}) + "\n" for messages in lines),
            encoding="utf-8")
        subprocess.run([PREPARE, "--chat", self.path / "chat.jsonl", "--out", self.path / "chat",
                        "--tokenizer", folder, "--validation-fraction", "0"], check=True,
                       capture_output=True)
        documents, masks = [], []
        for messages in lines:
            made = tokenizer.apply_chat_template(messages, return_dict=True,
                                                 return_assistant_tokens_mask=True)
            documents.append(torch.tensor(made["input_ids"]))
            masks.append(torch.tensor(made["assistant_masks"]) == 1)
        loss, norm = self.expected_step(model, documents, masks)
        file = self.write_run({"model": {"path": str(folder)}})
        words = {"data.train": f'["{self.path / "chat/train.bin"}"]', "data.dtype": "auto",
                 "data.sequence_length": 512, "train_micro_batch_size_per_gpu": 1}
        said = self.sluice("train", file, "--out", self.path / "one", "--steps", 1,
                           *self.words(**words)).stderr
        rows = int(re.search(r"12 documents in (\d+) rows of 512 tokens", said).group(1))
        self.assertLess(rows, 12)
        self.sluice("train", file, "--out", self.path / "all", "--steps", 1,
                    *self.words(**words, gradient_accumulation_steps=rows))
        step, = self.metrics("all")
        self.assert_close(step["loss"], loss, 2e-6)
        self.assert_close(step["grad_norm"], norm, 2e-5)
        # The run uses the folder's tokenizer.
        self.sluice("export", self.path / "all", self.path / "ours")
        self.assertEqual(AutoTokenizer.from_pretrained(self.path / "ours").encode("What is 7?"),
                         tokenizer.encode("What is 7?"))
        said = json.loads((self.path / "ours/generation_config.json").read_text(encoding="utf-8"))
        self.assertEqual(said["eos_token_id"], tokenizer.eos_token_id)
        self.assertIsNone(said.get("bos_token_id"))

    def test_folders_that_are_not_such_models_are_refused_by_name(self):
        make_model("llama").save_pretrained(self.path / "theirs", max_shard_size="40KB")
        file = self.write_run({"model": {"path": str(self.path / "theirs")}})
        words = ("train", file, "--out", self.path / "run", "--steps", 3, *self.words())
        # A folder of a model is not a run.
        theirs = self.path / "theirs"
        for command in (("generate", theirs, "--prompt", "x"), ("export", theirs, self.path / "x")):
            self.assertIn(f"sluice import {theirs} RUN", self.refused(*command))
        for command in (("plan", theirs / "config.json"), ("train", theirs / "config.json")):
            self.assertIn("describes a model", self.refused(*command))
        first = sorted(theirs.glob("*.safetensors"))[0]
        self.assertIn("is a file", self.refused("import", first, self.path / "x"))
        self.assertFalse((self.path / "x").exists())
        self.assertIn("there is no nowhere/config.json",
                      self.refused(*words, "--set", "model.path=nowhere"))
        self.assertIn("leave model.preset out",
                      self.refused(*words, "--set", "model.preset=qwen3-8b"))
        self.assertIn("model.family is gpt2", self.refused(*words, "--set", "model.family=gpt2"))
        config = self.path / "theirs/config.json"
        text = config.read_text(encoding="utf-8")
        config.write_text(text.replace('"silu"', '"gelu"'), encoding="utf-8")
        self.assertIn('"hidden_act" is "gelu"', self.refused(*words))
        config.write_text(text[:100], encoding="utf-8")
        self.assertIn("theirs/config.json", self.refused(*words))
        config.write_text(text.replace('"num_hidden_layers": 3', '"num_hidden_layers": 4'),
                          encoding="utf-8")
        self.assertIn("layers.3.", self.refused(*words))
        config.write_text(text, encoding="utf-8")
        shard = sorted((self.path / "theirs").glob("model-*.safetensors"))[1]
        shard.write_bytes(shard.read_bytes()[:-100])
        self.assertIn(f"{shard.name}: tensor", self.refused(*words, code=1))
        shard.unlink()
        self.assertIn(shard.name, self.refused(*words))
        self.assertFalse((self.path / "run").exists())

    def test_placements_and_a_stop_half_way_change_no_bit(self):
        for case in ("mistral", "qwen3", "gpt_oss", "qwen3_moe_balanced", "qwen3_5",
                     "qwen3_5_moe"):
            with self.subTest(case=case):
                hashes = set()
                for name, placement, stops in (("cpu", {}, [6]), ("nvme", NVME, [6]),
                                               ("stopped", NVME, [3, 6])):
                    model = make_model(case)
                    model.save_pretrained(self.path / "theirs")
                    run = self.path / f"{case}-{name}"
                    self.sluice("import", self.path / "theirs", run)
                    for steps in stops:
                        self.train(run, steps, **{"bf16.enabled": "true"}, **placement)
                    self.sluice("export", run, self.path / f"{case}-{name}-out")
                    weights = self.path / f"{case}-{name}-out/model.safetensors"
                    hashes.add(weights.read_bytes())
                self.assertEqual(len(hashes), 1)

    def test_greedy_tokens_are_transformers(self):
        prompt = "once upon a time"
        for case in sorted({*CASES} - {"gemma3"}):  # that one: gemma3_with_transformers.py
            with self.subTest(case=case):
                # With a tied head and a large embedding, random weights repeat the last token.
                keys = {"tie_word_embeddings": False} if case == "gemma2" else {}
                model, run = self.imported(case, stir=0.3, **keys)
                expected = self.greedy(model.eval(), prompt.encode(), 40)
                self.assertGreater(len(set(expected)), 4)  # else the test proves little
                shown = self.sluice("generate", run, "--prompt", prompt, "--tokenizer", "bytes",
                                    "--temperature", "0", "--tokens", 40,
                                    *self.words(**{"data.sequence_length": 96})).stdout
                text = bytes(expected).decode(errors="replace").replace("\r", "\n")
                self.assertEqual(shown, text + "\n")  # newlines are converted when it is read


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]])
