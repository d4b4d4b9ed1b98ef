"""The folder in which cli_fuzz.py tries command lines, with valid and damaged files.

  run.json, text.bin     a run that trains in a second; run0, a run of it that has a checkpoint
  chat.bin               documents, and a mask of the tokens that are trained on
  hf/                    a model of the same shape, as transformers writes it
  hf_other/              another one, with other activation and epsilon, and a head of its own
  all others             the name says what is wrong
"""

import json
import os
import random
import shutil
import struct

RUN = {
    "train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW", "params": {"lr": 0.003}},
    "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"},
                          "offload_optimizer": {"device": "cpu"}},
    "model": {"layers": 1, "hidden": 16, "heads": 2, "context": 8, "vocab": 64},
    "data": {"train": ["text.bin"], "dtype": "uint16", "validation_fraction": 0.1},
    "run": {"steps": 2, "cpu_threads": 1, "device": "cpu", "eval_batches": 1},
    "budget": {"nvme_paths": ["nvme"]}}


def write_hf_model(folder, **other):
    """Writes a GPT-2 of RUN's shape in transformers' format, without transformers."""
    folder.mkdir()
    config = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": 1,
              "n_embd": 16, "n_head": 2, "n_positions": 8, "n_ctx": 8, "vocab_size": 64,
              "n_inner": None,
              "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "attn_pdrop": 0.0,
              "embd_pdrop": 0.0, "resid_pdrop": 0.0, "tie_word_embeddings": True,
              "scale_attn_weights": True, **other}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    shapes = {"wte.weight": [64, 16], "wpe.weight": [8, 16], "h.0.ln_1.weight": [16],
              "h.0.ln_1.bias": [16], "h.0.attn.c_attn.weight": [16, 48],
              "h.0.attn.c_attn.bias": [48], "h.0.attn.c_proj.weight": [16, 16],
              "h.0.attn.c_proj.bias": [16], "h.0.ln_2.weight": [16], "h.0.ln_2.bias": [16],
              "h.0.mlp.c_fc.weight": [16, 64], "h.0.mlp.c_fc.bias": [64],
              "h.0.mlp.c_proj.weight": [64, 16], "h.0.mlp.c_proj.bias": [16],
              "ln_f.weight": [16], "ln_f.bias": [16]}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = [64, 16]
    draw, header, raw = random.Random(1), {}, b""
    for name, shape in shapes.items():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        data = struct.pack(f"<{count}f", *(draw.gauss(0, 0.02) for _ in range(count)))
        prefix = "" if name == "lm_head.weight" else "transformer."
        header[prefix + name] = {"dtype": "F32", "shape": shape,
                                 "data_offsets": [len(raw), len(raw) + len(data)]}
        raw += data
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + raw)


def write_chat(folder, name, tokens, mask):
    """Makes documents of 20 tokens each, with `mask` over them."""
    starts = range(0, len(tokens) + 1, 20)
    packed = bytearray(-(-len(tokens) // 8))
    for at, trained in enumerate(mask):
        packed[at // 8] |= trained << at % 8
    for suffix, content in (
            ("", struct.pack(f"<{len(tokens)}H", *tokens)), (".mask", bytes(packed)),
            (".documents", struct.pack(f"<{len(starts)}Q", *starts)),
            (".json", json.dumps({
                "format": "sluice-tokens", "version": 2, "dtype": "uint16", "tokens": len(tokens),
                "vocab_size": 257, "documents": len(starts) - 1, "trained_tokens": sum(mask),
                "tokenizer": {"kind": "bytes"}}).encode())):
        (folder / f"{name}{suffix}").write_bytes(content)


def make_template(folder, run_program, has_engine):
    """run_program(words, folder) runs sluice."""
    draw = random.Random(2)

    def write(name, content):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    folder.mkdir()
    for name in ("folder", "empty", "nvme", "no_manifest/checkpoints"):
        (folder / name).mkdir(parents=True)
    write("folder/file", "x")
    tokens = [draw.randrange(61) for _ in range(400)]
    write("text.bin", struct.pack("<400H", *tokens))
    write("odd.bin", bytes(333))
    write("wide.bin", struct.pack("<400H", *(60_000 + token for token in tokens)))
    mask = [at % 3 == 1 for at in range(400)]
    for name in ("chat.bin", "chat_cut.bin", "chat_newer.bin"):
        write_chat(folder, name, tokens, mask)
    write("chat_cut.bin.mask", bytes(7))
    write("chat_newer.bin.json", json.dumps({"format": "sluice-tokens", "version": 3}))
    text = json.dumps(RUN)
    write("run.json", text)
    write("truncated.json", text[:len(text) // 2])
    write("binary.json", bytes(range(256)))
    write("empty.json", "")
    write("list.json", "[1, 2]")
    write("huge.json", "{" + " " * (1 << 20) + "}")
    write("typo.json", json.dumps({**RUN, "optimiser": {}}))
    write("ds.json", json.dumps({"train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": True}}))
    write_hf_model(folder / "hf")
    write_hf_model(folder / "hf_other", activation_function="gelu", layer_norm_epsilon=1e-6,
                   tie_word_embeddings=False, scale_attn_by_inverse_layer_idx=True)
    weights = (folder / "hf/model.safetensors").read_bytes()
    config = (folder / "hf/config.json").read_bytes()
    for name, model, about in (("hf_truncated", weights[:len(weights) // 2], config),
                               ("hf_no_config", weights, None), ("hf_pipe", None, config),
                               ("hf_bad_config", weights, config.replace(b"gelu_new", b"quick_gelu"))):
        if model:
            write(f"{name}/model.safetensors", model)
        if about:
            write(f"{name}/config.json", about)
    if has_engine:
        made = run_program(["train", "run.json", "--out", "run0"], folder)
    else:
        made = run_program(["import", "hf", "run0"], folder)
    if made.returncode != 0:
        raise SystemExit(f"the template could not be made: {made.stderr}")
    (folder / "run0/lock").unlink(missing_ok=True)
    shutil.copytree(folder / "run0", folder / "damaged")
    checkpoint, = (folder / "damaged/checkpoints").iterdir()
    for path in sorted(checkpoint.glob("master*")):
        path.write_bytes(path.read_bytes()[:100])


def copy_template(template, folder):
    shutil.copytree(template, folder)
    for name in ("pipe", "pipe.safetensors", "hf_pipe/model.safetensors"):
        os.mkfifo(folder / name)
