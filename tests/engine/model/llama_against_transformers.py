"""The Llama family beside transformers, and its adapters beside PEFT: loss, logits and all gradients
of random small models.

The program is the environment's MODEL_DRIVER. Both sides get the same config.json, as transformers
writes it, the same random weights and tokens. transformers in float64 is the judge: of ours in
float64, in fp32 and in bf16, and of transformers' own in bf16. With adapters it is PEFT's.
"""

import contextlib
import os
import sys
import tempfile
import unittest
from pathlib import Path

import numpy as np
import torch
from driver_process import driver
from llama_cases import ADAPTERS, CANCELLED, CASES, EVERY, OF_DELTA, OF_SHARED, PACKED, SIZES

sys.path.append(str(Path(__file__).resolve().parents[3] / "tools"))
import reference_packages

os.environ["HF_HUB_OFFLINE"] = "1"  # nothing is fetched

reference_packages.use()
MISSING = ""
try:
    import transformers
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM
except ImportError as missing:
    MISSING = f"transformers cannot be imported ({missing}); tools/setup --for=test installs it"

BATCH, TOKENS = 2, 37  # no row is aligned by chance
DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16}
# Largest error of a tensor, relative to its largest magnitude. What is left in float64 is rounding
# in fp32 by transformers, whose norms and rotary positions have no other form.
BOUNDS = {"fp64": 2e-6, "fp32": 1e-5, "bf16": 8e-2}
# A recurrence carries its rounding from token to token, as transformers' own does.
BOUNDS_OF_RECURRENCES = {"fp64": 2e-6, "fp32": 1e-4, "bf16": 0.4}
# Against transformers in bf16, judged by float64: ours may not be much worse.
WORSE_THAN_PEER = 1.5

def driver_words(adapters):
    """What model_driver is told of them."""
    if adapters is None:
        return {}
    return {"rank": adapters["r"], "alpha": adapters["lora_alpha"],
            "rank_stabilised": int(adapters.get("use_rslora", False)),
            "targets": ",".join([
                *(name for name in [*EVERY, *PACKED, *OF_DELTA, OF_SHARED]
                  if name in adapters["target_modules"]),
                *(["experts"] if "target_parameters" in adapters else [])])}


def make_config(case):
    kind, keys = CASES[case]
    return getattr(transformers, kind)(**{**SIZES, **keys}, attn_implementation="eager")


def our_name(name):
    wrapped = "" if "lora_" in name else ".base_layer"  # part of the name of experts' adapters
    for part in ("base_model.model.", wrapped, ".default"):
        name = name.replace(part, "")
    return name.removeprefix("model.")


# The names of an expert's gate, up and down in files.
EXPERT_NAMES = {"qwen3_moe": ("mlp", "gate_proj", "up_proj", "down_proj"),
                "qwen3_5_moe_text": ("mlp", "gate_proj", "up_proj", "down_proj"),
                "mixtral": ("block_sparse_moe", "w1", "w3", "w2"),
                "gpt_oss": ("mlp", "gate_proj", "up_proj", "down_proj")}


def our_views(model, name, value):
    """Our names of one of the model's parameters, with the parts of `value` that they name: in
    memory, transformers joins the experts of a layer."""
    names = EXPERT_NAMES.get(model.config.model_type)
    name = our_name(name)
    if names is None or ".mlp." not in name:
        return {name: value}
    home, gate, up, down = names
    layer, last = name.split(".mlp.")
    if last == "gate.weight":
        return {f"{layer}.{home}.gate.weight": value}
    parts = {"experts.gate_up_proj": (gate, up), "experts.down_proj": (down,)}.get(last)
    if parts is None:
        return {name: value}
    is_gpt_oss = model.config.model_type == "gpt_oss"  # transposed, and gate and up alternate
    views = ((lambda matrix: [matrix.T[part::len(parts)] for part in range(len(parts))])
             if is_gpt_oss else lambda matrix: matrix.chunk(len(parts)))
    return {f"{layer}.{home}.experts.{expert}.{part}.weight": view
            for expert, matrix in enumerate(value)
            for part, view in zip(parts, views(matrix))}


class WideTorch:
    """torch, for a module of transformers whose "torch.float32" shall be float64."""

    float32 = float = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


@contextlib.contextmanager
def wide_delta_rule(model):
    """transformers computes the rule, and what it is given, in fp32 whatever the model's dtype. Over
    the tokens of a text that adds up to more than the bounds of float64."""
    from transformers.models.qwen3_5 import modeling_qwen3_5
    from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe
    modeling = {"qwen3_5_text": modeling_qwen3_5,
                "qwen3_5_moe_text": modeling_qwen3_5_moe}.get(model.config.model_type)
    if modeling is None or next(model.parameters()).dtype != torch.float64:
        yield
        return
    narrow = torch.Tensor.float
    modeling.torch = WideTorch()
    torch.Tensor.float = lambda self: self if self.dtype == torch.float64 else narrow(self)
    try:
        yield
    finally:
        modeling.torch = torch
        torch.Tensor.float = narrow


