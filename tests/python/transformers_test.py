"""Models of transformers with the package sluice, compared with plain PyTorch's AdamW in fp32."""

import sys
import tempfile
import unittest
import warnings
from pathlib import Path

import torch

import sluice
from small_modules import ADAMW, DEVICE, run_config, torch_adamw, twin

sys.path.append(str(Path(__file__).resolve().parents[2] / "tools"))
import reference_packages

reference_packages.use()
try:
    import transformers

    MISSING = None
except ImportError as error:
    MISSING = f"{error}: tools/setup --for=test fetches it"

VOCAB, STEPS, FEW_STEPS = 64, 20, 5
# At 0.01, PyTorch's own AdamW with foreach differs by 1e-4 from the one without at T5's third step:
# parameters whose gradient is only rounding error take whole steps.
ADAMW["lr"] = 3e-4
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
LLAMA = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
BERT = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 32,
    **NO_DROPOUT,
}


def tokens(generator):
    return torch.randint(3, VOCAB, (2, 12), generator=generator)


def language(generator):
    ids = tokens(generator)
    return {"input_ids": ids, "labels": ids}


def classes(generator):
    return {
        "input_ids": tokens(generator),
        "labels": torch.randint(0, 3, (2,), generator=generator),
    }


def sequences(generator):
    return {"input_ids": tokens(generator), "labels": tokens(generator)}


def images(generator):
    return {
        "pixel_values": torch.randn(2, 3, 16, 16, generator=generator),
        "labels": torch.randint(0, 3, (2,), generator=generator),
    }


# Model, configuration, its overrides, batches, units.
MODELS = {
    "gpt2": (
        "GPT2LMHeadModel",
        "GPT2Config",
        {
            "vocab_size": VOCAB,
            "n_positions": 32,
            "n_embd": 32,
            "n_layer": 3,
            "n_head": 2,
            "resid_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "attn_pdrop": 0.0,
            "bos_token_id": 0,
            "eos_token_id": 0,
        },
        language,
        4,
    ),
    "llama": (
        "LlamaForCausalLM",
        "LlamaConfig",
        {**LLAMA, "tie_word_embeddings": True},
        language,
        4,
    ),
    "bert": ("BertForMaskedLM", "BertConfig", BERT, language, 4),
    "distilbert": (
        "DistilBertForSequenceClassification",
        "DistilBertConfig",
        {
            "vocab_size": VOCAB,
            "dim": 32,
            "n_layers": 3,
            "n_heads": 2,
            "hidden_dim": 64,
            "max_position_embeddings": 32,
            "dropout": 0.0,
            "attention_dropout": 0.0,
            "seq_classif_dropout": 0.0,
            "num_labels": 3,
        },
        classes,
        4,
    ),
    "t5": (
        "T5ForConditionalGeneration",
        "T5Config",
        {
            "vocab_size": VOCAB,
            "d_model": 32,
            "d_kv": 16,
            "d_ff": 64,
            "num_layers": 2,
            "num_heads": 2,
            "dropout_rate": 0.0,
            "decoder_start_token_id": 0,
        },
        sequences,
        5,
    ),
    "blenderbot": (
        "BlenderbotForConditionalGeneration",
        "BlenderbotConfig",
        {
            "vocab_size": VOCAB,
            "d_model": 32,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": 2,
            "decoder_attention_heads": 2,
            "encoder_ffn_dim": 64,
            "decoder_ffn_dim": 64,
            "max_position_embeddings": 32,
            "dropout": 0.0,
            "attention_dropout": 0.0,
            "activation_dropout": 0.0,
        },
        sequences,
        5,
    ),
    "vit": (
        "ViTForImageClassification",
        "ViTConfig",
        {
            "hidden_size": 32,
            "num_hidden_layers": 3,
            "num_attention_heads": 2,
            "intermediate_size": 64,
            "image_size": 16,
            "patch_size": 8,
            "num_labels": 3,
            **NO_DROPOUT,
        },
        images,
        4,
    ),
    "mixtral": (
        "MixtralForCausalLM",
        "MixtralConfig",
        {**LLAMA, "num_local_experts": 4, "num_experts_per_tok": 2, "output_router_logits": True},
        language,
        4,
    ),
}


def make(name, seed=0):
    model, config, numbers, _, _ = MODELS[name]
    torch.manual_seed(seed)
    return getattr(transformers, model)(getattr(transformers, config)(**numbers)).train()


def micro_batches(name, count, seed=1):
    generator = torch.Generator(DEVICE).manual_seed(seed)
    return [MODELS[name][3](generator) for _ in range(count)]


