"""The rows that compare_deepspeed measures, and how their runs meet the targets. Pure functions.

A record is one run: row, pair (a number), side ("sluice" or a peer's name), ok and boot (which
machine, and since when). A run that is ok has tokens_per_s, step_s, parameters, gpu_bytes and
host_bytes; one of Sluice also has predicted_s (or nothing), nvme_read and nvme_write (bytes per
parameter and step). A run that failed has `error`, the last line of its output.
"""

import statistics
from dataclasses import dataclass, field

CPU = ("--set", "zero_optimization.offload_param.device=cpu",
       "--set", "zero_optimization.offload_optimizer.device=cpu")
SIZE_3B = ("--set", "model.layers=40", "--set", "model.hidden=2560", "--set", "model.heads=32")
GIB = 2**30
GPU_GIB = 24  # the budget of every side


@dataclass(frozen=True)
class Peer:
    name: str          # in results
    title: str
    program: str       # in the folder of peers
    options: tuple


@dataclass(frozen=True)
class Row:
    title: str
    sluice: tuple      # for step_bench: the configuration, in configs/, and options
    steps: int
    warmup: int
    peers: tuple = field(default=())
    target: float = 0  # Sluice's tokens/s over the fastest peer's; 0: none is set
    nvme: bool = False


def deepspeed(dtype, model, batch, sequence, *options, device="cpu", steps=8):
    return Peer(f"ds-{dtype}", f"DeepSpeed {dtype}", "peer_ds.py",
                ("--dev", device, "--pdev", "cpu", "--dtype", dtype, "--model", model,
                 "--batch", str(batch), "--seq", str(sequence), "--steps", str(steps),
                 "--cap", "24", *options))


XL_SHORT = (deepspeed("fp16", "xl", 16, 128), deepspeed("bf16", "xl", 16, 128))
FSDP = Peer("fsdp", "PyTorch FSDP2 bf16", "peer_fsdp.py",
            ("--batch", "16", "--seq", "128", "--steps", "7", "--cap", "24"))

QWEN = ("--set", "model.preset=qwen2.5-1.5b", "--set", "model.dropout=0")
QWEN_DS = Peer("ds-bf16", "DeepSpeed bf16", "peer_llama_ds.py",
               ("--model", "qwen2.5-1.5b", "--batch", "8", "--seq", "1024", "--cap", "24"))

ROWS = {
    "xl-auto": Row("GPT-2 XL, 16 x 128, auto, bf16", ("gpt2_xl_24gb.json",), 20, 5, XL_SHORT, 12),
    "xl-cpu": Row("GPT-2 XL, 16 x 128, all on the CPU, bf16", ("gpt2_xl_24gb.json", *CPU), 12, 4,
                  XL_SHORT, 3),
    "xl-nvme": Row("GPT-2 XL, 16 x 128, optimizer state on NVMe",
                   ("gpt2_xl_24gb_nvme.json", *CPU[:2]), 4, 2,
                   (deepspeed("bf16", "xl", 16, 128, "--pipe", device="nvme", steps=4),), 1.5,
                   nvme=True),
    "xl-1024": Row("GPT-2 XL, 8 x 1024, auto, bf16", ("gpt2_xl_24gb_1024.json",), 10, 3,
                   (deepspeed("bf16", "xl", 8, 1024, "--ckpt"),), 4),
    "qwen-1.5b": Row("Qwen2.5-1.5B, 8 x 1024, auto, bf16",
                     ("gpt2_xl_24gb_1024.json", *QWEN), 10, 3, (QWEN_DS,), 4),
    "3b-1024": Row("3.3B (40 x 2560), 8 x 1024, auto, bf16",
                   ("gpt2_xl_24gb_1024.json", *SIZE_3B), 8, 3,
                   (deepspeed("bf16", "3b", 8, 1024, "--ckpt", steps=6),), 3.3),
    "3b-cpu": Row("3.3B (40 x 2560), 8 x 1024, all on the CPU, bf16",
                  ("gpt2_xl_24gb_1024.json", *SIZE_3B, *CPU), 4, 2),
    "13b": Row("13B (40 x 5120), 8 x 1024, auto, bf16", ("gpt_13b_24gb.json",), 2, 2, nvme=True),
    "xl-fp16": Row("GPT-2 XL, 16 x 128, auto, fp16", ("gpt2_xl_24gb_fp16.json",), 20, 5,
                   XL_SHORT[:1]),
    "xl-fsdp": Row("GPT-2 XL, 16 x 128, auto, bf16, against FSDP2", ("gpt2_xl_24gb.json",), 20, 5,
                   (FSDP,)),
}
HOST_ROW, HOST_PEER_ROW, HOST_TARGET = "3b-cpu", "3b-1024", 14.5
NVME_ROW, NVME_TARGET = "xl-nvme", 20.1
LARGEST_ROW, LARGEST_TARGET = "13b", 12.8e9  # 40 x 5120 and GPT-2's vocabulary
PREDICTION_RANGE = (0.87, 1.15)


def sides(row):
    return ["sluice", *(peer.name for peer in row.peers)]


def of_side(records, name, side):
    return [r for r in records if r["row"] == name and r["side"] == side and r["ok"]]


