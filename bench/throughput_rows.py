"""The points that bench/throughput measures, and their table and picture. Pure functions.

A point is one run of step_bench: model, tokens (per step), ok, asked (the configuration and its
overrides), settings (gpu_gib, micro, sequence), machine, commit, and `result`, the output of
step_bench. One that failed has `error`, the last line of its output, and `refused` if memory did
not suffice.
"""

import math
from dataclasses import dataclass

from svg_chart import Axis, Curve, Panel, chart

GIB = 2**30
COLOURS = ("#1b6ca8", "#d95f02", "#2a9d5c", "#8e44ad", "#b8860b", "#c2185b", "#455a64", "#6d4c41")


@dataclass(frozen=True)
class Model:
    title: str
    config: str          # in configs/, or a path
    overrides: tuple = ()
    cpu_gib: float = 0   # 0: as in the configuration
    nvme: bool = False   # its state may be on the drive


MODELS = {
    "xl": Model("GPT-2 XL", "gpt2_xl_24gb_1024.json", (), 112),
    "3.3b": Model("GPT 3.3B (40 x 2560)", "gpt2_xl_24gb_1024.json",
                  ("model.layers=40", "model.hidden=2560", "model.heads=32"), 112),
    "qwen2.5-7b": Model("Qwen2.5-7B", "gpt2_xl_24gb_1024.json",
                        ("model.preset=qwen2.5-7b", "model.dropout=0"), 112),
    "13b": Model("GPT 13B (40 x 5120)", "gpt_13b_24gb.json", nvme=True),
}
TOKENS = "8k,16k,32k,65k,131k,262k,524k"


# ---- points ----------------------------------------------------------------------------------


def point_of(record):
    return record["model"], record["tokens"]


def newest(records):
    """The last record of each point, except that a failure never replaces a measurement."""
    points = {}
    for record in records:
        known = points.get(point_of(record))
        if known is None or record["ok"] or not known["ok"]:
            points[point_of(record)] = record
    return points


def title_of(name):
    return MODELS[name].title if name in MODELS else name


def in_order(points):
    """Sorted by model, those of MODELS first, and by tokens."""
    known = list(MODELS)
    names = dict.fromkeys(r["model"] for r in points.values())
    models = [n for n in known if n in names] + [n for n in names if n not in MODELS]
    return models, sorted({r["tokens"] for r in points.values()})


@dataclass(frozen=True)
class Numbers:
    """The numbers of a measured point. Bytes are the peak of each tier."""
    tokens_per_s: float
    step_s: float
    steps: int
    flops: float           # per second, by 6N
    flops_multiplied: float  # the same, with an N that excludes an embedding that is only looked up
    limit_flops: float     # speed of large matrix products; 0: unknown
    of_prediction: float   # step / prediction; 0: no prediction
    gpu_bytes: int
    host_bytes: int
    nvme_bytes: int        # allocated beforehand, as planned
    waves: int             # 0: not reported
    wave_micro_batches: int


def numbers(record, product_tflops=0.0):
    """product_tflops: replaces the speed of products that step_bench reports; 0: does not."""
    result = record["result"]
    median, memory = result["median"], result["memory"]
    before, after = memory["before"], memory["after"]
    parameters = result["parameters"]
    multiplied = parameters - result.get("untied_embedding_parameters", 0)
    speed, step_s = median["tokens_per_s"], median["step_s"]
    predicted_s = result.get("predicted_step_s") or 0
    return Numbers(
        tokens_per_s=speed, step_s=step_s, steps=len(result["steps"]),
        flops=6 * parameters * speed, flops_multiplied=6 * multiplied * speed,
        limit_flops=(product_tflops * 1e12 or
                     result.get("gpu", {}).get("product_flops_per_s", 0)),
        of_prediction=step_s / predicted_s if predicted_s else 0,
        gpu_bytes=max(after["gpu_used_bytes"] - before["gpu_used_bytes"],
                      memory["gpu_peak_bytes"]),
        host_bytes=after["peak_resident_bytes"] - before["resident_bytes"],
        nvme_bytes=result["planned"]["nvme_bytes"], waves=result.get("waves", 0),
        wave_micro_batches=result.get("wave_micro_batches", 0))


# ---- the table -------------------------------------------------------------------------------

HEAD = ("model", "tokens a step", "waves x micro-batches", "tokens/s", "step", "steps",
        "TFLOP/s by 6N", "of products", "step / prediction", "GPU", "host", "NVMe", "")


def both(whole, multiplied):
    return whole if whole == multiplied else f"{whole} ({multiplied})"


def seconds_text(seconds):
    return f"{1e3 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"


def gib_text(count):
    return f"{count / GIB:.1f} GiB" if count > 0 else "-"


def failure_text(record):
    return ("refused: " if record.get("refused") else "failed: ") + record["error"]


