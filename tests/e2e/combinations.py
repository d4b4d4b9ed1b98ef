"""Random combinations of sluice train's settings, each trained in two ways that must agree.

  combinations.py [--seed S]... [--cases N] [--minutes M] [--device cpu|cuda] [--gpus N] [--jobs J]
  combinations.py --seed S --only NUMBER [--device ...] [--gpus N]
  combinations.py --other PROGRAM ...

A case is a model, data and optimizer, drawn from the seed: everything that determines the results.
A way is a placement of the state, and a number of waves and ranks. It says whether the run stops
and resumes in between, and how much host memory a GPU can pin. Both ways have to write the same weights and, step
by step, the same loss, norm and hashes of every unit. A case that is refused (exit code 2 and one sentence) says why. The
test fails if more than a quarter of 40 or more cases is refused, or if nothing could be compared.
Several seeds share the minutes; "random" draws one. With --only, one case is repeated, its output
is shown, and its folder is kept. With --other, the second way begins with another program, that of
an older commit: the bits must not change, and the new program resumes its checkpoint.

SLUICE is the program. Needs nothing but Python 3.9, on a GPU machine too.
"""

import argparse
import array
import collections
import concurrent.futures
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SLUICE = os.path.abspath(os.environ.get("SLUICE", "build/bin/sluice"))
TIMEOUT_S = 300
MOST_REFUSED = 0.25
FEWEST_CASES = 40  # with fewer, the share of refusals means little
VOCAB = 61
WITH_EXPERTS = ("qwen3_moe", "mixtral", "gpt_oss")
OF_EXPERTS = ("balance_loss", "busiest_expert", "idle_experts")  # which older programs lack
COMPARED = ("step", "loss", "val_loss", "lr", "grad_norm", "loss_scale", "skipped", "unit_hashes")

IN_PLACE = "run.checkpoint_in_place"
STATE_KEYS = ("zero_optimization.offload_optimizer.device", "placement.optimizer_fractions",
              "zero_optimization.sub_group_size", "budget.nvme_paths")

Case = collections.namedtuple("Case", "number work ways")
Way = collections.namedtuple("Way", "ranks legs")  # legs: (last step, settings)
Outcome = collections.namedtuple("Outcome", "kind text")  # "same", "refused" or "failed"


# ---- what varies


