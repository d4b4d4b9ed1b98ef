"""One forward and backward pass of the model beside transformers' GPT2LMHeadModel in float64.

The program is the environment's MODEL_DRIVER. Both sides get the same random weights and tokens,
and VARIANTS the same config.json, as transformers writes it. float64 is the judge of both: of ours
in fp32 and 16 bits, and of transformers' own in the same dtype, so a bound says how our rounding
compares with theirs.
"""

import sys
import tempfile
import unittest
from pathlib import Path

import numpy as np
import driver_process
import torch

sys.path.append(str(Path(__file__).resolve().parents[3] / "tools"))
import reference_packages

reference_packages.use()
MISSING = ""
try:
    from transformers import GPT2Config, GPT2LMHeadModel
except ImportError as missing:
    MISSING = f"transformers cannot be imported ({missing}); tools/setup --for=test installs it"

BATCH, TOKENS = 3, 21  # odd numbers: no row is aligned by chance
SHAPE = {"layers": 3, "hidden": 48, "heads": 4, "context": 24, "vocab": 101}
DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16,
          "fp16": torch.float16}
# Largest error of a tensor, relative to its largest magnitude. Sums of some hundred products round
# to some 1e-7 in fp32; 2^-8 and 2^-11 are the roundings of bf16 and fp16, met some dozen times.
BOUNDS = {"fp64": 1e-11, "fp32": 3e-6, "bf16": 6e-2, "fp16": 8e-3}
# Against transformers in the same dtype, judged by float64: ours may not be much worse.
WORSE_THAN_PEER = 2.0

# GPT-2s that are not OpenAI's, by what their config.json has otherwise.
VARIANTS = {
    "gelu": {"activation_function": "gelu"},
    "relu": {"activation_function": "relu", "layer_norm_epsilon": 0.125},
    "silu": {"activation_function": "silu", "tie_word_embeddings": False},
    "swish": {"activation_function": "swish", "n_inner": 77},
    "gelu_fast": {"activation_function": "gelu_fast"},
    "gelu_accurate": {"activation_function": "gelu_accurate", "layer_norm_epsilon": 1e-12},
    "gelu_python": {"activation_function": "gelu_python"},
    "gelu_python_tanh": {"activation_function": "gelu_python_tanh"},
    "untied": {"tie_word_embeddings": False},
    "unscaled": {"scale_attn_weights": False},
    "by_layer": {"scale_attn_by_inverse_layer_idx": True},
    "by_layer_alone": {"scale_attn_weights": False, "scale_attn_by_inverse_layer_idx": True},
    "all": {"activation_function": "gelu", "layer_norm_epsilon": 1e-3, "n_inner": 100,
            "tie_word_embeddings": False, "scale_attn_weights": False,
            "scale_attn_by_inverse_layer_idx": True},
}
# Says in what order and how widely attention is computed, and cannot be in float64.
ROUNDING = "reorder_and_upcast_attn"
UPCAST = {"scale_attn_by_inverse_layer_idx": True, ROUNDING: True}


def driver(command, **options):
    shape = {} if "config" in options else SHAPE
    return driver_process.driver(command, **{**shape, **options})


def parameters(**options):
    """(name, shape) in the order of the driver's files."""
    lines = (line.split() for line in driver("layout", **options).splitlines())
    return [(words[0], tuple(map(int, words[1:]))) for words in lines]


def make_config(**keys):
    return GPT2Config(**{"n_layer": SHAPE["layers"], "n_embd": SHAPE["hidden"],
                         "n_head": SHAPE["heads"], "n_positions": SHAPE["context"],
                         "vocab_size": SHAPE["vocab"], "resid_pdrop": 0, "embd_pdrop": 0,
                         "attn_pdrop": 0, "attn_implementation": "eager", **keys})


def named_parameters(model):
    return {name.removeprefix("transformer."): value for name, value in model.named_parameters()}


def reference_model(weights, config):
    model = GPT2LMHeadModel(config).double()
    with torch.no_grad():
        state = named_parameters(model)
        if set(state) != set(weights):
            raise AssertionError(f"other parameters: {set(state) ^ set(weights)}")
        for name, value in weights.items():
            state[name].copy_(value)
    return model.train()


def reference_pass(model, tokens, begins=None):
    """Of whole rows, or of each document on its own."""
    def logits_of(row):
        firsts = begins[row] if begins else [0]
        ends = [*firsts[1:], tokens.shape[1] - 1]
        return torch.cat([model(tokens[row:row + 1, first:end]).logits
                          for first, end in zip(firsts, ends)], dim=1)
    logits = torch.cat([logits_of(row) for row in range(tokens.shape[0])])
    loss = torch.nn.functional.cross_entropy(logits.double().flatten(0, 1),
                                             tokens[:, 1:].flatten())
    loss.backward()
    results = {"logits": logits, "loss": loss}
    results |= {name: value.grad for name, value in named_parameters(model).items()}
    return {name: value.detach().double() for name, value in results.items()}


def errors(ours, reference):
    """name -> largest difference, relative to the reference's largest magnitude."""
    return {name: ((ours[name] - value).abs().max() / value.abs().max()).item()
            for name, value in reference.items()}