@unittest.skipIf(MISSING, MISSING)
class Models(unittest.TestCase):
    def setUp(self):
        transformers.logging.set_verbosity_error()
        warnings.simplefilter("ignore")

    def check(self, name, accumulation, reentrant=None, place="cpu", steps=STEPS):
        model = make(name)
        reference = twin(model)
        if reentrant is not None:
            for it in (model, reference):
                it.gradient_checkpointing_enable({"use_reentrant": reentrant})
        data = micro_batches(name, steps * accumulation)
        optimizer = torch_adamw(reference)
        with (
            tempfile.TemporaryDirectory() as drive,
            sluice.initialize(
                model, run_config(accumulation, place, drive), units="hooks"
            ) as engine,
        ):
            self.assertEqual((engine.backend, len(engine.units)), ("hooks", MODELS[name][4]))
            for step in range(steps):
                expected = 0.0
                optimizer.zero_grad()
                for batch in data[step * accumulation : (step + 1) * accumulation]:
                    loss = reference(**batch).loss
                    (loss / accumulation).backward()
                    expected += loss.item() / accumulation
                    engine.backward(engine(**batch).loss)
                    done = engine.step()
                optimizer.step()
                self.assertAlmostEqual(done.loss, expected, delta=1e-5, msg=f"{name}, step {step}")

    def check_pairs(self, name, plain, checkpointed, reentrant):
        """With and without checkpointing, each with 1 and 3 micro-batches; two of the four take
        more steps."""
        self.check(name, plain)
        self.check(name, checkpointed, reentrant=reentrant)
        self.check(name, checkpointed, steps=FEW_STEPS)
        self.check(name, plain, reentrant=reentrant, steps=FEW_STEPS)

    def test_gpt2(self):
        self.check_pairs("gpt2", plain=1, checkpointed=3, reentrant=False)

    def test_llama(self):
        self.check_pairs("llama", plain=3, checkpointed=1, reentrant=True)

    def test_bert(self):
        self.check_pairs("bert", plain=3, checkpointed=1, reentrant=False)

    def test_distilbert(self):
        self.check_pairs("distilbert", plain=1, checkpointed=3, reentrant=False)

    def test_t5(self):
        self.check_pairs("t5", plain=3, checkpointed=1, reentrant=False)

    def test_blenderbot(self):
        self.check_pairs("blenderbot", plain=1, checkpointed=3, reentrant=True)

    def test_vit(self):
        self.check_pairs("vit", plain=3, checkpointed=1, reentrant=False)

    def test_mixtral(self):
        self.check_pairs("mixtral", plain=1, checkpointed=3, reentrant=False)

    def test_from_nvme(self):
        self.check("t5", 1, reentrant=False, place="nvme", steps=4)


@unittest.skipIf(MISSING, MISSING)
class Uses(unittest.TestCase):
    def setUp(self):
        transformers.logging.set_verbosity_error()

    def test_generate_between_steps(self):
        for name in ("gpt2", "t5"):
            model = make(name)
            reference = twin(model)
            prompt = micro_batches(name, 1)[0]["input_ids"]
            with sluice.initialize(model, run_config()) as engine:
                for it in (model, reference):
                    it.eval()
                expected = reference.generate(prompt, max_new_tokens=6, do_sample=False)
                self.assertTrue(
                    torch.equal(model.generate(prompt, max_new_tokens=6, do_sample=False), expected)
                )
                model.train()
                engine.backward(engine(**micro_batches(name, 1)[0]).loss)
                self.assertEqual(engine.step().step, 1)
                self.assertFalse(any(engine._trained.residency._held))

    def test_save_pretrained_writes_what_was_trained(self):
        for name in ("gpt2", "blenderbot"):
            model = make(name)
            with (
                tempfile.TemporaryDirectory() as folder,
                sluice.initialize(model, run_config()) as engine,
            ):
                for batch in micro_batches(name, 2):
                    engine.backward(engine(**batch).loss)
                    engine.step()
                model.save_pretrained(folder)
                again = type(model).from_pretrained(folder)
                for key, value in engine.state_dict().items():
                    self.assertTrue(torch.equal(again.state_dict()[key].cpu(), value.cpu()), key)

    def test_adapters_beside_a_frozen_model(self):
        try:
            import peft
        except ImportError as error:
            self.skipTest(str(error))
        recipe = peft.LoraConfig(
            r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"
        )
        model = peft.get_peft_model(make("llama"), recipe)
        reference = twin(model)
        optimizer = torch_adamw(reference)
        with (
            tempfile.TemporaryDirectory() as drive,
            sluice.initialize(model, run_config(place="nvme", drive=drive)) as engine,
        ):
            self.assertIn("frozen parameters", dict(engine.memory["nvme"]))
            for batch in micro_batches("llama", 6):
                optimizer.zero_grad()
                loss = reference(**batch).loss
                loss.backward()
                optimizer.step()
                engine.backward(engine(**batch).loss)
                self.assertAlmostEqual(engine.step().loss, loss.item(), delta=1e-5)

    def test_bf16_computes_in_16_bits(self):
        model = make("llama")
        with sluice.initialize(
            model, run_config(bf16={"enabled": True}, optimizer={"params": {"lr": 1e-2}})
        ) as engine:
            losses = []
            for batch in micro_batches("llama", 1) * 8:
                output = engine(**batch)
                self.assertEqual(output.logits.dtype, torch.bfloat16)
                engine.backward(output.loss)
                losses.append(engine.step().loss)
        self.assertLess(losses[-1], losses[0] - 1)


if __name__ == "__main__":
    unittest.main()