def reference_model(config, weights, adapters=None):
    with_experts = {"experts_implementation": "eager"} if hasattr(config, "num_experts") else {}
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", **with_experts)
    if adapters is not None:
        model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **adapters))
    model = model.double()
    with torch.no_grad():
        state = {}
        for name, value in model.named_parameters():
            state |= our_views(model, name, value)
        if set(state) != set(weights):
            raise AssertionError(f"other parameters: {set(state) ^ set(weights)}")
        for name, value in weights.items():
            state[name].copy_(value)
    return model.train()


def balance_loss(model, of_passes):
    """From the router's logits in each pass, by layer. All passes are one micro-batch."""
    config = model.config
    layers = tuple(torch.cat(of_layer) for of_layer in zip(*of_passes))
    home = sys.modules[type(model.get_base_model() if hasattr(model, "get_base_model")
                            else model).__module__]
    experts = getattr(config, "num_local_experts", None) or config.num_experts
    return home.load_balancing_loss_func(layers, experts, config.num_experts_per_tok)


def reference_pass(model, tokens, begins=None):
    """Of whole rows, or of each document on its own."""
    routed = []
    balances = getattr(model.config, "output_router_logits", False)

    def logits_in(tokens):
        made = model(tokens)
        if balances:
            routed.append(made.router_logits)
        return made.logits

    def logits_of(row):
        ends = [*begins[row][1:], tokens.shape[1] - 1] if begins else [tokens.shape[1] - 1]
        firsts = begins[row] if begins else [0]
        return torch.cat([logits_in(tokens[row:row + 1, first:end])
                          for first, end in zip(firsts, ends)], dim=1)
    with wide_delta_rule(model):
        logits = torch.cat([logits_of(row) for row in range(tokens.shape[0])])
    loss = torch.nn.functional.cross_entropy(logits.double().flatten(0, 1), tokens[:, 1:].flatten())
    if balances:
        loss = loss + model.config.router_aux_loss_coef * balance_loss(model, routed)
    loss.backward()
    results = {"logits": logits, "loss": loss}
    for name, value in model.named_parameters():
        if value.requires_grad:
            results |= our_views(model, name, value.grad)
    return {name: value.detach().double() for name, value in results.items()}


def errors(ours, reference):
    """name -> largest difference, relative to the reference's largest magnitude. An expert without
    tokens has a gradient of zero, exactly."""
    return {name: ((ours[name] - value).abs().max() / (value.abs().max() or 1)).item()
            for name, value in reference.items()}


def distances(ours, reference):
    """name -> the norm of the difference, relative to the reference's; of tensors, not of the loss,
    which can be right by chance."""
    return {name: ((ours[name] - value).norm() / value.norm()).item()
            for name, value in reference.items() if value.ndim > 0}


