// A live page: asks the server that it came from for what it lacks, and shows it. Not part of a report.
//
// GET data?at=CURSOR,CURSOR,...: a cursor a run, as the last reply had it, says what the page has. The reply:
// {"every_ms", "runs": [{"at": cursor, "live": {"kind", "text", "left_s"}, "new": null or what is new}]}

const cursors = runs.map(() => "0");
let waiting = false; // something is new, and not shown yet
let waitingFacts = false;
let waitingSince = 0;

// A column's values as arrays; what a side lacks is not known there.
function joinedColumn(old, added, keep, count) {
  const whole = column => !column ? null : "all" in column ? new Array(count).fill(column.all) : column.v;
  const before = old ? old.v.slice(0, keep) : new Array(keep).fill(null);
  const after = whole(added) || new Array(count).fill(null);
  const column = { v: before.concat(after) };
  if (old?.lo || added?.lo)
    for (const edge of ["lo", "hi"]) column[edge] = (old?.[edge] ? old[edge].slice(0, keep) : before).concat(added?.[edge] || after);
  return column;
}

function joinedSeries(old, added, keep) {
  const count = added.last.length;
  const series = { width: added.width, last: old.last.slice(0, keep).concat(added.last), columns: {} };
  if (old.lines || added.lines) {
    series.first = (old.first || old.last).slice(0, keep).concat(added.first || added.last);
    series.lines = (old.lines || old.last.map(() => 1)).slice(0, keep).concat(added.lines || added.last.map(() => 1));
  }
  for (const name of new Set([...Object.keys(old.columns), ...Object.keys(added.columns)]))
    series.columns[name] = joinedColumn(old.columns[name], added.columns[name], keep, count);
  return series;
}

function take(run, reply) {
  const added = reply.new;
  if (added) {
    const { keep_points: points, keep_events: events, ...rest } = added;
    rest.series = joinedSeries(points ? run.series : { last: [], columns: {} }, added.series, points);
    rest.events = (events ? run.events.slice(0, events) : []).concat(added.events);
    const isNew = rest.config !== undefined || added.events.some(event => event?.event === "begin");
    waiting = true;
    waitingFacts ||= isNew;
    run.live = reply.live;
    run.update(rest);
    noteHappenings(run);
  } else if (run.live?.text !== reply.live.text || run.live?.left_s !== reply.live.left_s) {
    run.live = reply.live;
    run.update({});
    waiting = true;
  }
  cursors[run.index] = reply.at;
}

// Not under the pointer of who reads a chart or selects a part of it, for a while.
function isBusy() {
  return performance.now() - waitingSince < 10000 && charts.some(chart => !chart.tip.hidden || chart.u?.select.width > 0);
}

function showNew() {
  if (!waiting) return;
  waitingSince ||= performance.now();
  if (isBusy()) return;
  if (waitingFacts) for (const follow of onFacts) follow();
  for (const follow of onData) follow();
  waiting = waitingFacts = false;
  waitingSince = 0;
  root.dataset.shown = String(Number(root.dataset.shown || 0) + 1);
}

async function ask() {
  let next = 5000;
  const made = document.getElementById("made");
  try {
    const reply = await fetch("data?at=" + cursors.join(","), { cache: "no-store", credentials: "same-origin" });
    if (!reply.ok) throw new Error(`it answers ${reply.status}`);
    const told = await reply.json();
    told.runs.forEach((one, i) => { if (runs[i]) take(runs[i], one); });
    next = told.every_ms;
    made.textContent = `live, ${clock(told.now_unix_s)}, ${report.made_by}`;
    made.className = "quiet small";
    showNew();
  } catch (error) {
    made.textContent = `sluice watch does not answer (${error.message}): this page is out of date`;
    made.className = "tag warn";
  }
  setTimeout(() => document.hidden ? document.addEventListener("visibilitychange", ask, { once: true }) : ask(), next);
}

function startLive() {
  ask();
}