def draw_model(draw):
    family = draw.choice(("gpt2", "llama", "llama", "mistral", "qwen2", "qwen3", "qwen3",
                          "qwen3_moe", "mixtral", "gpt_oss", "qwen3_5", "gemma3", "gemma2", "phi3",
                          "smollm3"))
    heads = draw.choice((2, 4))
    model = {"model.preset": "custom", "model.layers": draw.choice((2, 3)), "model.heads": heads,
             "model.hidden": heads * draw.choice((8, 10, 16)), "model.vocab": VOCAB,
             "model.context": draw.choice((12, 16, 32)),
             "model.tied_head": draw.choice(("on", "off"))}
    if family == "gpt2":
        return {**model, "model.family": "gpt2", "model.dropout": draw.choice((0, 0.1)),
                "model.activation": draw.choice(("gelu_new", "gelu", "relu"))}
    if family == "gemma3":
        return {**model, "model.family": "gemma3", "model.kv_heads": draw.choice((1, heads)),
                "model.head_dim": draw.choice((8, 16)), "model.ffn_multiplier": draw.choice((2, 3)),
                "model.window": draw.choice((3, 9)), "model.full_interval": draw.choice((1, 2, 6)),
                "model.rope_factor": draw.choice((1, 8)),
                "model.tied_head": draw.choice(("true", "false")),
                "model.attention_bias": draw.choice(("true", "false"))}
    if family == "gemma2":
        return {**model, "model.family": "gemma2", "model.kv_heads": draw.choice((1, heads)),
                "model.head_dim": draw.choice((8, 16)), "model.ffn_multiplier": draw.choice((2, 3)),
                "model.window": draw.choice((3, 9)), "model.full_interval": draw.choice((1, 2)),
                "model.score_cap": draw.choice((0, 0.5, 50)),
                "model.logit_cap": draw.choice((0, 0.5, 30)),
                "model.tied_head": draw.choice(("true", "false"))}
    if family == "qwen3_5":
        keys = draw.choice((1, 2))
        if (experts := draw.choice((0, 0, 1, 3, 8))):
            model.update({"model.experts": experts, "model.expert_width": draw.choice((0, 8, 20)),
                          "model.experts_per_token": draw.randint(1, min(experts, 4)),
                          "model.router_aux_loss_coef": draw.choice((0, 0.001, 2))})
        return {**model, "model.family": "qwen3_5", "model.kv_heads": draw.choice((1, heads)),
                "model.head_dim": draw.choice((8, 16)), "model.ffn_multiplier": draw.choice((2, 3)),
                "model.attention_interval": draw.choice((1, 2)), "model.delta_key_heads": keys,
                "model.delta_value_heads": keys * draw.choice((1, 2)),
                "model.delta_key_dim": draw.choice((8, 12)),
                "model.delta_value_dim": draw.choice((8, 16))}
    model.update({"model.family": "llama", "model.architecture": family,
                  "model.kv_heads": draw.choice((1, heads)),
                  "model.ffn_multiplier": draw.choice((2, 3))})
    if family in WITH_EXPERTS:
        experts = draw.choice((1, 2, 3, 8))
        model.update({"model.experts": experts,
                      "model.experts_per_token": draw.randint(1, min(experts, 4)),
                      "model.router_aux_loss_coef": draw.choice((0, 0.001, 2))})
    if family == "qwen3_moe":
        model.update({"model.expert_width": draw.choice((8, 12, 24)),
                      "model.norm_topk_prob": draw.choice(("on", "off"))})
    if family in ("qwen3", "qwen3_moe"):
        model["model.head_dim"] = draw.choice((8, 16, 32))
    if family == "gpt_oss":
        model.update({"model.attention_bias": draw.choice(("on", "off")),
                      "model.window_layers": 1, "model.window_full_layers": 1})
    if family != "llama" and draw.random() < 0.3:
        model["model.window"] = 5
    if family == "smollm3":
        model.update({"model.unrotated_interval": draw.choice((0, 1, 2)),
                      "model.attention_bias": draw.choice(("on", "off"))})
    if family == "phi3":
        model["model.rope_share"] = share = draw.choice((1, 0.8))
        if draw.random() < 0.5:
            pairs = int(model["model.hidden"] // heads * share) // 2
            model.update({"model.rope_scaling": "longrope", "model.rope_factor": 4,
                          "model.rope_original_context": draw.choice((4, 4096)),
                          "model.rope_short_factor": json.dumps([1.25] * pairs),
                          "model.rope_long_factor": json.dumps([3] * pairs)})
        return model
    if draw.random() < 0.3:
        model.update({"model.rope_scaling": "linear", "model.rope_factor": 2})
    return model


def draw_adapters(draw, model):
    architecture = model.get("model.architecture", model["model.family"])
    targets = ["q_proj", "k_proj", "v_proj", "o_proj"]
    if architecture not in WITH_EXPERTS:
        targets += ["gate_proj", "up_proj", "down_proj"]
    if architecture == "phi3":
        targets = ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]
    if architecture == "qwen3_5":
        targets += ["in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj"]
        targets += ["shared_expert_gate"] if "model.experts" in model else []
    if "model.experts" in model:
        targets.append("experts")
    some = draw.sample(targets, draw.randint(1, len(targets)))
    adapters = {"recipe.lora.rank": draw.choice((2, 4)),
                "recipe.lora.dropout": draw.choice((0, 0.2)),
                "recipe.lora.base_bits": draw.choice((16, 8, 4)),
                "recipe.lora.targets": draw.choice((["all-linear"], some)),
                "recipe.lora.rank_stabilised": draw.random() < 0.3}
    if "experts" in adapters["recipe.lora.targets"]:
        adapters["recipe.lora.dropout"] = 0
    if adapters["recipe.lora.base_bits"] == 4:
        adapters["recipe.lora.double_quant"] = draw.random() < 0.5
    return adapters


