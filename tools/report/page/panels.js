// Tables and figures beside the charts.

function stateTag(run) {
  const kinds = { completed: "good", interrupted: "warn", failed: "bad", crashed: "bad" };
  return make("span.tag." + (kinds[run.live?.kind || run.state] || "quiet"), null, run.state);
}

function driveDays(run) {
  const perStep = run.drives.write_bytes / run.lines;
  const stepS = run.median("step_ms") / 1e3;
  const perDay = perStep / stepS * 86400;
  return { perStep, perDay, all: run.drives.write_bytes + (run.drives.again_write_bytes || 0) };
}

// The days left at this rate, of drives that were new when the run began.
function enduranceText(run) {
  const { perDay, all } = driveDays(run);
  if (!report.drive_tbw || !(perDay > 0)) return null;
  const left = report.drive_tbw * 1e12 - all;
  return left > 0 ? duration(left / perDay * 86400) + " left" : "used up";
}

function cardsOf(run) {
  const cards = [];
  const add = (title, text, note = "") => cards.push(make("div.card", { title: note }, make("span", null, title), make("b", null, text), make("span", null, note)));
  const lastStep = run.steps.at(-1);
  const of = run.begin.steps;
  const steps = lastStep > 99999 ? count : number;
  add("Steps", steps(lastStep) + (isNumber(of) ? " / " + steps(of) : ""), run.state);
  if (isNumber(run.last("loss"))) add("Training loss", lossText(run.last("loss")), `from ${lossText(run.first("loss"))}`);
  if (run.column("val_loss")) add("Validation loss", lossText(run.last("val_loss")), `least ${lossText(run.least("val_loss"))}`);
  add("Tokens/s, median", count(run.median("tokens_per_s")), `${count(run.last("tokens_seen"))} tokens seen`);
  const tflops = run.median("tflops_per_s");
  if (isNumber(tflops)) add("TFLOP/s, median", number(tflops, 3), run.limitTflops ? `${share(tflops / run.limitTflops)} of large products` : "of forward and backward");
  const busy = run.median("gpu_utilization_percent");
  if (isNumber(busy)) add("GPU busy, median", percent(busy), run.most("gpu_throttled_percent") > 0 ? "throttled some of the time" : isNumber(run.median("gpu_power_watts")) ? watts(run.median("gpu_power_watts")) : "");
  const step = run.median("step_ms");
  add("Step, median", milliseconds(step), run.plan ? `${number(step / (run.plan.step_s * 1e3), 3)} × the plan` : "no plan was recorded");
  add("Time trained", duration(run.last("trained_s")), run.begins.length > 1 ? `in ${run.begins.length} attempts` : "steps alone");
  if (run.most("gpu_peak_bytes") > 0) add("GPU, peak", bytes(run.most("gpu_peak_bytes")), budgetNote(run, "gpu"));
  add("Host, peak", bytes(run.most("host_rss_bytes")), budgetNote(run, "cpu"));
  if (run.drives.write_bytes > 0) {
    const wear = driveDays(run);
    add("Written to drives", drive(wear.all), `${drive(wear.perStep)} a step, ${drive(wear.perDay)} a day`);
    if (report.drive_tbw) add("Drives' endurance", enduranceText(run), `${share(wear.all / (report.drive_tbw * 1e12))} of ${drive(report.drive_tbw * 1e12)} by this run`);
  }
  if (isNumber(run.live?.left_s)) add("Time left", duration(run.live.left_s), "at the speed of the last steps");
  if (run.skipped.count) add("Skipped steps", number(run.skipped.count), "gradients overflowed");
  if (run.not_finite.count) add("Loss not finite", number(run.not_finite.count), "steps");
  if (run.drives.again_lines) add("Run again", number(run.drives.again_lines) + " steps", "after interruptions");
  return cards;
}
const budgetNote = (run, name) => isNumber(tier(run, name, "budget_bytes")) ? `of ${bytes(tier(run, name, "budget_bytes"))}` : "";

function summaryTable() {
  return table(["run", "state", right("steps"), right("loss"), right("validation"), right("tokens/s"), right("step"), right("of plan"), right("GPU"), right("host"), right("written"), right("skipped")],
    runs.map(run => [make("span", null, make("i.dot", { style: { background: run.css, marginRight: "7px" } }), run.name), stateTag(run), right(number(run.steps.at(-1))), right(lossText(run.last("loss"))), right(lossText(run.last("val_loss"))),
      right(count(run.median("tokens_per_s"))), right(milliseconds(run.median("step_ms"))), right(run.plan ? number(run.median("step_ms") / run.plan.step_s / 1e3, 3) + " ×" : "–"),
      right(run.most("gpu_peak_bytes") > 0 ? bytes(run.most("gpu_peak_bytes")) : "–"), right(bytes(run.most("host_rss_bytes"))), right(run.drives.write_bytes > 0 ? drive(run.drives.write_bytes) : "–"), right(number(run.skipped.count))]));
}

