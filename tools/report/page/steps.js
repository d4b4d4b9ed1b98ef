// Where the time of a run's steps went, beside what was planned; and what happened on the way.

const PHASES = [
  { key: "forward", label: "forward and head", css: () => color("forward"), of: (run, i) => run.values("forward_ms")[i] },
  { key: "backward", label: "backward", css: () => color("backward"), of: (run, i) => run.values("backward_ms")[i] },
  { key: "waited", label: "waiting for updates", css: () => color("waited"), of: (run, i) => run.values("update_exposed_ms")[i] },
  { key: "other", label: "other", css: () => color("other") },
];
let phasesRun = 0; // whose steps are shown
const chosenRun = () => runs[phasesRun];

// Milliseconds by phase, of a step or of several.
function phasesAt(run, i) {
  const parts = PHASES.map(phase => phase.of ? phase.of(run, i) : 0);
  const all = run.values("step_ms")[i];
  if (!isNumber(all)) return null;
  const known = parts.map(part => isNumber(part) && part > 0 ? part : 0);
  known[3] = Math.max(0, all - known[0] - known[1] - known[2]);
  return known;
}

function plannedPhases(plan) {
  const exposed = plan.update_exposed_s || 0;
  if (!isNumber(plan.forward_s) || plan.waves > 1) return null;
  return [Math.max(0, plan.forward_s - exposed), plan.step_s - plan.forward_s, exposed, 0].map(s => s * 1e3);
}

// Mean by phase over bars: at most so many on the visible part of the axis.
const MOST_BARS = 120;
function phaseBars(run) {
  const axis = run.axis(state.mode);
  let from = 0;
  let to = axis.x.length;
  if (state.range) {
    while (from < to && axis.x[from] < state.range[0]) ++from;
    while (to > from && axis.x[to - 1] > state.range[1]) --to;
  }
  const size = Math.max(1, Math.ceil((to - from) / MOST_BARS));
  const bars = [];
  for (let k = from; k < to; k += size) {
    const sums = [0, 0, 0, 0];
    let lines = 0;
    for (let j = k; j < Math.min(k + size, to); ++j) {
      const parts = phasesAt(run, axis.at[j]);
      if (!parts) continue;
      const weight = run.linesAt(axis.at[j]);
      parts.forEach((part, p) => { sums[p] += part * weight; });
      lines += weight;
    }
    const lastPoint = axis.at[Math.min(k + size, to) - 1];
    if (lines) bars.push({ x: (axis.x[k] + axis.x[Math.min(k + size, to) - 1]) / 2, parts: sums.map(sum => sum / lines),
      first: run.firstStepAt(axis.at[k]), last: run.steps[lastPoint] });
  }
  return bars;
}

const phasesSpec = {
  id: "phases", title: "Where a step's time went", unit: milliseconds, zero: true, wide: true, height: 260, rebuilds: true,
  build() {
    const run = chosenRun();
    const bars = phaseBars(run);
    if (!bars.length) return null;
    const x = bars.map(bar => bar.x);
    // Drawn from the tallest to the lowest: each is the sum of the phases up to it.
    const curves = PHASES.map((phase, p) => ({ label: phase.label, css: phase.css(), fill: phase.css(), width: 0, bars: true, x,
      v: bars.map(bar => bar.parts.slice(0, p + 1).reduce((a, b) => a + b, 0)) })).reverse();
    const lines = run.plan ? [{ y: run.plan.step_s * 1e3, label: "planned step", css: color("text") }] : [];
    const several = bars.some(bar => bar.last > bar.first);
    return { curves, lines, marks: [], note: (runs.length > 1 ? run.name + ", " : "") + (several ? "each bar is the mean of several steps" : "one bar per step"),
      legend: PHASES.map(phase => ({ label: phase.label, css: phase.css() })),
      read: at => {
        const bar = bars.reduce((best, it) => Math.abs(it.x - at) < Math.abs(best.x - at) ? it : best);
        const steps = bar.last > bar.first ? `steps ${number(bar.first)}–${number(bar.last)}, mean` : `step ${number(bar.last)}`;
        return [{ label: steps, text: milliseconds(bar.parts.reduce((a, b) => a + b, 0)) },
          ...PHASES.map((phase, p) => ({ css: phase.css(), label: phase.label, text: milliseconds(bar.parts[p]) }))];
      } };
  },
};