def draw_work(draw, data):
    """The settings that are the same in both ways."""
    work = draw_model(draw)
    if work["model.family"] != "gpt2" and draw.random() < 0.5:
        work.update(draw_adapters(draw, work))
    kind = draw.choice(("plain", "packed", "chat"))
    work["data.train"] = [str(data / f"{kind}.bin")]
    if kind != "plain":
        work["data.long_documents"] = draw.choice(("cut", "drop", "split"))
    # A run that stops in between evaluates there, too: so after every step, or never.
    work.update(draw.choice(({"data.validation_fraction": 0}, {
        "data.validation_fraction": 0.1, "run.eval_every": 1, "run.eval_batches": 2})))
    if "run.eval_every" in work and draw.random() < 0.3:
        work.update({"run.keep_best": True, "early_stopping.patience": 1000})
    precision = draw.choice(("fp32", "bf16", "bf16", "fp16"))
    work["bf16.enabled"] = precision == "bf16"
    if precision == "fp16":
        work.update({"fp16.enabled": True, "fp16.initial_scale_power": 10})
    work["optimizer.type"] = draw.choice(("AdamW", "AdamW", "Adam"))
    work["optimizer.params.moments"] = draw.choice(("fp32", "bf16"))
    work["optimizer.params.weight_decay"] = draw.choice((0, 0.1))
    work.update(draw.choice(({}, {"gradient_clipping": 0.5}, {"gradient_clipping_value": 0.01})))
    if "recipe.lora.rank" not in work and draw.random() < 0.3:
        work["optimizer.groups"] = [{"match": "*.1.*", "lr": 0.01, "weight_decay": 0}]
    lanes, rounds = draw.choice((1, 2, 2, 4)), draw.choice((1, 1, 2))
    micro = draw.choice((1, 2, 3))
    micro_batches = lanes * rounds * draw.choice((1, 1, 2, 3))
    work.update({"run.lanes": lanes, "run.rounds": rounds,
                 "train_batch_size": micro * micro_batches,
                 "train_micro_batch_size_per_gpu": micro, "run.steps": draw.choice((3, 4, 5)),
                 "run.seed": draw.randrange(1000)})
    if precision == "bf16" and work["model.hidden"] % 16 == 0 and draw.random() < 0.4:
        work.update({"fp8.enabled": True, "fp8.weight_gradient": draw.choice(("fp8", "bf16"))})
    if draw.random() < 0.25:
        work["communication.weights"] = "int8"
    return work, micro_batches


def draw_places(draw, device, drives, micro_batches):
    """The settings that must not change any bit."""
    params = draw.choice(("none", "cpu", "nvme"))
    state = draw.choice(("none", "cpu", "nvme", "auto"))
    places = {"zero_optimization.stage": draw.choice((0, 1, 2, 3, 3, 3)),
              "zero_optimization.offload_param.device": params,
              "zero_optimization.offload_optimizer.device": state,
              "budget.nvme_paths": drives[:draw.choice((1, 1, 2))],
              "placement.recompute": draw.choice(("on", "off")),
              "placement.overlap_update": draw.random() < 0.7,
              "placement.wave_micro_batches": draw.choice((0, 0, *range(1, micro_batches + 1))),
              "placement.prefetch_units": draw.choice((0, 0, 1, 2, 3))}
    if params == "nvme":
        places["zero_optimization.stage3_param_persistence_threshold"] = draw.choice((0, 0, 1000))
        places["zero_optimization.offload_param.buffer_count"] = draw.choice((3, 4, 5))
    if state == "auto":
        gpu, cpu = draw.choice(((0.4, 0.3), (0, 0.5), (0.5, 0.5), (0.5, 0), (0, 0), (0, 1)))
        places["placement.optimizer_fractions"] = {"gpu": gpu, "cpu": cpu,
                                                   "nvme": round(1 - gpu - cpu, 1)}
    if draw.random() < 0.5:
        places["zero_optimization.sub_group_size"] = draw.choice((777, 5000, 10**9))
    inputs = draw.choice((None, None, "placement.unit_inputs_to_cpu",
                          "placement.unit_inputs_to_nvme"))
    if inputs:  # without recomputation, a GPU keeps the inputs
        places.update({inputs: "on", "placement.recompute": "on"})
    if draw.random() < 0.2:
        places["aio.backend"] = "posix"
    if draw.random() < 0.2:
        places["zero_optimization.stage3_max_live_parameters"] = 1
    if device == "cuda" and draw.random() < 0.35:
        places["placement.gradients_to_nvme"] = "on"
    return places