class Comparison(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        torch.manual_seed(21)
        cls.tokens = torch.randint(0, SIZES["vocab_size"], (BATCH, TOKENS + 1))
        cls.scratch = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.scratch.cleanup)

    def folder(self, case):
        folder = Path(self.scratch.name) / case
        make_config(case).save_pretrained(folder)
        return folder / "config.json"

    def weights(self, case, layout, dtype):
        """Large enough that every path matters; exact in `dtype`, so nobody starts with an error. They
        depend on the case alone."""
        torch.manual_seed(21)
        values = {}
        for name, shape in layout:
            random = (0.05 if "lora_" in name else 0.15) * torch.randn(shape)
            from_one = case.startswith(("qwen3_5", "gemma")) and "linear_attn" not in name
            if "norm" in name and not from_one:
                random += 1  # elsewhere the gain is already stored without it
            values[name] = random.to(DTYPES[dtype]).float()
        return values

    def ours(self, config, layout, weights, dtype, trained, **options):
        with tempfile.TemporaryDirectory() as folder:
            files = {key: Path(folder) / key for key in ("weights", "tokens", "out")}
            np.concatenate([weights[name].numpy().ravel() for name, _ in layout]).tofile(
                files["weights"])
            self.tokens.numpy().astype("<i8").tofile(files["tokens"])
            driver("run", config=config, dtype=dtype, batch=BATCH, tokens_per_row=TOKENS, **files,
                   **options)
            flat = torch.from_numpy(np.fromfile(files["out"],
                                                dtype="<f8" if dtype == "fp64" else "<f4"))
        pieces = [("logits", (BATCH, TOKENS, SIZES["vocab_size"])), ("loss", ()), *trained]
        sizes = [int(np.prod(shape)) for _, shape in pieces]
        self.assertEqual(flat.numel(), sum(sizes))
        return {name: piece.double().view(shape)
                for (name, shape), piece in zip(pieces, flat.split(sizes))}

    def compare(self, case, dtype, begins=None, adapters=None, **options):
        config = self.folder(case)
        options |= driver_words(adapters)
        if begins:
            options["documents"] = ";".join(",".join(map(str, row)) for row in begins)
        lines = (line.split() for line in driver("layout", config=config, **driver_words(adapters))
                 .splitlines())
        layout = [(words[0], tuple(map(int, words[1:]))) for words in lines]
        trained = [(name, shape) for name, shape in layout if adapters is None or "lora_" in name]
        weights = self.weights(case, layout, dtype)
        model = reference_model(make_config(case), weights, adapters)
        exact = reference_pass(model, self.tokens, begins)
        made = self.ours(config, layout, weights, dtype, trained, **options)
        ours = errors(made, exact)
        self.assertEqual(len(ours), 2 + len(trained))
        if CANCELLED.get(case) in ours:
            ours[CANCELLED[case]] = made[CANCELLED[case]].abs().max().item()
        worst = max(ours, key=ours.get)
        print(f"{case} {dtype} {options}: worst {worst} {ours[worst]:.2e}")
        bounds = BOUNDS_OF_RECURRENCES if case.startswith("qwen3_5") else BOUNDS
        for name, error in ours.items():
            self.assertLess(error, bounds[dtype], f"{case} {name}")
        if dtype == "bf16":
            model = reference_model(make_config(case), weights, adapters).to(torch.bfloat16)
            peer = distances(reference_pass(model, self.tokens, begins), exact)
            worse = {name: distance / peer[name]
                     for name, distance in distances(made, exact).items()}
            print(f"{case} {dtype}: {sum(worse.values()) / len(worse):.2f} of the peer's distance "
                  f"in the mean, {max(worse.values()):.2f} for {max(worse, key=worse.get)}")
            for name, ratio in worse.items():
                self.assertLess(ratio, WORSE_THAN_PEER, f"{case} {name}")


@unittest.skipIf(MISSING, MISSING)
class AgainstTransformers(Comparison):
    def test_every_architecture_in_float64(self):
        for case in CASES:
            with self.subTest(case=case):
                self.compare(case, "fp64")

    def test_every_architecture_in_fp32_from_recomputed_activations(self):
        for case in CASES:
            with self.subTest(case=case):
                self.compare(case, "fp32", recompute=1, chunk_rows=10)

    def test_is_as_close_as_transformers_in_bf16(self):
        for case in ("llama", "mistral", "qwen2", "qwen3", "qwen3_5", "qwen3_5_moe_all", "phi3",
                     "gemma3", "gemma2", "smollm3"):
            with self.subTest(case=case):
                self.compare(case, "bf16")

    def test_a_padded_vocabulary_of_a_tied_head(self):
        for case in ("llama_tied", "llama"):
            with self.subTest(case=case):
                self.compare(case, "fp32", padded_vocab=128)

    def test_documents_of_a_row_do_not_see_one_another(self):
        for case in ("llama", "mistral", "qwen2_windows", "qwen3", "yarn_scaling",
                     "dynamic_scaling", "qwen3_moe", "qwen3_moe_balanced", "mixtral", "gpt_oss",
                     "qwen3_5", "qwen3_5_odd", "qwen3_5_moe", "qwen3_5_moe_odd", "phi3",
                     "phi3_parts", "phi3_longrope", "phi3_longrope_parts", "gemma3", "gemma3_odd", "gemma2", "gemma2_odd", "smollm3",
                     "smollm3_windows", "smollm3_odd", "smollm3_rotated"):
            with self.subTest(case=case):
                self.compare(case, "fp64", begins=[[0, 11, 13], [0, 30]])


@unittest.skipIf(MISSING, MISSING)
class AdaptersAgainstPeft(Comparison):
    def test_every_product_in_float64(self):
        for case, adapters in ADAPTERS.items():
            with self.subTest(case=case):
                self.compare(case, "fp64", adapters=adapters)

    def test_every_product_in_fp32_from_recomputed_activations(self):
        for case in ("llama", "qwen2"):
            with self.subTest(case=case):
                self.compare(case, "fp32", adapters=ADAPTERS[case], recompute=1, chunk_rows=10)

    def test_is_as_close_as_peft_in_bf16(self):
        for case in ("llama", "mistral", "qwen2", "qwen3"):
            with self.subTest(case=case):
                self.compare(case, "bf16", adapters=ADAPTERS[case])

    def test_documents_of_a_row_do_not_see_one_another(self):
        self.compare("qwen3", "fp64", begins=[[0, 11, 13], [0, 30]], adapters=ADAPTERS["qwen3"])


if __name__ == "__main__":
    unittest.main()
