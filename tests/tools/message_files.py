"""The files that the commands of messages.txt read, in addition to those of fuzz_inputs.py."""

import json
import shutil

from fuzz_inputs import RUN

DATA = {"format": "sluice-tokens", "version": 1, "tokens": 9, "dtype": "uint16", "vocab_size": 257}


def compressed(name):
    return {"compression_training": {name: {"shared_parameters": {"enabled": True}}}}


FILES = {
    # Text that is not JSON, or says a key twice.
    "comma.json": '{"train_batch_size": 8\n "bf16": {}}',
    "comment.json": '{\n/* why\n"train_batch_size": 8}',
    "deep.json": '{"amp": ' + "[" * 1000,
    "dotted.json": {"train_batch_size": 8, "fp16.enabled": True},
    "hexadecimal.json": '{"train_batch_size": 0x4}',
    "infinite.json": '{"steps_per_print": Infinity}',
    "large.json": '{"gradient_clipping": 1e999}',
    "quotes.json": "{'train_batch_size': 8}",
    "twice.json": '{"fp16": {"enabled": true, "enabled": false}}',
    "unquoted.json": '{"optimizer": {"type": AdamW}}',
    "upper.json": '{"fp16": {"enabled": TRUE}}',
    "utf16.json": b"\xff\xfe{\0}\0",
    # Files of DeepSpeed.
    "ds_refused.json": {
        "train_batch_size": 8, "amp": {"enabled": True}, "torch_autocast": {"enabled": True},
        "quantize_training": {"enabled": True}, "progressive_layer_drop": {"enabled": True},
        "eigenvalue": {"enabled": True}, "curriculum_learning": {"enabled": True},
        "data_efficiency": {"enabled": True}, "optimizer": {"type": "OneBitAdam", "params": {
            "amsgrad": True, "max_grad_norm": 1}}, **compressed("weight_quantization")},
    "ds_ignored.json": {
        "train_batch_size": 8, "wall_clock_breakdown": True, "comet": {"enabled": True},
        "sparse_gradients": True, "prescale_gradients": True, "dump_state": True,
        "autotuning": {"enabled": True}, "elasticity": {"enabled": True}, "fp32_allreduce": True,
        "pipeline": {"stages": 2}, "checkpoint": {"tag_validation": "Warn"},
        "communication_data_type": "fp16", "zero_optimization": {
            "stage": 2, "overlap_comm": True, "contiguous_gradients": True,
            "allgather_partitions": True}},
    "ds_old_names.json": {"train_batch_size": 8, "bfloat16": {"enabled": True},
                          "aio": {"thread_count": 3, "intra_op_parallelism": 3}},
    # Models and adapters.
    "mamba/config.json": {"model_type": "mamba"},
    "peft/adapter_config.json": {"peft_type": "LORA", "r": 4, "target_modules": ["gate"]},
    "hf_list/config.json": [1],
    "wide/config.json": {"model_type": "gpt2", "n_layer": 1, "n_embd": 16, "n_head": 3,
                         "n_positions": 8, "vocab_size": 64},
    # Tokens.
    "bytes.bin.json": {**DATA, "tokenizer": {"kind": "bytes"}},
    "other.bin.json": {**DATA, "tokenizer": {"kind": "bpe", "vocabulary_sha256": "ab" * 32}},
    "cut.bin": bytes(6),
    "cut.bin.json": {**DATA, "tokens": 4, "tokenizer": {"kind": "bytes"}},
    "fraction.bin": bytes(5),
    "fraction.bin.json": {**DATA, "tokenizer": {"kind": "bytes"}},
    "few.bin": bytes(20),
    # Hosts.
    "hosts_empty": "\n# none\n",
    "hosts_other": "other slots=1\nsecond slots=1\n",
    "hosts_slots": "one two\n",
    "hosts_twice": "a slots=1\na slots=1\n",
    "hosts_zero": "a slots=0\n",
    # Outputs and others.
    "page.html": "mine", "w.safetensors": "mine", "note.txt": "words", "thesis/thesis.tex": "text",
    "prompts.jsonl": '{"prompt": ""}\n', "prompt_list.jsonl": '{"prompt": "1"}\n[1]\n',
    "chat.txt": "a", "no_column.csv": "id,body\n1,a\n",
}


def make(folder):
    for name, content in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        if not isinstance(content, (str, bytes)):
            content = json.dumps(content)
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    damage_runs(folder)