function noticesBox() {
  const items = runs.flatMap(run => run.notices.map(text => make("li", null, runs.length > 1 ? run.name + ": " + text : text)));
  return items.length ? make("div.notices", { role: "note" }, make("b", null, "What could not be read"), make("ul", null, items)) : null;
}

function tiersPanel() {
  const rows = [];
  const names = { gpu: "GPU", cpu: "host memory", nvme: "NVMe" };
  for (const run of runs)
    for (const [key, label] of Object.entries(names)) {
      const one = run.begin.tiers[key];
      if (!one) continue;
      const measured = key === "gpu" ? run.most("gpu_peak_bytes") : key === "cpu" ? run.most("host_rss_bytes") : undefined;
      const parts = Object.entries(one.parts || {}).filter(([, size]) => isNumber(size)).sort((a, b) => b[1] - a[1]).slice(0, 6);
      rows.push([...(runs.length > 1 ? [run.name] : []), label, right(bytes(one.bytes)), right(isNumber(measured) ? bytes(measured) : "–"), right(isNumber(one.budget_bytes) ? bytes(one.budget_bytes) : "–"),
        { kind: "wrap", text: parts.map(([what, size]) => `${what} ${bytes(size)}`).join(", ") }]);
    }
  return rows.length ? make("div.panel", null, table([...(runs.length > 1 ? ["run"] : []), "tier", right("planned"), right("peak"), right("budget"), "largest parts, as planned"], rows)) : null;
}

function happeningsPanel() {
  const kinds = Object.keys(MARKS);
  const chosen = new Set(kinds);
  const body = make("div.tall");
  const most = 400;
  const show = () => {
    const all = runs.flatMap(run => happeningsOf.get(run).filter(it => chosen.has(it.kind)).map(it => [run, it]));
    const rows = all.slice(0, most).map(([run, it]) => [...(runs.length > 1 ? [run.name] : []), right(number(it.step)), clock(it.unix),
      make("span.tag", { style: { color: color(MARKS[it.kind].css) } }, MARKS[it.kind].label), { kind: "wrap", text: it.text }]);
    body.replaceChildren(rows.length ? table([...(runs.length > 1 ? ["run"] : []), right("step"), "when", "what", ""], rows) : make("span.quiet", null, "No events."),
      all.length > most ? make("p.quiet.small", null, `${number(all.length - most)} more are in the data.`) : "");
  };
  const tools = make("div.tools", null, kinds.map(kind => {
    const button = make("button", { "aria-pressed": "true", click() {
      if (chosen.has(kind)) chosen.delete(kind); else chosen.add(kind);
      button.setAttribute("aria-pressed", String(chosen.has(kind)));
      button.style.opacity = chosen.has(kind) ? "" : ".45";
      show();
    } }, MARKS[kind].label);
    return button;
  }));
  onTheme.push(show);
  onData.push(show);
  show();
  return make("div.panel.long", null, tools, body, make("p.print.small", null, "Of long tables the first 60 rows are printed."));
}

// Sample texts, the newest first: of each prompt, or of one.
function samplesPanel() {
  const samples = runs.flatMap(run => run.events.filter(it => it.event === "sample").map(it => [run, it])).reverse();
  if (!samples.length) return null;
  const prompts = [...new Set(samples.map(([, it]) => String(it.prompt)))].sort();
  const body = make("div.tall");
  const most = 100;
  let wanted = "";
  const show = () => {
    const found = samples.filter(([, it]) => !wanted || it.prompt === wanted);
    body.replaceChildren(table([...(runs.length > 1 ? ["run"] : []), right("step"), "prompt", "text"],
      found.slice(0, most).map(([run, it]) => [...(runs.length > 1 ? [run.name] : []), right(number(it.step)), { kind: "wrap", text: String(it.prompt) }, { kind: "wrap", text: String(it.text) + (it.ended ? " ∎" : "") }])),
    found.length > most ? make("p.quiet.small", null, `${number(found.length - most)} more are in the data.`) : "");
  };
  const select = make("select", { "aria-label": "Which prompt", change() { wanted = select.value; show(); } }, [["", "all prompts"], ...prompts.map(it => [it, it.slice(0, 60)])].map(([value, text]) => make("option", { value }, text)));
  show();
  return make("div.panel.long", null, prompts.length > 1 ? make("div.tools", null, select) : "", body);
}

