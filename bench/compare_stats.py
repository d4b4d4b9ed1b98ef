"""Medians, intervals and tables of runs in pairs, for compare_fio.

A record is one run: mode, block, depth, pair (a number), kind ("real" or "control"), tool,
gb_per_s, cpu_s_per_gb. Real pairs are aio and fio, control pairs fio and fio'.
"""

import random
import statistics

BOOTSTRAPS = 10_000


def quantile(values, fraction):
    ordered = sorted(values)
    place = fraction * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def median_interval(ratios, seed):
    """The 2.5th and 97.5th percentile of the medians of resampled ratios."""
    chooser = random.Random(seed)
    medians = [statistics.median(chooser.choices(ratios, k=len(ratios))) for _ in range(BOOTSTRAPS)]
    return quantile(medians, 0.025), quantile(medians, 0.975)


def pair_ratios(records, kind, top, bottom, key):
    pairs = {}
    for record in records:
        if record["kind"] == kind:
            pairs.setdefault(record["pair"], {})[record["tool"]] = record[key]
    return [pair[top] / pair[bottom] for pair in pairs.values()
            if pair.get(bottom) and top in pair]


def summarise(config, records, seed):
    """None until a row has a whole pair of each kind."""
    mine = [r for r in records if (r["mode"], r["block"], r["depth"]) == config]
    real = pair_ratios(mine, "real", "aio", "fio", "gb_per_s")
    control = pair_ratios(mine, "control", "fio", "fio'", "gb_per_s")
    if not real or not control:
        return None
    row = {"mode": config[0], "block": config[1], "depth": config[2], "pairs": len(real)}
    for tool in ("aio", "fio"):
        of_tool = [r for r in mine if r["kind"] == "real" and r["tool"] == tool]
        speeds = [r["gb_per_s"] for r in of_tool]
        row[tool] = {"gb_per_s": statistics.median(speeds),
                     "iqr": [quantile(speeds, 0.25), quantile(speeds, 0.75)],
                     "cpu_s_per_gb": statistics.median(r["cpu_s_per_gb"] for r in of_tool)}
    row["ratio"] = statistics.median(real)
    row["ratio_interval"] = median_interval(real, seed)
    row["control_ratio"] = statistics.median(control)
    row["control_interval"] = median_interval(control, seed)
    low, high = row["control_interval"]
    row["verdict"] = ("below" if row["ratio"] < low else
                      "above" if row["ratio"] > high else "inside")
    cpu = pair_ratios(mine, "real", "aio", "fio", "cpu_s_per_gb")
    row["cpu_ratio"] = statistics.median(cpu) if cpu else None
    return row


def table_lines(rows):
    head = ["mode", "block x depth", "aio GB/s (IQR)", "fio GB/s (IQR)", "aio/fio",
            "control [95%]", "verdict", "CPU s/GB aio", "fio", "aio/fio"]
    body = []
    for row in rows:
        speeds = [f"{row[t]['gb_per_s']:.3f} ({row[t]['iqr'][0]:.2f}..{row[t]['iqr'][1]:.2f})"
                  for t in ("aio", "fio")]
        low, high = row["control_interval"]
        cpu_ratio = "-" if row["cpu_ratio"] is None else f"{row['cpu_ratio']:.2f}"
        body.append([row["mode"], f"{row['block']} x {row['depth']}", *speeds,
                     f"{row['ratio']:.3f}", f"{row['control_ratio']:.3f} [{low:.3f}..{high:.3f}]",
                     row["verdict"], f"{row['aio']['cpu_s_per_gb']:.4f}",
                     f"{row['fio']['cpu_s_per_gb']:.4f}", cpu_ratio])
    widths = [max(len(line[i]) for line in [head, *body]) for i in range(len(head))]
    lines = [head, ["-" * width for width in widths], *body]
    return ["| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths)) + " |"
            for line in lines]