def damage_runs(folder):
    """Copies of run0, each with its checkpoint damaged as its name says."""
    def run(name):
        shutil.copytree(folder / "run0", folder / name)
        checkpoint, = (folder / name / "checkpoints").iterdir()
        return checkpoint, checkpoint / "checkpoint.json"

    _, manifest = run("flipped")
    content = manifest.read_bytes()
    at = content.index(b'"checksum": "') + 13
    manifest.write_bytes(content[:at] + (b"1" if content[at:at + 1] == b"0" else b"0") +
                         content[at + 1:])
    _, manifest = run("cut_short")
    manifest.write_bytes(content[:-100])
    _, manifest = run("still_copied")
    manifest.unlink()
    checkpoint, _ = run("renamed")
    checkpoint.rename(checkpoint.with_name("step-000000009"))
    checkpoint, _ = run("data_missing")
    next(checkpoint.glob("master-*")).unlink()
    checkpoint, _ = run("data_flipped")
    data = next(checkpoint.glob("master-*"))
    content = data.read_bytes()
    data.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    shutil.copytree(folder / "run0", folder / "linked")
    (folder / "linked/events.jsonl").symlink_to("../note.txt")
    shutil.copytree(folder / "run0", folder / "unmarked")
    (folder / "unmarked/config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    store = folder / "nvme/sluice-a"
    store.mkdir()
    (store / "owner.json").write_text(json.dumps(
        {"pid": 1, "host": "pod-1", "started_utc": "2026-01-02T03:04:05Z"}), encoding="utf-8")


# Run files, as settings of the template's run.json, whose mistakes are refused together.
CONFIGURATIONS = {
    "values": {
        "aio.queue_depth": 0, "bf16.check_grad_overflow": "perhaps", "fp16": 3,
        "data.dtype": "int8", "data.train": 7,
        "gradient_clipping": -1, "model.activation": "rely", "model.layers": 0,
        "model.preset": "gpt2-xxl", "model.rope_scaling": "yern", "model.tied_head": "maybe",
        "optimizer.groups": [1], "optimizer.params.betas": [0.9], "optimizer.params.lr": "nan",
        "optimizer.type": "Lamb", "run.device": "tpu", "run.epochs": 0, "run.keep_last": 1 << 32,
        "run.steps": "many", "steps_per_print": 1.5},
    "more_values": {
        "data.long_documents": "keep", "fp16.initial_scale_power": 99, "fp16.loss_scale": -1,
        "placement.nvme_weights": [0, 1], "placement.optimizer_fractions": 1,
        "placement.recompute": "perhaps", "recipe.lora.base_bits": 4.5, "run.cpu_threads": -1,
        "run.io_watchdog": "nan", "run.non_finite_step": "pass", "run.resume": [],
        "samples.tokens": 0, "scheduler.type": "cosin",
        "zero_optimization.offload_param.device": "disk", "zero_optimization.stage": 4},
    "names": {
        "frobnicate_the_gradients": 7, "fp16.enable": True, "model.n_layer": 4,
        "optimiser.type": "AdamW", "optimizer.params.learning_rate": 1, "run.step": 5,
        "scheduler.params.warmup": 3, "stepsperprint": 4, "train.steps": 4,
        "zero_optimization.stagee": 3, "zero_optimization.thread_count": 4},
    # What follows from several keys.
    "disagreements": {
        "bf16.check_grad_overflow": True, "budget.nvme_paths": [], "data.sequence_length": 24,
        "early_stopping.patience": 2, "gradient_accumulation_steps": 12, "gradient_clipping": 1,
        "gradient_clipping_value": 0.5, "placement.gradients_to_nvme": "on",
        "placement.unit_inputs_to_nvme": "on", "run.epochs": 1, "run.keep_best": True,
        "run.lanes": 5, "run.non_finite_step": "stop",
        "zero_optimization.offload_optimizer.device": "nvme",
        "zero_optimization.offload_param.device": "nvme"},
    "no_batch": {"train_micro_batch_size_per_gpu": None},
    "indivisible_batch": {"train_batch_size": 7},
    "wrong_product": {"train_batch_size": 32, "gradient_accumulation_steps": 3},
    "huge_batch": {"train_micro_batch_size_per_gpu": 1 << 30,
                   "gradient_accumulation_steps": 1 << 30},
    "lanes_and_rounds": {"gradient_accumulation_steps": 12, "run.lanes": 4, "run.rounds": 2,
                         "fp16.enabled": True},
    "best_without_validation": {"run.eval_every": 5, "run.keep_best": True,
                                "data.validation_fraction": 0},
    "places": {"placement.unit_inputs_to_nvme": "on", "placement.unit_inputs_to_cpu": "off",
               "placement.nvme_weights": [3, 1], "placement.optimizer_fractions": {
                   "gpu": 0, "cpu": 0.25, "nvme": 0.25}},
    "one_path_twice": {"budget.nvme_paths": ["a", "a"], "zero_optimization.offload_param.device":
                       "nvme"},
    "old_name": {"placement.boundaries_to_cpu": "on", "placement.unit_inputs_to_cpu": "on"},
    # Models and adapters.
    "heads": {"model.heads": 3},
    "custom": {"model.preset": "custom", "model.hidden": None, "model.layers": None},
    "families": {"model.preset": "gpt2-small", "model.family": "llama"},
    "other_family": {"model.family": "gpt2", "model.kv_heads": 2, "model.norm_epsilon": 0,
                     "recipe.lora.rank": 4},
    "path_and_preset": {"model.path": "hf", "model.preset": "gpt2-small"},
    "no_rank": {"recipe.lora.alpha": 6, "recipe.lora.targets": "all-linear"},
    "targets": {"model": {"preset": "qwen3-0.6b"}, "recipe.lora.rank": 4, "recipe.lora.targets":
                ["q_proj", "query"], "recipe.lora.base_bits": 9},
    "all_and_one": {"model": {"preset": "qwen3-0.6b"}, "recipe.lora.rank": 4,
                    "recipe.lora.targets": ["all-linear", "q_proj"]},
    "no_targets": {"model": {"preset": "qwen3-0.6b"}, "recipe.lora.rank": 4,
                   "recipe.lora.targets": []},
    "double_quant": {"model": {"preset": "qwen3-0.6b"}, "recipe.lora.rank": 4,
                     "recipe.lora.double_quant": True},
    "of_bitsandbytes": {"load_in_4bit": True, "recipe.lora.bnb_4bit_use_double_quant": True,
                        "recipe.lora.bnb_4bit_quant_type": "nf4"},
    "no_adapter": {"model": {"preset": "qwen3-0.6b"}, "recipe.lora.adapter": "absent"},
    # Schedules.
    "one_cycle": {"scheduler": {"type": "OneCycle"}},
    "cycle_bounds": {"scheduler": {"type": "OneCycle", "params": {
        "cycle_min_lr": 0.5, "cycle_max_lr": 0.1, "cycle_min_mom": 0.9, "cycle_max_mom": 0.5}}},
    "cycle_momentum": {"scheduler": {"type": "OneCycle", "params": {
        "cycle_min_lr": 0.1, "cycle_max_lr": 0.5, "cycle_max_mom": 1}}},
    "cycle_rate": {"run.steps": 1000, "scheduler": {"type": "OneCycle", "params": {
        "cycle_min_lr": 0.1, "cycle_max_lr": 0.5, "cycle_first_step_size": 1,
        "decay_step_size": 1, "decay_mom_rate": 0.5}}},
    "range_test": {"scheduler": {"type": "LRRangeTest", "params": {"lr_range_test_min_lr": 0}}},
    "range_test_rate": {"run.steps": 3000, "scheduler": {"type": "LRRangeTest", "params": {
        "lr_range_test_step_rate": -1}}},
    "no_minimum": {"scheduler": {"type": "cosine_with_min_lr", "params": {
        "warmup_num_steps": 5, "warmup_ratio": 0.1}}},
    "two_minima": {"scheduler": {"type": "cosine_with_min_lr", "params": {
        "min_lr": 0, "min_lr_rate": 0.1}}},
    "warmup_twice": {"scheduler": {"type": "linear", "params": {
        "warmup_steps": 0.1, "warmup_ratio": 0.1}}},
    "schedule_values": {"scheduler": {"type": "linear", "params": {
        "warmup_ratio": 1.5, "num_cycles": -1, "warmup_type": "slow"}}},
    "end_above_rate": {"scheduler": {"type": "polynomial", "params": {"lr_end": 1}}},
    "warmup_type": {"scheduler": {"type": "WarmupLR", "params": {"warmup_type": "cosine"}}},
    # Groups of parameters.
    "group_of_none": {"optimizer.groups": [{"match": "*.biass", "lr": 1}]},
    "group_of_tied": {"optimizer.groups": [{"match": "lm_head.weight", "lr": 1}]},
    "group_of_taken": {"optimizer.groups": [{"match": "*.bias", "lr": 1},
                                            {"match": "ln_f.bias", "lr": 1}]},
    "group_without_value": {"optimizer.groups": [{"match": "*.bias"}]},
    "group_of_zero": {"optimizer.params.lr": 0, "scheduler": {"type": "WarmupLR"},
                      "optimizer.groups": [{"match": "*.bias", "lr": 1}]},
}


def configuration(settings):
    run = json.loads(json.dumps(RUN))
    for path, value in settings.items():
        *sections, key = path.split(".")
        place = run
        for section in sections:
            if not isinstance(place.setdefault(section, {}), dict):
                break
            place = place[section]
        else:
            place[key] = value
            if value is None:
                del place[key]
    return run


FILES.update({f"{name}.json": configuration(settings) for name, settings in CONFIGURATIONS.items()})