function configPanel() {
  const values = runs.map(run => new Map(run.config));
  const why = runs.map(run => new Map(run.begin.config.map(members).sort((a, b) => (b.outcome === "ignored") - (a.outcome === "ignored")).map(it => [it.path, it])));
  const keys = [...new Set([...values.flatMap(map => [...map.keys()]), ...why.flatMap(map => [...map.keys()])])];
  const differs = key => runs.length > 1 && new Set(values.map(map => map.get(key))).size > 1;
  const isDerived = key => why.some(map => map.get(key)?.outcome === "derived");
  const isGiven = key => why.some(map => map.get(key)?.outcome === "given");
  const choices = [["all", "all keys"], ...(runs.length > 1 ? [["differs", "differences between the runs"]] : []), ["given", "given keys"], ["derived", "derived keys"]];
  let choice = runs.length > 1 ? "differs" : keys.some(isGiven) ? "given" : "all";
  let wanted = "";
  const body = make("div.tall");
  const show = () => {
    const rows = [];
    const classes = [];
    for (const key of keys) {
      if (wanted && !key.toLowerCase().includes(wanted) && !values.some(map => (map.get(key) || "").toLowerCase().includes(wanted))) continue;
      if (choice === "differs" && !differs(key) || choice === "derived" && !isDerived(key) || choice === "given" && !isGiven(key)) continue;
      const notes = [...new Set(why.map(map => map.get(key)).filter(Boolean).map(it => [it.outcome, it.reason, it.source && "from " + it.source].filter(Boolean).join("; ")))];
      rows.push([{ kind: "key", text: key }, ...runs.map((_, i) => ({ kind: "wrap", text: values[i].get(key) ?? why[i].get(key)?.value ?? "–" })), { kind: "wrap", text: notes.join(" | ") }]);
      classes.push(differs(key) ? "differs" : "");
    }
    body.replaceChildren(rows.length ? table(["key", ...runs.map(run => runs.length > 1 ? run.name : "value"), "source"], rows, classes)
      : make("span.quiet", null, choice === "differs" ? "The configurations do not differ." : "Nothing here."));
  };
  const search = make("input", { type: "search", placeholder: "Find a key or value", "aria-label": "Find a key or value", input() { wanted = search.value.toLowerCase(); show(); } });
  const select = make("select", { "aria-label": "Which keys", change() { choice = select.value; show(); } }, choices.map(([value, text]) => make("option", { value }, text)));
  select.value = choice;
  show();
  return keys.length ? make("div.panel.long", null, make("div.tools", null, select, search), body, make("p.print.small", null, "Of long tables the first 60 rows are printed.")) : make("div.panel", null, make("span.quiet", null, "No configuration could be read."));
}

function machinePanel() {
  const rows = [];
  const add = (label, pick) => {
    const cells = runs.map(run => pick(run) ?? "–");
    if (cells.some(cell => cell !== "–")) rows.push([label, ...cells.map(text => ({ kind: "wrap", text }))]);
  };
  const machine = (run, member) => run.begin.machine[member];
  add("model", run => run.begin.model.family && `${run.begin.model.family}, ${count(run.begin.model.parameters)} parameters` +
    (run.begin.model.trained_parameters !== run.begin.model.parameters ? `, ${count(run.begin.model.trained_parameters)} of them trained` : ""));
  add("tokens per step", run => isNumber(run.begin.tokens_per_step) ? number(run.begin.tokens_per_step) : null);
  add("ranks", run => isNumber(run.begin.ranks) ? number(run.begin.ranks) : null);
  add("GPU", run => machine(run, "gpu"));
  add("CPU", run => machine(run, "cpu") && `${machine(run, "cpu")}, ${number(machine(run, "cores"))} cores`);
  add("RAM", run => isNumber(machine(run, "ram_bytes")) ? bytes(machine(run, "ram_bytes")) : null);
  add("kernel", run => machine(run, "kernel"));
  add("program", run => run.begin.build && String(run.begin.build).replaceAll("\n", "; "));
  add("folder", run => run.path);
  add("began", run => run.begins.length ? clock(run.begins[0].unix_s) : null);
  add("last step", run => isNumber(run.last("unix_s")) ? clock(run.last("unix_s")) : null);
  return make("div.panel", null, table(runs.length > 1 ? ["", ...runs.map(run => run.name)] : null, rows));
}