function meanPhases(run) {
  const sums = [0, 0, 0, 0];
  let lines = 0;
  for (let i = run.points > 2 ? 1 : 0; i < run.points; ++i) {
    const parts = phasesAt(run, i);
    if (!parts) continue;
    parts.forEach((part, p) => { sums[p] += part * run.linesAt(i); });
    lines += run.linesAt(i);
  }
  return lines ? sums.map(sum => sum / lines) : null;
}

function stackRow(label, parts, most, total) {
  return [make("span", null, label),
    make("div.stack", { role: "img", "aria-label": `${label}: ${PHASES.map((it, p) => `${it.label} ${milliseconds(parts[p])}`).join(", ")}` },
      PHASES.map((phase, p) => make("i", { style: { width: 100 * parts[p] / most + "%", background: phase.css() }, title: `${phase.label}: ${milliseconds(parts[p])}` }))),
    make("span", null, milliseconds(total))];
}

// Resource of the plan, track of a trace, time and bytes of the metrics.
const BUSY = [
  ["compute", "compute", run => run.median("forward_ms") + run.median("backward_ms"), null],
  ["AdamW on the CPU", "AdamW", run => run.median("update_ms"), null],
  ["NVMe read", "NVMe read", null, "nvme_read_bytes"], ["NVMe write", "NVMe write", null, "nvme_write_bytes"],
  ["host to GPU", "H2D", null, "h2d_bytes"], ["GPU to host", "D2H", null, "d2h_bytes"],
  ["link between ranks", "link", null, null],
];

function twoBars(planned, measured) {
  const bar = (part, css) => make("div.stack.thin", null, make("i", { style: { width: 100 * Math.min(part || 0, 1) + "%", background: css } }));
  return make("div", { style: { minWidth: "120px" } }, bar(planned, color("other")), bar(measured, color("accent")));
}

// Tokens and operations a second; of the latter the share of what large products reach.
function speedRows(run) {
  const rows = [];
  const add = (label, planned, measured, of, text) => {
    if (!isNumber(measured)) return;
    rows.push([of > 0 ? label + ", of large products" : label, right(isNumber(planned) ? text(planned) : "–"), right(text(measured)), right(of > 0 ? share(measured / of) : ""),
      right(planned > 0 ? number(measured / planned, 3) + " ×" : "–")]);
  };
  const tokens = run.plan?.tokens_per_s;
  add("tokens/s", tokens, run.median("tokens_per_s"), 0, count);
  add("TFLOP/s", isNumber(tokens) && isNumber(run.flopsPerToken) ? tokens * run.flopsPerToken / 1e12 : undefined, run.median("tflops_per_s"), run.limitTflops, value => number(value, 3));
  return rows;
}

// What the planner found that would make the step faster, the most first.
function helpTable(run) {
  if (!run.whatIf.length) return "";
  const gain = it => (it.tokens_per_s_ratio >= 1 ? "+" : "") + share(it.tokens_per_s_ratio - 1);
  return table(["predicted effect of changes", right("step"), right("tokens/s")],
    run.whatIf.slice(0, 20).map(it => [String(it.with), right(milliseconds(it.step_s * 1e3)), right(gain(it))]));
}