def cells(record, product_tflops):
    begin = [title_of(record["model"]), f"{record['tokens']:,}"]
    if not record["ok"]:
        return [*begin, *["-"] * (len(HEAD) - 3), failure_text(record)]
    it = numbers(record, product_tflops)
    share = "-"
    if it.limit_flops:
        share = both(*(f"{100 * flops / it.limit_flops:.1f}%"
                       for flops in (it.flops, it.flops_multiplied)))
    return [*begin, f"{it.waves} x {it.wave_micro_batches}" if it.waves else "-",
            f"{it.tokens_per_s:,.0f}", seconds_text(it.step_s), str(it.steps),
            both(f"{it.flops / 1e12:.1f}", f"{it.flops_multiplied / 1e12:.1f}"), share,
            f"{it.of_prediction:.2f}" if it.of_prediction else "-", gib_text(it.gpu_bytes),
            gib_text(it.host_bytes), gib_text(it.nvme_bytes), ""]


def table(points, product_tflops=0.0):
    """Markdown, aligned for a terminal as well."""
    models, tokens = in_order(points)
    body = [cells(points[model, count], product_tflops) for model in models for count in tokens
            if (model, count) in points]
    body = [[cell.replace("|", "/").replace("\n", " ") for cell in line] for line in body]
    widths = [max(len(line[i]) for line in [HEAD, *body]) for i in range(len(HEAD) - 1)] + [3]
    lines = [HEAD, ["-" * width for width in widths], *body]
    return "".join("| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths)) +
                   " |\n" for line in lines)


def distinct(values):
    return "; ".join(dict.fromkeys(str(value) for value in values if value))


def gpu_of(record):
    named = record.get("result", {}).get("gpu", {}).get("name")
    return record["machine"]["gpu"] or named or "no GPU"


def heading(points, product_tflops=0.0):
    """A sentence about machine and commit; several are all named."""
    records = [r for r in points.values() if r["ok"]] or list(points.values())
    machines = distinct(
        f"{gpu_of(r)}, {r['machine']['cpu']}, {r['machine']['cores']} cores, "
        f"{r['machine']['ram_bytes'] / GIB:.0f} GiB RAM, {r['machine']['kernel']}"
        for r in records)
    limits = [numbers(r, product_tflops).limit_flops / 1e12 for r in records if r["ok"]]
    limits = dict.fromkeys(f"{limit:.0f}" for limit in sorted(limits) if limit)
    products = f"; large products reach {', '.join(limits)} TFLOP/s" if limits else ""
    return (f"{machines}; commit {distinct(r['commit'] for r in records)}; {setting(records)}"
            f"{products}. In brackets: N without an embedding that is only looked up.")


def setting(records):
    texts = []
    for settings in (record["settings"] for record in records):
        within = f"{settings['gpu_gib']:g} GiB of the GPU, " if settings["gpu_gib"] else ""
        texts.append(f"{within}micro-batches of {settings['micro']} x {settings['sequence']}")
    return distinct(texts)


# ---- the picture -----------------------------------------------------------------------------


def curves(points, value, product_tflops):
    models, tokens = in_order(points)
    found = []
    for place, model in enumerate(models):
        done = {count: numbers(points[model, count], product_tflops) for count in tokens
                if points.get((model, count), {}).get("ok")}
        if not done:
            continue
        best = max(it.tokens_per_s for it in done.values())
        found.append(Curve(f"{title_of(model)}, up to {best:,.0f} tokens/s",
                           COLOURS[place % len(COLOURS)],
                           [value(done[count]) if count in done else math.nan
                            for count in tokens], marked=True))
    return found


def picture(points, product_tflops=0.0):
    """An SVG, or None if no point was measured."""
    measured = [r for r in points.values() if r["ok"]]
    if not measured:
        return None

    def lines(value):
        return curves(points, value, product_tflops)

    if all(numbers(r, product_tflops).limit_flops for r in measured):
        speed = Panel("% of products' rate, by 6N", 300,
                      lines(lambda it: 100 * it.flops_multiplied / it.limit_flops),
                      from_zero=True, legend="bottom", legend_width=345)
    else:
        speed = Panel("TFLOP/s, by 6N", 300, lines(lambda it: it.flops_multiplied / 1e12),
                      from_zero=True, legend="bottom", legend_width=345)
    panels = [speed]
    for name, value in (("GPU, GiB", lambda it: it.gpu_bytes / GIB),
                        ("host, GiB", lambda it: it.host_bytes / GIB),
                        ("NVMe, GiB", lambda it: it.nvme_bytes / GIB)):
        tier = lines(value)
        if any(number > 0 for curve in tier for number in curve.values):
            panels.append(Panel(name, 110, tier, from_zero=True, legend=""))
    title = f"{distinct(gpu_of(r) for r in measured)}: {setting(measured)}"
    return chart(title, Axis("tokens of a step", in_order(points)[1], logarithmic=True), panels)