@unittest.skipIf(MISSING, MISSING)
class AgainstTransformers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        torch.manual_seed(20)
        cls.tokens = torch.randint(0, SHAPE["vocab"], (BATCH, TOKENS + 1))

    def setUp(self):
        torch.manual_seed(21)  # whatever the tests before have drawn

    def weights(self, layout, dtype):
        """Large enough that every path matters; exact in `dtype`, so nobody starts with an error."""
        values = {}
        for name, shape in layout:
            random = 0.15 * torch.randn(shape)
            if name.endswith(("ln_1.weight", "ln_2.weight", "ln_f.weight")):
                random += 1
            values[name] = random.to(DTYPES[dtype]).float()
        return values

    def ours(self, layout, weights, dtype, **options):
        with tempfile.TemporaryDirectory() as folder:
            files = {key: Path(folder) / key for key in ("weights", "tokens", "out")}
            np.concatenate([weights[name].numpy().ravel() for name, _ in layout]).tofile(
                files["weights"])
            self.tokens.numpy().astype("<i8").tofile(files["tokens"])
            driver("run", dtype=dtype, batch=BATCH, tokens_per_row=TOKENS, **files, **options)
            flat = torch.from_numpy(np.fromfile(
                files["out"], dtype="<f8" if dtype == "fp64" else "<f4")).double()
        pieces = [("logits", (BATCH, TOKENS, SHAPE["vocab"])), ("loss", ()), *layout]
        sizes = [int(np.prod(shape)) for _, shape in pieces]
        self.assertEqual(flat.numel(), sum(sizes))
        return {name: piece.view(shape)
                for (name, shape), piece in zip(pieces, flat.split(sizes))}

    def compare(self, dtype, keys=None, begins=None, **options):
        keys = keys or {"n_inner": options.get("ffn")}
        config = make_config(**{key: value for key, value in keys.items() if key != ROUNDING})
        if begins:
            options["documents"] = ";".join(",".join(map(str, row)) for row in begins)
        layout = parameters(**options)
        weights = self.weights(layout, dtype)
        exact = reference_pass(reference_model(weights, config), self.tokens, begins)
        peer = errors(reference_pass(reference_model(weights, make_config(**keys)).to(
            DTYPES[dtype]), self.tokens, begins), exact)
        ours = errors(self.ours(layout, weights, dtype, **options), exact)
        self.assertEqual(len(ours), 2 + len(layout))
        worst = max(ours, key=ours.get)
        print(f"{dtype} {options}: worst {worst} {ours[worst]:.2e}; transformers' own worst "
              f"{max(peer.values()):.2e}")
        # ReLU's derivative jumps: what rounds to the other side of 0 is another number.
        jumps = dtype in ("bf16", "fp16") and keys.get("activation_function") == "relu"
        for name, error in ours.items():
            if not jumps:
                self.assertLess(error, BOUNDS[dtype], name)
        if dtype != "fp64":
            self.assertLess(ours[worst], WORSE_THAN_PEER * max(peer.values()))

    def compare_variant(self, dtype, keys, **options):
        with tempfile.TemporaryDirectory() as folder:
            make_config(**keys).save_pretrained(folder)
            self.compare(dtype, keys, config=Path(folder) / "config.json", **options)

    def test_gives_the_same_in_fp32(self):
        self.compare("fp32")

    def test_gives_the_same_from_recomputed_activations(self):
        self.compare("fp32", recompute=1)

    def test_gives_the_same_with_a_loss_in_chunks_and_a_padded_vocabulary(self):
        self.compare("fp32", chunk_rows=10, padded_vocab=128)

    def test_gives_the_same_with_another_feed_forward(self):
        self.compare("fp32", ffn=80)

    def test_is_as_close_as_transformers_in_16_bits(self):
        for dtype in ("bf16", "fp16"):
            with self.subTest(dtype=dtype):
                self.compare(dtype)
                self.compare(dtype, chunk_rows=10, padded_vocab=128, recompute=1)

    def test_every_variant_in_float64(self):
        for name, keys in VARIANTS.items():
            with self.subTest(variant=name):
                self.compare_variant("fp64", keys)

    def test_every_variant_in_fp32_from_recomputed_activations(self):
        for name, keys in {**VARIANTS, "upcast": UPCAST}.items():
            with self.subTest(variant=name):
                self.compare_variant("fp32", keys, recompute=1, chunk_rows=10, padded_vocab=128)

    def test_variants_are_as_close_as_transformers_in_16_bits(self):
        for name in ("gelu", "relu", "silu", "by_layer", "all"):
            for dtype in ("bf16", "fp16"):
                with self.subTest(variant=name, dtype=dtype):
                    self.compare_variant(dtype, VARIANTS[name])

    def test_documents_of_a_variant_do_not_see_one_another(self):
        for name in ("by_layer", "all"):
            with self.subTest(variant=name):
                self.compare_variant("fp64", VARIANTS[name],
                                     begins=[[0, 5, 6], [0, 20], [0]])


if __name__ == "__main__":
    unittest.main()
