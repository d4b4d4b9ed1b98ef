"""Trains a transformers model on random tokens with an ordinary script, by Sluice's Python package,
DeepSpeed or plain PyTorch. Prints one line, RESULT {...}.

It measures the figures in section "Python" of bench/README.md. Sluice and DeepSpeed get the same
JSON, except for keys that only one of them has (--key). Plain PyTorch keeps everything on the GPU
and uses its fused AdamW, with 16-bit parameters or, by --autocast, with fp32 ones. Needs a GPU,
torch, transformers, and the system that is chosen.
"""

import argparse
import json
import os
import resource
import statistics
import sys
import tempfile
import time

GIB = 2**30
# Set by torchrun: --batch is per rank.
RANK, LOCAL_RANK, WORLD = (int(os.environ.get(name, value)) for name, value in
                           (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1")))
GPT2 = {"gpt2-small": (12, 768, 12), "gpt2-large": (36, 1280, 20), "gpt2-xl": (48, 1600, 25)}
LLAMA_7B = {"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008,
            "num_hidden_layers": 32, "num_attention_heads": 32, "max_position_embeddings": 4096}
# From facebook/blenderbot-400M-distill's config.json.
BLENDERBOT_400M = {"vocab_size": 8008, "d_model": 1280, "encoder_layers": 2, "decoder_layers": 12,
                   "encoder_attention_heads": 32, "decoder_attention_heads": 32,
                   "encoder_ffn_dim": 5120, "decoder_ffn_dim": 5120,
                   "max_position_embeddings": 1024, "dropout": 0.0}
MODELS = [*GPT2, "llama-7b", "llama-small", "blenderbot-400m"]


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--system", choices=["sluice", "deepspeed", "torch"], default="sluice")
    add("--model", choices=MODELS, default="gpt2-xl")
    add("--batch", type=int, default=16)
    add("--seq", type=int, default=128)
    add("--accumulation", type=int, default=1)
    add("--steps", type=int, default=8, help="the median is that of those after the third")
    add("--dtype", choices=["fp32", "bf16", "fp16"], default="bf16")
    add("--params", default="cpu", help="of zero_optimization.offload_param (default: cpu)")
    add("--state", default="cpu", help="of zero_optimization.offload_optimizer (default: cpu)")
    add("--nvme", default=tempfile.gettempdir(), metavar="DIR")
    add("--gib", type=float, default=24.0, help="of GPU memory (default: 24); 0: all there is")
    add("--checkpointing", action="store_true", help="gradient_checkpointing_enable()")
    add("--units", default="auto", help="Sluice: units of initialize()")
    add("--key", action="append", default=[], metavar="KEY=JSON", help="Sluice: of a run file")
    add("--autocast", action="store_true",
        help="plain PyTorch: parameters of fp32, computed with under autocast")
    add("--profile", action="store_true", help="kernels and calls of one step more, by time")
    add("--tag", default="")
    return parser.parse_args()


def make_model(options, torch, transformers):
    if options.model in GPT2:
        layers, width, heads = GPT2[options.model]
        config = transformers.GPT2Config(n_layer=layers, n_embd=width, n_head=heads,
                                         n_positions=1024, use_cache=False, resid_pdrop=0.0,
                                         embd_pdrop=0.0, attn_pdrop=0.0)
        kind = transformers.GPT2LMHeadModel
    elif options.model.startswith("llama"):
        shape = dict(LLAMA_7B)
        if options.model == "llama-small":
            shape.update(hidden_size=1024, intermediate_size=2816, num_hidden_layers=8,
                         num_attention_heads=16)
        config = transformers.LlamaConfig(use_cache=False, **shape)
        kind = transformers.LlamaForCausalLM
    else:
        config = transformers.BlenderbotConfig(use_cache=False, **BLENDERBOT_400M)
        kind = transformers.BlenderbotForConditionalGeneration
    torch.manual_seed(0)
    # from_pretrained(dtype=...) makes them like this: large models would not fit in RAM twice
    torch.set_default_dtype(torch.bfloat16 if options.model == "llama-7b" else torch.float32)
    with torch.device("cuda"):  # faster; this part is not timed
        model = kind(config)
    torch.set_default_dtype(torch.float32)
    model.cpu()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    if options.checkpointing:
        model.gradient_checkpointing_enable()
    return model, config.vocab_size


def deepspeed_json(options):
    def offload(device):
        return {"device": device, "pin_memory": True,
                **({"nvme_path": options.nvme} if device in ("nvme", "auto") else {})}

    config = {
        "train_micro_batch_size_per_gpu": options.batch,
        "gradient_accumulation_steps": options.accumulation,
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "betas": [0.9, 0.999], "eps": 1e-8,
                                                  "weight_decay": 0.01}},
        "zero_optimization": {"stage": 3, "overlap_comm": True, "contiguous_gradients": True,
                              "sub_group_size": 100_000_000},
        "steps_per_print": 10**9,
    }
    if options.dtype != "fp32":
        config[options.dtype] = {"enabled": True}
    if options.params != "none":
        config["zero_optimization"]["offload_param"] = offload(options.params)
    if options.state != "none":
        config["zero_optimization"]["offload_optimizer"] = offload(options.state)
    return config


