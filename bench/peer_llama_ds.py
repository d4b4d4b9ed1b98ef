"""Trains transformers' Qwen2.5 or Qwen3 by DeepSpeed ZeRO-3 with offload, on random tokens: a peer.

compare_deepspeed compares Sluice with it for the Llama family: the same shape, batch and budget of
GPU memory, and DeepSpeed's defaults for everything else. Prints one line, RESULT {...}. Needs a
GPU, torch, transformers and deepspeed; PEFT with --lora.
"""

import argparse
import json
import os
import resource
import statistics
import sys
import time

GIB = 2**30
# From their config.json.
SHAPES = {
    "qwen2.5-1.5b": ("Qwen2", {"hidden_size": 1536, "intermediate_size": 8960,
                               "num_hidden_layers": 28, "num_attention_heads": 12,
                               "num_key_value_heads": 2, "tie_word_embeddings": True,
                               "vocab_size": 151936}),
    "qwen2.5-7b": ("Qwen2", {"hidden_size": 3584, "intermediate_size": 18944,
                             "num_hidden_layers": 28, "num_attention_heads": 28,
                             "num_key_value_heads": 4, "tie_word_embeddings": False,
                             "vocab_size": 152064}),
    "qwen3-8b": ("Qwen3", {"hidden_size": 4096, "intermediate_size": 12288,
                           "num_hidden_layers": 36, "num_attention_heads": 32,
                           "num_key_value_heads": 8, "head_dim": 128,
                           "tie_word_embeddings": False, "vocab_size": 151936}),
}
LORA_TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", choices=SHAPES, default="qwen2.5-1.5b")
    add("--batch", type=int, default=8)
    add("--seq", type=int, default=1024)
    add("--gas", type=int, default=1, help="micro-batches of a step [1]")
    add("--steps", type=int, default=6)
    add("--cap", type=float, default=24, help="GiB that PyTorch's allocator may take [24]")
    add("--lora", type=int, default=0, metavar="RANK", help="adapters of PEFT [0: all is trained]")
    add("--layers", type=int, help="fewer than the shape has")
    return parser.parse_args()


def deepspeed_config(options, hidden):
    offload = {"device": "cpu", "pin_memory": True}
    return {
        "train_micro_batch_size_per_gpu": options.batch,
        "gradient_accumulation_steps": options.gas,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW",
                      "params": {"lr": 1e-5, "betas": [0.9, 0.999], "weight_decay": 0.01}},
        "zero_optimization": {
            "stage": 3, "overlap_comm": True, "contiguous_gradients": True,
            "sub_group_size": int(1e8), "reduce_bucket_size": hidden * hidden,
            "stage3_prefetch_bucket_size": int(0.9 * hidden * hidden),
            "stage3_param_persistence_threshold": 10 * hidden,
            "offload_optimizer": offload, "offload_param": offload},
        "steps_per_print": 10**9, "wall_clock_breakdown": False,
    }


def make_model(options, config):
    import deepspeed
    import torch
    import transformers
    family, shape = SHAPES[options.model]
    if options.layers:
        shape = {**shape, "num_hidden_layers": options.layers}
    model_config = getattr(transformers, family + "Config")(
        **shape, max_position_embeddings=32768, use_cache=False)
    model_config._attn_implementation = "sdpa"
    with deepspeed.zero.Init(config_dict_or_path=config, dtype=torch.bfloat16):
        model = getattr(transformers, family + "ForCausalLM")(model_config)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if options.lora:
        import peft
        model = peft.get_peft_model(model, peft.LoraConfig(
            r=options.lora, lora_alpha=2 * options.lora, target_modules=LORA_TARGETS,
            task_type="CAUSAL_LM"))
        model.enable_input_require_grads()
    return model, shape["vocab_size"]


def main():
    options = parse_options()
    for key, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1",
                       "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}.items():
        os.environ.setdefault(key, value)
    import deepspeed
    import torch
    torch.cuda.set_device(0)
    torch.cuda.set_per_process_memory_fraction(
        options.cap * GIB / torch.cuda.get_device_properties(0).total_memory)
    torch.manual_seed(0)
    deepspeed.init_distributed("nccl")
    config = deepspeed_config(options, SHAPES[options.model][1]["hidden_size"])
    model, vocab = make_model(options, config)
    parameters = sum(getattr(p, "ds_numel", p.numel()) for p in model.parameters())
    trained = [p for p in model.parameters() if p.requires_grad]
    engine, *_ = deepspeed.initialize(model=model, model_parameters=trained, config=config)
    torch.cuda.reset_peak_memory_stats()
    times, losses = [], []
    random = torch.Generator().manual_seed(1)
    for _ in range(options.steps):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(options.gas):
            ids = torch.randint(0, vocab, (options.batch, options.seq), generator=random).cuda()
            loss = engine(input_ids=ids, labels=ids).loss
            engine.backward(loss)
            engine.step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
        losses.append(round(float(loss), 3))
        print(f"step {len(times)}: {times[-1]:.2f} s, loss {losses[-1]}", flush=True)
    step_s = statistics.median(times[2:] or times[-1:])
    tokens = options.batch * options.seq * options.gas
    print("RESULT", json.dumps({
        "sys": "deepspeed " + deepspeed.__version__, "model": options.model, "params": parameters,
        "lora": options.lora, "batch": options.batch, "seq": options.seq, "gas": options.gas,
        "step_s": round(step_s, 3), "tok_s": round(tokens / step_s, 1),
        "steps": [round(t, 2) for t in times], "loss": losses,
        "peak_resv_gb": round(torch.cuda.max_memory_reserved() / GIB, 2),
        "rss_gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 1),
    }), flush=True)
    os._exit(0)  # its threads would delay the exit


if __name__ == "__main__":
    sys.exit(main())