// Planned beside measured, of the chosen run.
function planPanel() {
  const run = chosenRun();
  const measured = meanPhases(run);
  const { plan } = run;
  const panel = make("div.panel");
  if (!measured) return make("div.panel", null, make("span.quiet", null, "No step is in the metrics yet."));
  const total = measured.reduce((a, b) => a + b, 0);
  const planned = plan && plannedPhases(plan);
  const most = Math.max(total, plan ? plan.step_s * 1e3 : 0);
  panel.append(make("div.split", null,
    plan ? stackRow("planned", planned || [0, 0, 0, plan.step_s * 1e3], most, plan.step_s * 1e3) : [],
    stackRow("measured, mean", measured, most, total)));
  const rows = PHASES.map((phase, p) => [
    make("span.whole", null, make("i.dot", { style: { background: phase.css(), marginRight: "7px" } }), phase.label),
    right(planned ? milliseconds(planned[p]) : "–"), right(milliseconds(measured[p])), right(share(measured[p] / total)),
    right(planned && planned[p] > 0.005 * plan.step_s * 1e3 ? number(measured[p] / planned[p], 3) + " ×" : "–")]);
  rows.push(["step", right(plan ? milliseconds(plan.step_s * 1e3) : "–"), right(milliseconds(total)), right("100%"),
    right(plan ? number(total / (plan.step_s * 1e3), 3) + " ×" : "–")]);
  rows.push(...speedRows(run));
  panel.append(table(["", right("planned"), right("measured"), right("share"), right("ratio")], rows));
  panel.append(helpTable(run));
  if (planned && run.median("gpu_peak_bytes") > 0)
    panel.append(make("p.quiet.small", null, "The plan uses the GPU's time and the measurement the program's: updates on the GPU are part of forward in the plan, while the program may measure them as waiting."));
  if (!plan) panel.append(make("p.quiet.small", null, "The planner was not used, or the run is from a version that did not record its prediction."));
  return panel;
}

function resourcePanel() {
  const run = chosenRun();
  const { plan } = run;
  const stepMs = run.median("step_ms");
  const rows = [];
  for (const [name, track, time, moved] of BUSY) {
    const busy = plan?.busy_s?.[name];
    const traced = run.trace?.tracks.find(it => it.name === track);
    // Of a step that is like the median one.
    const measured = traced ? traced.busy_s / run.trace.window_s * stepMs : time ? time(run) : undefined;
    const plannedBytes = moved && plan ? plan[moved] : undefined;
    const measuredBytes = moved ? run.median(moved) : undefined;
    if (!(busy > 0) && !(measured > 0) && !(measuredBytes > 0)) continue;
    const holds = plan && plan.bottleneck === name;
    rows.push([make("span", null, name + " ", holds ? make("span.tag.warn", null, "limits the step") : null),
      busy > 0 || measured > 0 ? twoBars(busy / plan?.step_s, measured / stepMs) : "",
      right(busy > 0 ? `${milliseconds(busy * 1e3)} (${share(busy / plan.step_s)})` : "–"),
      right(isNumber(measured) ? `${milliseconds(measured)} (${share(measured / stepMs)})` : "–"),
      right(plannedBytes > 0 ? drive(plannedBytes) : "–"), right(measuredBytes > 0 ? drive(measuredBytes) : "–"),
      right(measuredBytes > 0 && stepMs > 0 ? drive(measuredBytes / stepMs * 1e3) + "/s" : "–")]);
  }
  if (!rows.length) return null;
  return make("div.panel", null, table(["resource", "", right("planned busy"), right("measured busy"), right("planned per step"), right("moved per step"), right("rate")], rows),
    make("p.quiet.small", null, run.trace ? `Grey: planned, coloured: measured. Busy as in the trace of some steps (${duration(run.trace.window_s)}); bytes are medians.`
      : "Grey: planned, coloured: measured (median). How long drives and buses are busy is only measured in traced runs (sluice train --trace FIRST:LAST)."));
}

// The time line: one row a run.
const MARKS = {
  begin: { label: "started or continued", css: "accent" }, checkpoint: { label: "checkpoint", css: "good" }, skipped: { label: "skipped step", css: "waited" },
  warning: { label: "warning", css: "warn" }, bad: { label: "failure, kill or loss not finite", css: "bad" },
};