def draw_way(draw, device, work, micro_batches, drives, most_ranks):
    several = [n for n in (2, 4) if n <= most_ranks and work["run.lanes"] % n == 0]
    ranks = draw.choice(several) if several and draw.random() < 0.4 else 1
    steps = work["run.steps"]
    ends = [draw.randrange(1, steps), steps] if draw.random() < 0.3 else [steps]
    legs = [(end, draw_places(draw, device, drives, micro_batches)) for end in ends]
    if "communication.weights" in work:
        for _, places in legs:
            places["zero_optimization.stage"] = 3
    state = {key: legs[0][1].get(key) for key in STATE_KEYS if key in legs[0][1]}
    on_nvme = (state["zero_optimization.offload_optimizer.device"] == "nvme" or
               state.get("placement.optimizer_fractions", {}).get("nvme", 0) > 0)
    if ranks == 1 and on_nvme and "run.keep_best" not in work and draw.random() < 0.5:
        for _, places in legs:  # a resumed run continues in its store, so with its placement
            for key in STATE_KEYS:
                places.pop(key, None)
            places.update(state, **{IN_PLACE: True})
    return Way(ranks, legs)


def draw_case(seed, number, folder, device, most_ranks):
    draw = random.Random(f"{seed}/{number}")
    work, micro_batches = draw_work(draw, folder / "data")
    drives = [str(folder / "drive0"), str(folder / "drive1")]
    ways = [draw_way(draw, device, work, micro_batches, drives, most_ranks) for _ in range(2)]
    return Case(number, work, ways)


# ---- data


