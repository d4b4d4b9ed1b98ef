// The page: its controls, its sections, and what follows from a change of either.

const app = document.getElementById("app");
let reset;

function segments(entries, value, choose) {
  const buttons = entries.map(([key, label, enabled]) => make("button", { "aria-pressed": String(key === value), disabled: enabled ? null : "", click() {
    for (const button of buttons) button.setAttribute("aria-pressed", String(button === buttons[entries.findIndex(it => it[0] === key)]));
    choose(key);
  } }, label));
  return make("div.segments", { role: "group" }, buttons);
}

function controls() {
  const axes = Object.entries(AXES).map(([key, axis]) => [key, axis.label, runs.some(run => key === "step" || run.column(axis.column))]);
  const strength = make("output.quiet", null, String(state.smoothing));
  const slider = make("input", { type: "range", min: "0", max: "0.99", step: "0.01", value: String(state.smoothing), "aria-label": "Smoothing", input() {
    state.smoothing = Number(slider.value);
    strength.textContent = slider.value;
    showAll();
  } });
  const log = make("input", { type: "checkbox", change() { state.log = log.checked; showAll(); } });
  reset = make("button", { disabled: "", click() { zoomAll(null); } }, "Whole run");
  root.addEventListener("zoomed", () => { reset.disabled = !state.range; });
  const themes = make("select", { "aria-label": "Colours", change() { chosenTheme = themes.value; applyTheme(); } },
    [["auto", "Colours of the system"], ["light", "Light"], ["dark", "Dark"]].map(([value, text]) => make("option", { value }, text)));
  return make("div.bar", null,
    segments(axes, state.mode, mode => { state.mode = mode; state.range = null; reset.disabled = true; showAll(); }),
    make("label", null, "Smoothing", slider, strength), make("label", null, log, "Log scale"), reset,
    make("span.grow"), themes, make("button", { click: saveData, title: "The numbers behind this page, as JSON" }, "Save the data"));
}

function saveData() {
  const link = make("a", { href: URL.createObjectURL(new Blob([JSON.stringify(report)], { type: "application/json" })), download: "sluice-report.json" });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

function chips() {
  return make("div.chips", null, runs.map(run => {
    const dot = make("i.dot");
    const paint = () => { dot.style.background = run.css; };
    onTheme.push(paint);
    paint();
    const chip = make("button.chip", { "aria-pressed": "true", title: run.path, click() {
      run.visible = !run.visible;
      chip.setAttribute("aria-pressed", String(run.visible));
      showAll();
    } }, dot, make("span", null, run.name));
    return chip;
  }));
}

// A heading with charts and panels; gone where none of them has anything to show.
function section(title, ...contents) {
  const heading = make("h2", null, title);
  app.append(heading);
  for (const content of contents) if (content) app.append(content);
  return heading;
}

function grid(specs) {
  const box = make("div.charts");
  for (const spec of specs) spec.chart = new Chart(box, spec);
  return box;
}

// Contents that are made again whenever the chosen run or the colours change.
function living(build) {
  const box = make("div.two");
  const show = () => box.replaceChildren(...build.map(part => guarded("A part of this section", part)).filter(Boolean));
  onTheme.push(show);
  onData.push(show);
  show();
  return { box, show };
}

// Contents that are made again when there is something new.
function kept(kind, what, build, list = onData) {
  const box = make(kind);
  const show = () => box.replaceChildren(...[guarded(what, build)].flat().filter(Boolean));
  list.push(show);
  show();
  return box;
}

function buildPage() {
  app.append(make("header", null, make("h1", null, runs.length === 1 ? runs[0].name : `${runs.length} runs`),
    runs.length === 1 ? kept("span", "The state", () => stateTag(runs[0])) : chips(), make("span.grow"),
    make("span.quiet.small", { id: "made" }, `made ${clock(report.made_unix_s)} by ${report.made_by}`)));
  app.append(controls());
  app.append(kept("div", "What could not be read", noticesBox));
  if (runs.length === 1) app.append(kept("div.cards", "The summary", () => cardsOf(runs[0])));
  else app.append(make("div.panel", { style: { marginTop: "14px" } }, kept("div", "The summary", summaryTable)));

  section("Learning", grid(learningSpecs));
  section("Events", grid([timelineSpec]));
  const plan = living([planPanel, resourcePanel]);
  const choice = runs.length > 1 ? make("div.tools", null, make("label", null, "Steps of ", make("select", { "aria-label": "Whose steps", change() {
    phasesRun = Number(this.value);
    phasesSpec.chart.show();
    plan.show();
  } }, runs.map((run, i) => make("option", { value: i }, run.name))))) : null;
  section("Where the time goes", grid(speedSpecs), make("div", { style: { height: "12px" } }), choice, grid([phasesSpec]), make("div", { style: { height: "12px" } }), plan.box);
  section("Memory", grid(memorySpecs), make("div", { style: { height: "12px" } }), kept("div", "Planned memory", tiersPanel));
  const drives = grid(driveSpecs);
  const drivesHeading = section("Drives and buses", drives);
  const samples = kept("div", "The sample texts", samplesPanel);
  const samplesHeading = section("Sample texts", samples);
  section("Events", guarded("What happened", happeningsPanel));
  section("Configuration", kept("div", "The configuration", configPanel, onFacts));
  section("Machine and versions", kept("div", "The machine", machinePanel));
  const showCharts = () => {
    showAll();
    drivesHeading.hidden = driveSpecs.every(spec => spec.chart.box.hidden);
    samplesHeading.hidden = !samples.hasChildNodes();
  };
  onData.push(showCharts);
  showCharts();
}

function printed(on) {
  printing = on;
  applyTheme();
  for (const chart of charts) if (chart.u) chart.u.setSize({ width: on ? (chart.spec.wide ? 690 : 335) : Math.max(chart.plot.clientWidth, 200), height: on ? Math.min(chart.spec.height || 230, 190) : chart.spec.height || 230 });
}

onTheme.push(showAll);
buildPage();
window.addEventListener("beforeprint", () => printed(true));
window.addEventListener("afterprint", () => printed(false));
// For tests of the page: which charts there are and whether they drew.
const nameCharts = () => { root.dataset.charts = charts.filter(chart => !chart.box.hidden).map(chart => chart.spec.id).join(" "); };
onData.push(nameCharts);
nameCharts();
root.dataset.ready = "1";
if (typeof startLive === "function") startLive();
