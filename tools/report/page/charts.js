// Charts: one uPlot each. All share the horizontal axis: what is zoomed in one is zoomed in all. A chart is
// built anew from its spec whenever what it shows changes.
//
// spec: {id, title, note, unit: format of values, log, height, wide,
//        build(): null where there is nothing to show, or
//          {curves: [{label, css, x, v, lo, hi, band, width, dash, faint, points, bars, fill, step}],
//           lines: [{y, label, css}], marks: [{x, css, dash}], legend: [{label, css, dash}], range: [least, most]},
//           read(x): [{label, css, text}, ...] for the tip}

const state = { mode: "step", smoothing: 0.6, log: false, range: null };
const charts = [];
let dragged = null; // the chart in which a selection began
const BINARY = Array.from({ length: 60 }, (_, i) => 2 ** i); // between ticks of bytes

function joined(curves) {
  const tables = curves.map(curve => [curve.x, curve.v, ...(curve.lo ? [curve.lo, curve.hi] : [])]);
  return tables.length ? uPlot.join(tables) : [[]];
}

// One number for each series of uPlot's; bands lie between those of least and most.
function seriesOf(curves) {
  const series = [{}];
  const bands = [];
  for (const curve of curves) {
    series.push({
      label: curve.label, stroke: curve.css, width: curve.width || 1.75, dash: curve.dash, fill: curve.fill,
      points: { show: curve.points ? true : undefined, size: curve.points || 4, fill: curve.css },
      paths: curve.bars ? uPlot.paths.bars({ size: [0.92, 60], align: 0 }) : curve.step ? uPlot.paths.stepped({ align: 1 }) : undefined,
    });
    if (!curve.lo) continue;
    const edge = { stroke: "transparent", width: 0, points: { show: false } };
    series.push({ ...edge }, { ...edge });
    bands.push({ series: [series.length - 1, series.length - 2], fill: faint(curve.band, 0.2) });
  }
  return { series, bands };
}

function drawLines(lines, marks) {
  return u => {
    const { ctx } = u;
    const scale = devicePixelRatio;
    const { left, top, width, height } = u.bbox;
    ctx.save();
    ctx.lineWidth = scale;
    ctx.font = `${11 * scale}px system-ui, sans-serif`;
    for (const mark of marks) {
      const x = Math.round(u.valToPos(mark.x, "x", true));
      if (x < left || x > left + width) continue;
      ctx.strokeStyle = mark.css;
      ctx.setLineDash((mark.dash || [3, 3]).map(size => size * scale));
      ctx.beginPath();
      ctx.moveTo(x, top);
      ctx.lineTo(x, top + height);
      ctx.stroke();
    }
    const labelled = []; // heights
    for (const line of lines) {
      const y = Math.round(u.valToPos(line.y, "y", true));
      if (!(y >= top && y <= top + height)) continue;
      ctx.strokeStyle = ctx.fillStyle = line.css;
      ctx.setLineDash([6 * scale, 4 * scale]);
      ctx.beginPath();
      ctx.moveTo(left, y);
      ctx.lineTo(left + width, y);
      ctx.stroke();
      // Beside the labels that are there already, on what covers the curves behind it.
      const below = y - top < 17 * scale;
      const middle = y + (below ? 9 : -9) * scale;
      const beside = labelled.filter(other => Math.abs(other - middle) < 15 * scale).length;
      labelled.push(middle);
      const size = ctx.measureText(line.label).width;
      const x = left + width - 6 * scale - size - beside * 90 * scale;
      ctx.fillStyle = faint(color("card"), 0.78);
      ctx.fillRect(x - 3 * scale, middle - 7 * scale, size + 6 * scale, 14 * scale);
      ctx.fillStyle = line.css;
      ctx.textBaseline = "middle";
      ctx.textAlign = "left";
      ctx.fillText(line.label, x, middle);
    }
    ctx.restore();
  };
}

class Chart {
  constructor(parent, spec) {
    this.spec = spec;
    this.plot = make("div.plot");
    this.tip = make("div.tip", { hidden: "" });
    this.legend = make("div.legend");
    this.note = make("span.quiet");
    this.box = make(spec.wide ? "div.chart.wide" : spec.large ? "div.chart.large" : "div.chart", { id: "chart-" + spec.id, role: "figure", "aria-label": spec.title },
      make("div.head", null, make("h3", null, spec.title), this.note), this.plot, this.legend, this.tip);
    parent.append(this.box);
    charts.push(this);
    this.seen = new ResizeObserver(() => this.fit());
    this.seen.observe(this.plot);
  }

  show() {
    this.u?.destroy();
    this.u = null;
    let built = null;
    try {
      built = this.spec.build();
    } catch (error) {
      console.error(this.spec.id, error);
    }
    this.built = built;
    this.box.hidden = !built;
    if (!built) return;
    this.note.textContent = [built.note, this.log && "log scale"].filter(Boolean).join(" · ");
    this.legend.replaceChildren(...(built.legend || []).map(it => make("span", null,
      make(it.dash ? "i.dash" : "i", { style: it.dash ? { borderColor: it.css } : { background: it.css } }), it.label)));
    const { series, bands } = seriesOf(built.curves);
    this.u = new uPlot(this.options(built, series, bands), this.data(built), this.plot);
    if (state.range) this.u.setScale("x", { min: state.range[0], max: state.range[1] });
  }