class PlainTorch:
    """The calls of the loop, for plain PyTorch."""

    def __init__(self, model, options, torch):
        dtype = getattr(torch, {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
                        [options.dtype])
        self.module = model.to("cuda", torch.float32 if options.autocast else dtype)
        self._autocast = torch.autocast("cuda", dtype, enabled=options.autocast)
        self._optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
        self._clip = lambda: torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        self._left = self._accumulation = options.accumulation

    def __call__(self, **batch):
        with self._autocast:
            return self.module(**batch)

    def backward(self, loss):
        (loss / self._accumulation).backward()

    def step(self):
        self._left -= 1
        if self._left == 0:
            self._clip()
            self._optimizer.step()
            self._optimizer.zero_grad(set_to_none=True)
            self._left = self._accumulation


def make_engine(options, model, torch):
    if options.system == "torch":
        return PlainTorch(model, options, torch)
    if options.system == "deepspeed":
        import deepspeed

        for key, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1",
                           "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}.items():
            os.environ.setdefault(key, value)
        return deepspeed.initialize(model=model, model_parameters=model.parameters(),
                                    config=deepspeed_json(options))[0]
    import sluice

    keys = dict(key.split("=", 1) for key in options.key)
    overrides = {key: json.loads(value) for key, value in keys.items()}
    if options.gib:
        overrides.setdefault("budget.gpu_gib", options.gib)
    overrides.setdefault("data.sequence_length", options.seq)
    if WORLD == 1:
        overrides.setdefault("run.dir", tempfile.mkdtemp(dir=options.nvme))
    return sluice.initialize(model=model, config=deepspeed_json(options), units=options.units,
                             overrides=overrides)


def one_step(options, engine, generator, vocabulary, torch):
    """The last loss, and how long the calls took, without waiting for the GPU work they started."""
    calls = [0.0, 0.0, 0.0]
    for _ in range(options.accumulation):
        ids = torch.randint(4, vocabulary, (options.batch, options.seq), generator=generator)
        ids = ids.cuda(non_blocking=True)
        times = [time.perf_counter()]
        loss = engine(input_ids=ids, labels=ids).loss
        times.append(time.perf_counter())
        engine.backward(loss)
        times.append(time.perf_counter())
        engine.step()
        times.append(time.perf_counter())
        calls = [sum_ + end - begin for sum_, begin, end in zip(calls, times, times[1:])]
    return loss.detach(), calls


def profile(step, torch):
    from torch.profiler import ProfilerActivity

    with torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
        step()
        torch.cuda.synchronize()
    averages = found.key_averages()
    print(averages.table(sort_by="self_cuda_time_total", row_limit=25, max_name_column_width=60))
    print(averages.table(sort_by="self_cpu_time_total", row_limit=25, max_name_column_width=60))


def main():
    options = parse_options()
    import torch
    import transformers

    if not torch.cuda.is_available():
        sys.exit("train_module.py: this machine has no GPU that PyTorch sees")
    if WORLD > 1 and options.system == "torch":
        sys.exit("train_module.py: plain PyTorch is measured on one GPU")
    torch.cuda.set_device(LOCAL_RANK)
    if options.gib:
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, options.gib * GIB / total))
    began = time.time()
    free_before = torch.cuda.mem_get_info()[0]
    model, vocabulary = make_model(options, torch, transformers)
    parameters = sum(it.numel() for it in model.parameters())
    engine = make_engine(options, model, torch)
    ready = time.time() - began
    generator = torch.Generator().manual_seed(1 + RANK)
    seconds, losses, calls, least_free = [], [], [], free_before
    for _ in range(options.steps):
        torch.cuda.synchronize()
        start = time.perf_counter()
        loss, times = one_step(options, engine, generator, vocabulary, torch)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
        losses.append(loss)
        calls.append(times)
        least_free = min(least_free, torch.cuda.mem_get_info()[0])
    if options.profile:
        profile(lambda: one_step(options, engine, generator, vocabulary, torch), torch)
    median = statistics.median(seconds[3:] or seconds)
    tokens = options.batch * options.seq * options.accumulation * WORLD
    print("RESULT", json.dumps({
        "tag": options.tag, "rank": RANK, "gpus": WORLD, "system": options.system,
        "model": options.model,
        "parameters": parameters, "units": options.units, "params": options.params,
        "state": options.state, "dtype": options.dtype, "batch": options.batch,
        "seq": options.seq, "accumulation": options.accumulation,
        "checkpointing": options.checkpointing, "autocast": options.autocast,
        "tok_s": round(tokens / median, 1),
        "step_s": round(median, 4), "steps_s": [round(it, 3) for it in seconds],
        "calls_ms": {name: round(1e3 * statistics.median(it[part] for it in calls[3:] or calls), 1)
                     for part, name in enumerate(["forward", "backward", "step"])},
        "gpu_used_gib": round((free_before - least_free) / GIB, 2),
        "allocated_gib": round(torch.cuda.max_memory_allocated() / GIB, 2),
        "host_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
        "ready_s": round(ready, 1), "way": getattr(engine, "way", ""),
        "loss": [round(float(it), 4) for it in losses]}), flush=True)
    if hasattr(engine, "memory"):
        print("MEMORY", json.dumps(engine.memory), flush=True)
    if hasattr(engine, "close"):
        engine.close()


if __name__ == "__main__":
    main()