def write_data(folder):
    """plain.bin; documents packed into rows, all trained on; and documents with a mask."""
    draw = random.Random(3)
    last, tokens = 1, array.array("H")
    for _ in range(12000):
        last = (last * 5 + 3 + draw.randrange(2)) % VOCAB
        tokens.append(last)
    starts = array.array("Q", [0])
    while starts[-1] < len(tokens):
        starts.append(min(starts[-1] + draw.randint(4, 40), len(tokens)))
    if starts[-1] - starts[-2] < 4:
        del starts[-2]
    masks = {"packed": [1] * len(tokens), "chat": [int(draw.random() < 0.4) for _ in tokens]}
    for end in starts[1:]:
        masks["chat"][end - 1] = 1
    folder.mkdir()
    (folder / "run.json").write_text("{}", encoding="utf-8")  # the case has all settings
    (folder / "plain.bin").write_bytes(tokens.tobytes())
    for name, mask in masks.items():
        bits = bytearray(-(-len(tokens) // 8))
        for at, trained in enumerate(mask):
            bits[at // 8] |= trained << at % 8
        (folder / f"{name}.bin").write_bytes(tokens.tobytes())
        (folder / f"{name}.bin.mask").write_bytes(bits)
        (folder / f"{name}.bin.documents").write_bytes(starts.tobytes())
        (folder / f"{name}.bin.json").write_text(json.dumps({
            "format": "sluice-tokens", "version": 2, "dtype": "uint16", "tokens": len(tokens),
            "vocab_size": VOCAB, "documents": len(starts) - 1, "trained_tokens": sum(mask),
            "tokenizer": {"kind": "bytes"}}), encoding="utf-8")


# ---- a case


class Refused(Exception):
    pass


class Failed(Exception):
    pass


class Runner:
    def __init__(self, folder, device, most_ranks, shows, other=SLUICE):
        self.folder = folder
        self.device = device
        self.most_ranks = most_ranks
        self.other = os.path.abspath(other)
        self.shows = shows
        # Keep measurements of this machine out of the user's own cache.
        self.environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
        write_data(folder / "data")

    def run(self, seed, number):
        place = self.folder / f"{seed}-{number}"
        for drive in ("drive0", "drive1"):
            (place / drive).mkdir(parents=True)
        os.symlink(self.folder / "data", place / "data")
        case = draw_case(seed, number, place, self.device, self.most_ranks)
        try:
            made = [self._train(case, place, f"way{i}", way, first)
                    for i, (way, first) in enumerate(zip(case.ways, (SLUICE, self.other)))]
            left = [path.name for drive in ("drive0", "drive1")
                    for path in (place / drive).iterdir()]
            stores = sum(IN_PLACE in way.legs[-1][1] for way in case.ways)
            left = left if len(set(left)) > stores else []
            difference = differing(*made) or (left and f"left on the drives: {left}")
            outcome = Outcome("failed", difference) if difference else Outcome("same", "")
        except Refused as refused:
            outcome = Outcome("refused", str(refused))
        except Failed as failed:
            outcome = Outcome("failed", str(failed))
        if not self.shows:
            shutil.rmtree(place)
        return outcome

    def _train(self, case, place, name, way, first_program):
        """(weights, steps) of one way."""
        weights = place / f"{name}.safetensors"
        for leg, (end, places) in enumerate(way.legs):
            settings = {"run.device": self.device, "run.cpu_threads": 1, "run.deterministic": True,
                        "run.hash_units": True, "data.dtype": "uint16",
                        "optimizer.params.lr": 0.003, **case.work, **places}
            if first_program != SLUICE:
                settings.pop(IN_PLACE, None)  # which an older program lacks
            words = ["train", self.folder / "data/run.json", "--out", place / name,
                     "--steps", end, "--save-weights", weights, "--force",
                     *(["--resume"] if leg else []), *self._ranks(way.ranks)]
            for key, value in settings.items():
                text = value if isinstance(value, str) else json.dumps(value)
                words += ["--set", f"{key}={text}"]
            # How much host memory can be pinned for a GPU changes no bit either.
            pinned = random.Random(f"{place.name}/{name}/{leg}").choice(("64M", "64M", "300K", "0"))
            self._sluice([SLUICE if leg else first_program, *map(str, words)], place, pinned)
        steps = {}
        compared = COMPARED + (OF_EXPERTS if self.other == SLUICE else ())
        for line in (place / name / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
            step = json.loads(line)
            steps[step["step"]] = {key: step.get(key) for key in compared}
        check_complete(steps, way.legs[-1][0])
        return weights.read_bytes(), steps

    def _ranks(self, ranks):
        if self.device == "cuda":
            return ["--gpus", ranks]
        return ["--ranks", ranks] if ranks > 1 else []

    def _sluice(self, words, place, pinned):
        if self.shows:
            print(f"$ SLUICE_TEST_PIN_LIMIT={pinned}",
                  *(repr(word) if re.search(r"[^\w./=:-]", word) else word for word in words),
                  flush=True)
        try:
            environment = {**self.environment, "SLUICE_TEST_PIN_LIMIT": pinned}
            done = subprocess.run(words, cwd=place, env=environment, check=False,
                                  stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                  timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            raise Failed(f"did not end within {TIMEOUT_S} s") from error
        if self.shows:
            print(done.stdout + done.stderr, flush=True)
        last = (done.stderr.splitlines() or [""])[-1]
        if done.returncode == 2 and last.startswith("sluice: "):
            raise Refused(last[len("sluice: "):])
        if done.returncode != 0:
            raise Failed(f"exit code {done.returncode}: {done.stderr[-600:]}")


def check_complete(steps, last):
    """Refuses steps that are missing in both ways, since a comparison would not notice."""
    if sorted(steps) != list(range(1, last + 1)):
        raise Failed(f"metrics.jsonl has the steps {sorted(steps)}, not 1 to {last}")
    for number, step in steps.items():
        if not step["skipped"] and not step["unit_hashes"]:
            raise Failed(f"step {number} was not skipped and has no unit_hashes")


def differing(one, other):
    """The difference in words, or "" if there is none."""
    for step in sorted(one[1].keys() | other[1].keys()):
        first, second = one[1].get(step, {}), other[1].get(step, {})
        names = [key for key in first | second if repr(first.get(key)) != repr(second.get(key))]
        if names:
            key = names[0]
            return f"step {step}: {', '.join(names)} differ: {first.get(key)}, {second.get(key)}"
    return "" if one[0] == other[0] else "the weights differ"


# ---- all cases


def run_seed(runner, options, seed, seconds):
    """The number of cases by outcome, and the reasons for refusals."""
    counts, reasons = collections.Counter(), collections.Counter()
    end = time.monotonic() + seconds
    numbers = iter(range(options.cases))

    def take():
        while time.monotonic() < end:
            number = next(numbers, None)
            if number is None:
                return
            outcome = runner.run(seed, number)
            counts[outcome.kind] += 1
            if outcome.kind == "refused":
                reasons[re.sub(r"\d[\d.,]*", "N", outcome.text)[:160]] += 1
            if outcome.kind == "failed":
                print(f"FAILED: {outcome.text}\n  again: SLUICE={SLUICE} {sys.executable} "
                      f"{os.path.abspath(__file__)} --seed {seed} --only {number} --device "
                      f"{options.device} --gpus {options.gpus}", flush=True)

    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for done in [pool.submit(take) for _ in range(options.jobs)]:
            done.result()
    return counts, reasons


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", action="append", help='"random" draws one [1]')
    parser.add_argument("--cases", type=int, default=10**9, help="of each seed")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--gpus", type=int, default=1, help="some ways run on up to so many")
    parser.add_argument("--jobs", type=int, default=max((os.cpu_count() or 1) // 2, 1))
    parser.add_argument("--only", type=int)
    parser.add_argument("--other", metavar="PROGRAM", default=SLUICE)
    options = parser.parse_args()
    seeds = [str(random.SystemRandom().randrange(10**9)) if seed == "random" else seed
             for seed in options.seed or ["1"]]
    most_ranks = 2 if options.device == "cpu" else options.gpus
    folder = Path(tempfile.mkdtemp(prefix="sluice-combinations-", dir=os.getcwd()))
    runner = Runner(folder, options.device, most_ranks, options.only is not None,
                    options.other)
    if options.only is not None:
        outcome = runner.run(seeds[0], options.only)
        print(f"{outcome.kind}: {outcome.text}\nkept: {folder}")
        return outcome.kind == "failed"
    began = time.monotonic()
    counts, reasons = collections.Counter(), collections.Counter()
    try:
        for seed in seeds:
            print(f"seed {seed}", flush=True)
            of_seed, why = run_seed(runner, options, seed, 60 * options.minutes / len(seeds))
            counts.update(of_seed)
            reasons.update(why)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for reason, count in reasons.most_common():
        print(f"refused {count}: {reason}")
    total = sum(counts.values())
    minutes = (time.monotonic() - began) / 60
    print(f"{counts['same']} the same, {counts['failed']} failed, {counts['refused']} refused, in "
          f"{minutes:.1f} minutes ({total / minutes:.0f} cases a minute)")
    return (counts["failed"] > 0 or counts["same"] == 0
            or total >= FEWEST_CASES and counts["refused"] > MOST_REFUSED * total)


if __name__ == "__main__":
    sys.exit(main())
