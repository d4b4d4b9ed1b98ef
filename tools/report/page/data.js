// The report's data, decoded: runs with columns over points, and the axes that points can lie on.

const report = JSON.parse(document.getElementById("sluice-data").textContent);

const AXES = {
  step: { label: "Steps", text: x => "step " + number(Math.round(x)), tick: count },
  tokens: { label: "Tokens", column: "tokens_seen", text: x => count(x) + " tokens", tick: count },
  trained: { label: "Time trained", column: "trained_s", text: duration, tick: hours },
  clock: { label: "Clock", column: "unix_s", text: clock },
};

// What a damaged or hostile file has in place of an object is one without members.
const members = value => value !== null && typeof value === "object" && !Array.isArray(value) ? { ...value } : {};

class Run {
  constructor(raw, index) {
    this.index = index;
    this.visible = true;
    this.update(raw);
  }
  // What a live page gets during the run replaces what it had.
  update(raw) {
    Object.assign(this, raw);
    this.steps = this.series.last;
    this.points = this.steps.length;
    this.thinned = this.series.width > 1;
    this.cache = new Map();
    this.begins = this.events.filter(event => event.event === "begin");
    this.begin = { ...(this.begins.at(-1) || {}) };
    for (const member of ["tiers", "machine", "model"]) this.begin[member] = members(this.begin[member]);
    for (const [name, tier] of Object.entries(this.begin.tiers)) this.begin.tiers[name] = { ...members(tier), parts: members(members(tier).parts) };
    if (!Array.isArray(this.begin.config)) this.begin.config = [];
    const planned = this.begins.filter(event => members(event.plan).step_s > 0).at(-1);
    this.plan = planned ? members(planned.plan) : null;
    if (this.plan) this.plan.busy_s = members(this.plan.busy_s);
    this.whatIf = (Array.isArray(planned?.what_if) ? planned.what_if : []).map(members).filter(it => isNumber(it.step_s) && isNumber(it.tokens_per_s_ratio));
    // Of forward and backward, and of large products on all GPUs.
    const flops = members(this.begin.model.flops_per_token);
    this.flopsPerToken = isNumber(flops.forward) && isNumber(flops.backward) ? flops.forward + flops.backward : undefined;
    const limit = this.begin.machine.product_flops_per_s;
    this.limitTflops = isNumber(limit) && limit > 0 ? limit * (isNumber(this.begin.ranks) ? this.begin.ranks : 1) / 1e12 : undefined;
    const last = this.events.findLast(event => event.event === "begin" || event.event === "end");
    this.state = this.live ? this.live.text : !last ? "state unknown" : last.event === "end" ? String(last.how) : "no end recorded: still running, or killed";
  }
  get css() { return color("run-" + (this.index % 8 + 1)); }

  // {v, lo, hi}: lo and hi are null where points are single steps; null: there is no such column.
  column(name) {
    if (!this.cache.has(name)) {
      const raw = this.series.columns[name];
      this.cache.set(name, !raw ? null : "all" in raw ? { v: new Array(this.points).fill(raw.all), lo: null, hi: null }
        : { v: raw.v, lo: raw.lo || null, hi: raw.hi || null });
    }
    return this.cache.get(name);
  }
  values(name) { return this.column(name)?.v || []; }
  last(name) { return this.values(name).findLast(isNumber); }
  first(name) { return this.values(name).find(isNumber); }
  least(name) { return extreme(this.column(name)?.lo || this.values(name), Math.min); }
  most(name) { return extreme(this.column(name)?.hi || this.values(name), Math.max); }
  // Without the run's first step, which warms up, where there are others.
  median(name) {
    const values = this.values(name).slice(this.points > 2 ? 1 : 0).filter(isNumber).sort((a, b) => a - b);
    return values.length ? values[Math.floor(values.length / 2)] : undefined;
  }
  linesAt(i) { return this.series.lines ? this.series.lines[i] : 1; }
  firstStepAt(i) { return this.series.first ? this.series.first[i] : this.steps[i]; }

  // Points in ascending order on an axis: {x: [...], at: [index of the point, ...]}.
  axis(mode) {
    const key = "axis " + mode;
    if (!this.cache.has(key)) {
      const all = mode === "step" ? this.steps : this.values(AXES[mode].column);
      const found = { x: [], at: [] };
      let most = -Infinity;
      all.forEach((x, i) => {
        if (!isNumber(x) || x <= most) return;
        most = x;
        found.x.push(x);
        found.at.push(i);
      });
      this.cache.set(key, found);
    }
    return this.cache.get(key);
  }
  // Where a step lies on an axis.
  placeOf(step, mode) {
    if (mode === "step") return step;
    const axis = this.axis(mode);
    const i = axis.at.findIndex(at => this.steps[at] >= step);
    if (i < 0) return axis.x.at(-1);
    return i === 0 || this.steps[axis.at[i]] === step || step <= 0 ? axis.x[i]
      : axis.x[i - 1] + (axis.x[i] - axis.x[i - 1]) * (step - this.steps[axis.at[i - 1]]) /
        (this.steps[axis.at[i]] - this.steps[axis.at[i - 1]]);
  }
  at(x, mode) { // the nearest point; -1: there is none
    const axis = this.axis(mode);
    if (!axis.x.length) return -1;
    let low = 0;
    let high = axis.x.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (axis.x[middle] <= x) low = middle; else high = middle;
    }
    return axis.at[x - axis.x[low] <= axis.x[high] - x ? low : high];
  }
}

function extreme(values, choose) {
  let found;
  for (const value of values) if (isNumber(value)) found = found === undefined ? value : choose(found, value);
  return found;
}

// A mean that forgets, corrected for its beginning; what is missing is passed over.
function smoothed(values, weight) {
  if (!(weight > 0)) return values;
  let mean = 0;
  let debias = 1;
  return values.map(value => {
    if (!isNumber(value)) return value;
    mean = weight * mean + (1 - weight) * value;
    debias *= weight;
    return mean / (1 - debias);
  });
}

const runs = report.runs.map((raw, index) => new Run(raw, index));
const shown = () => runs.filter(run => run.visible);