def whole_pairs(records, name):
    """The pairs in which all sides ran on one machine: {(pair, boot): {side: record}}."""
    pairs = {}
    for record in records:
        if record["row"] == name:
            pairs.setdefault((record["pair"], record["boot"]), {})[record["side"]] = record
    return {key: by_side for key, by_side in pairs.items()
            if set(by_side) == set(sides(ROWS[name]))}


def pair_ratios(records, name):
    """Sluice's tokens/s over the fastest peer's, for each whole pair in which both succeeded."""
    ratios = []
    for by_side in whole_pairs(records, name).values():
        peers = [r["tokens_per_s"] for side, r in by_side.items() if side != "sluice" and r["ok"]]
        if by_side["sluice"]["ok"] and peers:
            ratios.append(by_side["sluice"]["tokens_per_s"] / max(peers))
    return ratios


def spread(values, digits):
    text = f"{statistics.median(values):,.{digits}f}"
    if len(values) > 1:
        text += f" ({min(values):,.{digits}f} to {max(values):,.{digits}f})"
    return text


def side_text(records, name, side):
    done = of_side(records, name, side)
    if not done:
        failed = [r for r in records if r["row"] == name and r["side"] == side]
        return f"failed: {failed[-1]['error']}" if failed else "not run"
    last = done[-1]
    gpu = f", GPU {last['gpu_bytes'] / GIB:.1f} GiB" if last["gpu_bytes"] else ""
    return (f"{spread([r['tokens_per_s'] for r in done], 0)} tokens/s, "
            f"{statistics.median(r['step_s'] for r in done):.3f} s{gpu}, "
            f"host {last['host_bytes'] / GIB:.1f} GiB")


def speed_line(records, name):
    row = ROWS[name]
    ratios = pair_ratios(records, name)
    peers = "; ".join(f"{peer.title}: {side_text(records, name, peer.name)}" for peer in row.peers)
    result, verdict = "-", "-"
    if ratios:
        result = f"{spread(ratios, 2)}, {len(ratios)} pairs"
        if row.target:
            verdict = "reached" if statistics.median(ratios) >= row.target else "missed"
        if max(r["gpu_bytes"] for r in of_side(records, name, "sluice")) > GPU_GIB * GIB:
            verdict = f"more than {GPU_GIB} GiB of the GPU"
    return [row.title, f">= {row.target:g}" if row.target else "-",
            side_text(records, name, "sluice"), peers or "-", result, verdict]


def host_line(records):
    done = of_side(records, HOST_ROW, "sluice")
    if not done:
        return None
    each = [r["host_bytes"] / r["parameters"] for r in done]
    peers = [r["host_bytes"] / r["parameters"]
             for r in of_side(records, HOST_PEER_ROW, "ds-bf16")]
    return ["host RAM a parameter, 3.3B, all on the CPU", f"<= {HOST_TARGET:g} B",
            f"{spread(each, 2)} B", f"DeepSpeed: {spread(peers, 1)} B" if peers else "-",
            f"{statistics.median(each):.2f} B",
            "reached" if statistics.median(each) <= HOST_TARGET else "missed"]


def nvme_line(records):
    done = of_side(records, NVME_ROW, "sluice")
    if not done:
        return None
    moved = [r["nvme_read"] + r["nvme_write"] for r in done]
    last = done[-1]
    return ["NVMe bytes a parameter and step, parameters in RAM", f"<= {NVME_TARGET:g} B",
            f"{last['nvme_read']:.4f} B read, {last['nvme_write']:.4f} B written", "-",
            f"{max(moved):.4f} B", "reached" if max(moved) <= NVME_TARGET else "missed"]


def prediction_lines(records):
    low, high = PREDICTION_RANGE
    lines = []
    for name, row in ROWS.items():
        ratios = [r["step_s"] / r["predicted_s"] for r in of_side(records, name, "sluice")
                  if r.get("predicted_s")]
        if ratios:
            inside = low <= statistics.median(ratios) <= high
            lines.append([f"step / prediction: {row.title}", f"{low} to {high}",
                          f"{spread(ratios, 3)}", "-", f"{statistics.median(ratios):.3f}",
                          "reached" if inside else "missed"])
    return lines


def largest_line(records):
    runs = [r for r in records if r["row"] == LARGEST_ROW and r["side"] == "sluice"]
    if not runs:
        return None
    done = [r for r in runs if r["ok"]]
    parameters = max((r["parameters"] for r in done), default=0)
    return ["largest GPT that trains on 24 GiB GPU + 110 GiB RAM + 55 GiB NVMe",
            f">= {LARGEST_TARGET / 1e9:.1f}B", side_text(records, LARGEST_ROW, "sluice"), "-",
            f"{parameters / 1e9:.2f}B" if done else "-",
            "reached" if parameters >= LARGEST_TARGET else "missed"]


def table(records, names):
    """The cells of every line for which there are records."""
    lines = [speed_line(records, name) for name in names
             if ROWS[name].peers and any(r["row"] == name for r in records)]
    chosen = [r for r in records if r["row"] in names or r["row"] == HOST_PEER_ROW]
    lines += [line for line in (host_line(chosen), nvme_line(chosen), *prediction_lines(chosen),
                                largest_line(chosen)) if line]
    return lines


def markdown(lines):
    head = ["", "target", "Sluice", "peer", "result", ""]
    cells = [head, ["---"] * len(head), *lines]
    return "\n".join("| " + " | ".join(cell.replace("|", "/").replace("\n", " ") for cell in line) +
                     " |" for line in cells) + "\n"
