// What each chart of numbers over steps shows.

const rangesOf = (run, name, i) => {
  const { lo, hi } = run.column(name);
  return lo && isNumber(lo[i]) && lo[i] < hi[i] ? [lo[i], hi[i]] : null;
};

// The runs' values of one column: as they are, faint, and smoothed; where points are several steps, a band
// from least to most.
function curvesOf(name, { smooth = false, factor = 1, points = 0, step = false } = {}) {
  const curves = [];
  for (const run of shown()) {
    const column = run.column(name);
    if (!column) continue;
    const axis = run.axis(state.mode);
    const at = points ? axis.at.filter(i => isNumber(column.v[i])) : axis.at;
    const x = points ? axis.x.filter((_, k) => isNumber(column.v[axis.at[k]])) : axis.x;
    const take = values => at.map(i => isNumber(values[i]) ? values[i] * factor : null);
    const v = take(column.v);
    if (!v.some(isNumber)) continue;
    const weight = smooth ? state.smoothing : 0;
    const lo = column.lo ? take(column.lo) : null;
    const hi = column.hi ? take(column.hi) : null;
    if (weight > 0) {
      curves.push({ label: run.name, css: faint(run.css, lo ? 0.35 : 0.3), x, v, lo: null, hi: null, width: 1 });
      if (lo) Object.assign(curves.at(-1), { lo, hi, band: run.css });
      curves.push({ label: run.name, css: run.css, x, v: smoothed(v, weight), width: 2 });
    } else {
      curves.push({ label: run.name, css: run.css, x, v, lo, hi, band: run.css, points: points && v.length < 200 ? points : 0, step });
    }
  }
  return curves;
}

// Where runs were continued.
function resumeMarks() {
  const marks = [];
  for (const run of shown())
    for (const begin of run.begins.slice(1)) {
      const x = run.placeOf(begin.step, state.mode);
      if (isNumber(x)) marks.push({ x, css: faint(run.css, 0.55) });
    }
  return marks.slice(0, 300);
}

function readColumn(name, unit, also = () => "") {
  return x => {
    const rows = [];
    for (const run of shown()) {
      const i = run.at(x, state.mode);
      if (i < 0 || !run.column(name)) continue;
      const column = run.column(name);
      if (!isNumber(column.v[i])) continue;
      const range = rangesOf(run, name, i);
      const step = run.firstStepAt(i) < run.steps[i] ? `${number(run.firstStepAt(i))}–${number(run.steps[i])}` : number(run.steps[i]);
      rows.push({ css: run.css, label: runs.length > 1 ? `${run.name} · step ${step}` : `step ${step}`,
        text: unit(column.v[i]) + (range ? `  (${unit(range[0])} to ${unit(range[1])})` : "") + also(run, i) });
    }
    return rows.length ? [{ label: AXES[state.mode].column === "unix_s" ? clock(x) : AXES[state.mode].text(x) }, ...rows] : rows;
  };
}

function columnSpec(id, title, name, options) {
  const { unit = number, build, ...rest } = options;
  return {
    id, title, unit, ...rest, read: readColumn(name, unit, options.also),
    build: build || (() => {
      const curves = curvesOf(name, options);
      if (!curves.length) return null;
      const legend = options.legend ? options.legend() : [];
      return { curves, marks: resumeMarks(), lines: options.lines ? options.lines() : [], legend,
        note: options.note ? options.note() : "" };
    }),
  };
}

const thinnedNote = () => {
  const widths = shown().filter(run => run.thinned).map(run => run.series.width);
  return widths.length ? `a point is up to ${number(Math.max(...widths))} steps: the mean, and a band from minimum to maximum` : "";
};
const lossText = value => number(value, 5);
const perplexity = (run, i) => {
  const value = run.column("val_loss").v[i];
  return value < 50 ? `  · perplexity ${number(Math.exp(value), 4)}` : "";
};

// A line across the chart for each run that knows it; what all have alike is one line.
function linesAcross(pick, label, far) {
  const lines = [];
  for (const run of shown()) {
    const y = pick(run);
    if (!isNumber(y) || y <= 0 || lines.some(line => line.y === y)) continue;
    lines.push({ y, far, label: label + (runs.length > 1 ? `, ${run.name}` : ""), css: runs.length > 1 ? run.css : color("waited") });
  }
  return lines;
}
const tier = (run, name, member) => run.begin.tiers[name]?.[member];

const learningSpecs = [
  columnSpec("loss", "Training loss", "loss", { unit: lossText, smooth: true, log: true, note: thinnedNote, large: true }),
  columnSpec("validation", "Validation loss", "val_loss", { unit: lossText, points: 6, log: true, also: perplexity }),
  columnSpec("norm", "Gradient norm", "grad_norm", { smooth: true, log: true, note: () => "before clipping", zero: true }),
  columnSpec("busiest-expert", "Busiest expert", "busiest_expert", { smooth: true, note: () => "its tokens, divided by an even share; of the layer with the most" }),
  columnSpec("idle-experts", "Experts without a token", "idle_experts", { smooth: true, zero: true, note: () => "over all layers" }),
  columnSpec("balance", "Balance loss", "balance_loss", { unit: lossText, smooth: true, note: () => "without its coefficient" }),
  columnSpec("rate", "Learning rate", "lr", { unit: value => number(value, 3), zero: true }),
  columnSpec("scale", "Loss scale", "loss_scale", {
    unit: count, log: true, step: true, zero: true,
    build() {
      const varied = shown().some(run => run.most("loss_scale") > 1);
      const curves = varied ? curvesOf("loss_scale", { step: true }) : [];
      return curves.length ? { curves, marks: resumeMarks() } : null;
    },
  }),
];