function happenings(run) {
  const list = [];
  run.events.forEach((event, i) => {
    const what = { step: event.step, unix: event.unix_s };
    if (event.event === "begin") {
      const before = run.events[i - 1];
      if (i > 0 && run.events.slice(0, i).findLast(it => it.event === "begin" || it.event === "end")?.event === "begin")
        list.push({ step: Math.max(before.step, event.step), unix: undefined, kind: "bad", text: "no end was recorded: it was killed after this step, or later" });
      const changes = Array.isArray(event.changes) && event.changes.length
        ? "; changed: " + event.changes.filter(it => it?.[0] !== "run.resume").map(it => Array.isArray(it) ? `${it[0]} from ${it[1] ?? "default"} to ${it[2] ?? "default"}` : "").join(", ") : "";
      list.push({ ...what, kind: "begin", text: (event === run.begins[0] && event.step === 0 ? "began" : "continued after step " + number(event.step)) + changes.replace(/; changed: $/, "") });
    } else if (event.event === "checkpoint" && event.failed !== undefined) list.push({ ...what, kind: "bad", text: "checkpoint was not saved: " + event.failed });
    else if (event.event === "checkpoint") list.push({ ...what, kind: "checkpoint", text: `saved, ${bytes(event.bytes)}; training paused for ${duration(event.stopped_s)}, on the disk after ${duration(event.took_s)}` });
    else if (event.event === "warning") list.push({ ...what, kind: "warning", text: String(event.text) });
    else if (event.event === "early_stop") list.push({ ...what, kind: "begin", text: String(event.text) });
    else if (event.event === "end") list.push({ ...what, kind: event.how === "failed" ? "bad" : "begin", text: String(event.how) + (event.reason ? ": " + event.reason : "") });
  });
  const saved = new Set(run.events.filter(it => it.event === "checkpoint").map(it => it.step));
  for (const one of run.checkpoints) if (!saved.has(one.step)) list.push({ step: one.step, kind: "checkpoint", text: `is there, ${bytes(one.bytes)}, ${one.state}` });
  for (const step of run.skipped.steps) list.push({ step, kind: "skipped", text: "gradients overflowed: nothing was updated" });
  for (const step of run.not_finite.steps) list.push({ step, kind: "bad", text: "the loss was not finite" });
  for (const [first, last] of run.gaps) list.push({ step: first, kind: "bad", text: `no metrics of steps ${number(first)} to ${number(last)}` });
  return list.map((it, i) => ({ ...it, i })).sort((a, b) => a.step - b.step || a.i - b.i); // events in the order of their file
}
const happeningsOf = new Map();
function noteHappenings(run) {
  try {
    happeningsOf.set(run, happenings(run));
  } catch (error) {
    console.error("events", error);
    happeningsOf.set(run, []);
  }
}
runs.forEach(noteHappenings);

const shortName = name => name.length > 9 ? name.slice(0, 8) + "…" : name;

const timelineSpec = {
  id: "timeline", title: "What happened", unit: y => runs.length > 1 && Number.isInteger(y) ? shortName(shown()[shown().length - y]?.name || "") : "", wide: true, splits: () => shown().map((_, i) => i + 1),
  get height() { return 64 + 22 * Math.max(shown().length, 1); },
  build() {
    const rows = shown();
    if (!rows.length) return null;
    const curves = [];
    rows.forEach((run, row) => {
      const y = rows.length - row;
      const axis = run.axis(state.mode);
      if (axis.x.length) curves.push({ label: run.name, css: faint(color("run-8"), 0.35), x: [axis.x[0], axis.x.at(-1)], v: [y, y], width: 5 });
      for (const [kind, mark] of Object.entries(MARKS)) {
        const places = [...new Set(happeningsOf.get(run).filter(it => it.kind === kind).map(it => run.placeOf(it.step, state.mode)).filter(isNumber))].sort((a, b) => a - b);
        if (places.length) curves.push({ label: mark.label, css: color(mark.css), x: places, v: places.map(() => y), width: 0, points: 9 });
      }
    });
    return { curves, marks: [], range: [0.3, rows.length + 0.7], legend: Object.values(MARKS).map(mark => ({ label: mark.label, css: color(mark.css) })) };
  },
  read(x) {
    const u = timelineSpec.chart?.u;
    const near = u ? Math.abs(u.posToVal(8, "x") - u.posToVal(0, "x")) : 0;
    const found = [];
    for (const run of shown())
      for (const it of happeningsOf.get(run))
        if (Math.abs(run.placeOf(it.step, state.mode) - x) <= near)
          found.push({ css: color(MARKS[it.kind].css), label: `${runs.length > 1 ? run.name + " · " : ""}step ${number(it.step)}: ${it.text}` });
    return found.slice(0, 8);
  },
};