  get log() { return state.log && this.spec.log; }

  data(built) {
    const data = joined(built.curves);
    if (!this.log) return data;
    return data.map((values, i) => i === 0 ? values : values.map(it => it === undefined || it > 0 ? it : null));
  }

  options(built, series, bands) {
    const clockAxis = state.mode === "clock";
    const axis = { stroke: color("quiet"), grid: { stroke: color("grid"), width: 1 }, ticks: { stroke: color("grid"), width: 1, size: 5 }, font: "11px system-ui, sans-serif" };
    const lines = built.lines || [];
    const tick = AXES[state.mode].tick;
    const y = this.log ? { distr: 3, range: (u, least, most) => isNumber(least) ? [least * 0.9, most * 1.1] : [1, 10] } : built.range ? { range: () => built.range } : {
      range: (u, least, most) => this.range(least, most, lines),
    };
    return {
      width: Math.max(this.plot.clientWidth, 200), height: this.spec.height || 230, series, bands,
      legend: { show: false }, padding: [8, 20, 0, 0],
      scales: { x: { time: clockAxis }, y },
      axes: [
        { ...axis, space: clockAxis ? 90 : 60, size: 30, ...(clockAxis ? {} : { values: (u, splits) => splits.map(it => tick(it)) }) },
        { ...axis, size: 62, splits: this.spec.splits, incrs: this.spec.unit === bytes && !this.log ? BINARY : undefined, values: (u, splits) => splits.map(it => it === null ? "" : this.spec.unit(it)) },
      ],
      cursor: { y: false, drag: { x: true, y: false, setScale: false }, sync: { key: "sluice", scales: ["x", null] }, points: { show: !built.curves.some(it => it.bars) } },
      hooks: {
        draw: [drawLines(lines, built.marks || [])],
        setSelect: [u => this.zoom(u)],
        setCursor: [u => this.tell(u)],
        ready: [u => {
          u.over.addEventListener("mousedown", () => { dragged = this; });
          u.over.addEventListener("dblclick", () => zoomAll(null));
          u.over.addEventListener("mouseleave", () => { this.tip.hidden = true; });
          this.box.dataset.points = String(built.curves.reduce((sum, it) => sum + it.v.filter(isNumber).length, 0));
        }],
      },
    };
  }

  // With a margin, and lines in it unless they are far away.
  range(least, most, lines) {
    if (!isNumber(least) || !isNumber(most)) return [0, 1];
    for (const line of lines) {
      if (line.y > most && line.y <= (line.far || 3) * Math.abs(most)) most = line.y;
      if (line.y < least && line.y >= least / 3) least = line.y;
    }
    if (this.spec.zero || least === most) least = Math.min(least, 0);
    if (least === most) most = least + 1;
    const margin = 0.06 * (most - least);
    return [least === 0 ? 0 : least - margin, most + margin];
  }

  zoom(u) {
    const { left, width } = u.select;
    if (!(width > 0)) return;
    const range = [u.posToVal(left, "x"), u.posToVal(left + width, "x")];
    u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    // The others follow the selection, too.
    if (dragged !== this || width < 4) return;
    dragged = null;
    zoomAll(range);
  }

  tell(u) {
    const { left } = u.cursor;
    if (!(left >= 0) || !u.over.matches(":hover")) { this.tip.hidden = true; return; }
    const rows = (this.built.read || this.spec.read)(u.posToVal(left, "x"));
    if (!rows.length) { this.tip.hidden = true; return; }
    this.tip.replaceChildren(...rows.map(row => make("div", null,
      row.css ? make("i.dot", { style: { background: row.css } }) : null, make("span", null, row.label), make("b", null, row.text || ""))));
    this.tip.hidden = false;
    const at = this.plot.offsetLeft + u.bbox.left / devicePixelRatio + left;
    const flip = at + this.tip.offsetWidth + 24 > this.box.clientWidth;
    this.tip.style.left = Math.max(flip ? at - this.tip.offsetWidth - 14 : at + 14, 4) + "px";
    this.tip.style.top = this.plot.offsetTop + 8 + "px";
  }

  fit() {
    if (!this.u || printing) return;
    const width = Math.max(this.plot.clientWidth, 200);
    if (Math.abs(width - this.u.width) > 1) this.u.setSize({ width, height: this.spec.height || 230 });
  }
}

function zoomAll(range) {
  state.range = range;
  for (const chart of charts) {
    if (!chart.u) continue;
    if (chart.spec.rebuilds) { chart.show(); continue; }
    if (range) chart.u.setScale("x", { min: range[0], max: range[1] });
    else chart.u.setData(chart.u.data, true);
  }
  root.dispatchEvent(new CustomEvent("zoomed"));
}

function showAll() {
  for (const chart of charts) chart.show();
}