const percent = value => share(value / 100);
const watts = value => isNumber(value) ? `${number(value, 3)} W` : "–";

const speedSpecs = [
  columnSpec("speed", "Tokens per second", "tokens_per_s", { unit: count, smooth: true, zero: true,
    lines: () => linesAcross(run => run.plan?.tokens_per_s, "planned") }),
  columnSpec("time", "Step time", "step_ms", { unit: milliseconds, smooth: true, zero: true, log: true,
    lines: () => linesAcross(run => run.plan && run.plan.step_s * 1e3, "planned") }),
  columnSpec("gpu-busy", "GPU busy", "gpu_utilization_percent", { unit: percent, smooth: true, zero: true, note: () => "time in which any kernel ran, from the driver" }),
  columnSpec("gpu-power", "GPU power", "gpu_power_watts", { unit: watts, smooth: true, zero: true }),
  columnSpec("gpu-throttled", "GPU throttled", "gpu_throttled_percent", { unit: percent, zero: true,
    build() {
      const throttled = shown().some(run => run.most("gpu_throttled_percent") > 0);
      const curves = throttled ? curvesOf("gpu_throttled_percent") : [];
      return curves.length ? { curves, marks: resumeMarks(), note: "because of heat or the power supply" } : null;
    } }),
];

const memorySpecs = [
  columnSpec("gpu-memory", "GPU memory, peak", "gpu_peak_bytes", { unit: bytes, zero: true, step: true,
    build() {
      const curves = shown().some(run => run.most("gpu_peak_bytes") > 0) ? curvesOf("gpu_peak_bytes", { step: true }) : [];
      return curves.length ? { curves, marks: resumeMarks(), lines: [
        ...linesAcross(run => tier(run, "gpu", "budget_bytes"), "budget", 20), ...linesAcross(run => tier(run, "gpu", "bytes"), "planned", 20)] } : null;
    } }),
  columnSpec("host-memory", "Host memory, resident", "host_rss_bytes", { unit: bytes, zero: true,
    lines: () => [...linesAcross(run => tier(run, "cpu", "budget_bytes"), "budget", 20), ...linesAcross(run => tier(run, "cpu", "bytes"), "planned", 20)] }),
  columnSpec("pinned-memory", "Host memory, pinned or locked", "host_pinned_bytes", { unit: bytes, zero: true,
    build() {
      const curves = shown().some(run => run.most("host_pinned_bytes") > 0) ? curvesOf("host_pinned_bytes") : [];
      return curves.length ? { curves, marks: resumeMarks() } : null;
    } }),
];

// Bytes written since the run began, as far as the metrics know.
function written(run) {
  const values = run.values("nvme_write_bytes");
  let sum = 0;
  return values.map((value, i) => sum += (isNumber(value) ? value : 0) * run.linesAt(i));
}

const driveSpecs = [
  columnSpec("nvme-read", "Read from drives per step", "nvme_read_bytes", { unit: drive, zero: true,
    build: () => trafficOf("nvme_read_bytes") }),
  columnSpec("nvme-write", "Written to drives per step", "nvme_write_bytes", { unit: drive, zero: true,
    build: () => trafficOf("nvme_write_bytes") }),
  {
    id: "wear", title: "Written to drives in total", unit: drive, zero: true,
    build() {
      const curves = [];
      for (const run of shown()) {
        if (!(run.drives.write_bytes > 0)) continue;
        const axis = run.axis(state.mode);
        const sums = written(run);
        curves.push({ label: run.name, css: run.css, x: axis.x, v: axis.at.map(i => sums[i]) });
      }
      const tbw = report.drive_tbw;
      return curves.length ? { curves, marks: resumeMarks(), note: tbw ? `rated for ${drive(tbw * 1e12)}` : "",
        lines: tbw ? [{ y: tbw * 1e12, far: 4, label: "rated endurance", css: color("bad") }] : [] } : null;
    },
    read(x) {
      return shown().filter(run => run.drives.write_bytes > 0 && run.at(x, state.mode) >= 0).map(run => {
        const i = run.at(x, state.mode);
        return { css: run.css, label: `${run.name} · step ${number(run.steps[i])}`, text: drive(written(run)[i]) };
      });
    },
  },
  columnSpec("h2d", "Host to GPU per step", "h2d_bytes", { unit: drive, zero: true, build: () => trafficOf("h2d_bytes") }),
  columnSpec("d2h", "GPU to host, a step", "d2h_bytes", { unit: drive, zero: true, build: () => trafficOf("d2h_bytes") }),
];

function trafficOf(name) {
  const moved = shown().some(run => run.most(name) > 0);
  const curves = moved ? curvesOf(name) : [];
  return curves.length ? { curves, marks: resumeMarks(), lines: linesAcross(run => run.plan?.[name], "planned") } : null;
}
