#include "tools/report/report_data.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <span>

#include "tools/report/json_text.h"

namespace sluice::report {
namespace {

using Bucket = StepSeries::Bucket;
using Buckets = std::span<const Bucket>;
using Cell = StepSeries::Cell;

constexpr std::size_t kMostBuckets = 1200;
constexpr std::size_t kMostBucketsOfAll = 2000;
constexpr std::size_t kLeastBuckets = 60;
constexpr int kDigits = 6;
constexpr int kCounterDigits = 14;  // for values that grow over the whole run
constexpr int kAllDigits = 17;

// Writes one member after another: "key": value.
class Members {
 public:
  explicit Members(std::string& out) : out_(out) { out_ += '{'; }
  ~Members() { out_ += '}'; }
  Members(const Members&) = delete;
  Members& operator=(const Members&) = delete;

  std::string& key(std::string_view name) {
    if (!first_) out_ += ',';
    first_ = false;
    append_string(out_, name);
    return out_ += ':';
  }
  void text(std::string_view name, std::string_view value) { append_string(key(name), value); }
  void number(std::string_view name, double value) { append_number(key(name), value, kAllDigits); }
  void number(std::string_view name, std::int64_t value) { key(name) += std::to_string(value); }

 private:
  std::string& out_;
  bool first_ = true;
};

template <typename List, typename Write>
void append_list(std::string& out, const List& list, const Write& write) {
  out += '[';
  bool first = true;
  for (const auto& one : list) {
    if (!first) out += ',';
    first = false;
    write(out, one);
  }
  out += ']';
}

void append_steps(std::string& out, const std::vector<std::int64_t>& steps) {
  append_list(out, steps, [](std::string& to, std::int64_t step) { to += std::to_string(step); });
}

void append_list_of(std::string& out, const StepList& list) {
  Members members(out);
  members.number("count", list.count);
  append_steps(members.key("steps"), list.steps);
}

void append_column(std::string& out, Buckets buckets, std::size_t column, int digits) {
  const auto cells = [&](const std::function<double(const Cell&)>& value) {
    return [=](std::string& to, const Bucket& bucket) {
      const Cell& cell = bucket.cells[column];
      append_number(to, cell.count > 0 ? value(cell) : std::numeric_limits<double>::quiet_NaN(),
                    digits);
    };
  };
  const Cell& first = buckets.front().cells[column];
  const bool same = std::all_of(buckets.begin(), buckets.end(), [&](const Bucket& it) {
    const Cell& cell = it.cells[column];
    return cell.count > 0 && cell.least == first.least && cell.most == first.least;
  });
  Members members(out);
  if (same) {
    append_number(members.key("all"), first.least, digits);
    return;
  }
  const bool counts_up = digits == kCounterDigits;
  append_list(members.key("v"), buckets, cells([=](const Cell& cell) {
                // A counter's value at a point is the one at the point's last step.
                return counts_up ? cell.most : cell.mean();
              }));
  const bool spreads = std::any_of(buckets.begin(), buckets.end(), [&](const Bucket& it) {
    return it.cells[column].count > 1 && it.cells[column].least < it.cells[column].most;
  });
  if (!spreads || counts_up) return;
  append_list(members.key("lo"), buckets, cells([](const Cell& cell) { return cell.least; }));
  append_list(members.key("hi"), buckets, cells([](const Cell& cell) { return cell.most; }));
}

bool counts_up(const std::string& name) {
  return name == "tokens_seen" || name == "unix_s" || name == "trained_s";
}

void append_columns(std::string& out, Buckets buckets) {
  Members columns(out);
  const std::vector<std::string>& names = metric_columns();
  for (std::size_t i = 0; i < names.size(); ++i) {
    const bool is_known = std::any_of(buckets.begin(), buckets.end(),
                                      [&](const Bucket& it) { return it.cells[i].count > 0; });
    if (is_known)
      append_column(columns.key(names[i]), buckets, i,
                    counts_up(names[i]) ? kCounterDigits : kDigits);
  }
}

// The points from index `from` on.
void append_series(std::string& out, const StepSeries& series, std::size_t from = 0) {
  const Buckets buckets = Buckets(series.buckets()).subspan(from);
  const auto steps = [&](std::int64_t Bucket::*member) {
    return [member](std::string& to, const Bucket& it) { to += std::to_string(it.*member); };
  };
  Members members(out);
  members.number("width", series.width());
  append_list(members.key("last"), buckets, steps(&Bucket::last_step));
  if (std::any_of(buckets.begin(), buckets.end(), [](const Bucket& it) { return it.lines > 1; })) {
    append_list(members.key("first"), buckets, steps(&Bucket::first_step));
    append_list(members.key("lines"), buckets, steps(&Bucket::lines));
  }
  append_columns(members.key("columns"), buckets);
}

void append_drives(std::string& out, const RunRecord& run) {
  Members members(out);
  members.number("read_bytes", run.metrics.nvme_read_bytes);
  members.number("write_bytes", run.metrics.nvme_write_bytes);
  if (!run.cut) return;
  members.number("again_lines", run.cut->lines);
  members.number("again_read_bytes", run.cut->nvme_read_bytes);
  members.number("again_write_bytes", run.cut->nvme_write_bytes);
}

void append_trace(std::string& out, const TraceFile& trace) {
  Members members(out);
  members.number("window_s", trace.window_s);
  append_list(members.key("tracks"), trace.tracks,
              [](std::string& to, const TraceFile::Track& track) {
                Members one(to);
                one.text("name", track.name);
                one.number("busy_s", track.busy_s);
                one.number("bytes", track.bytes);
              });
}

// Values that change with every step, without the series.
void append_counts(Members& members, const RunRecord& run) {
  append_list(members.key("notices"), run.notices, append_string);
  members.number("lines", run.metrics.lines);
  append_list_of(members.key("skipped"), run.metrics.skipped);
  append_list_of(members.key("not_finite"), run.metrics.not_finite_loss);
  append_list(members.key("gaps"), run.metrics.gaps, [](std::string& to, const StepGap& gap) {
    append_steps(to, {gap.first, gap.last});
  });
  append_drives(members.key("drives"), run);
}

void append_events(std::string& out, std::span<const std::string> events) {
  append_list(out, events,
              [](std::string& to, const std::string& event) { to += script_safe(event); });
}

// Values that hardly ever change.
void append_facts(Members& members, const RunRecord& run) {
  members.text("name", run.name);
  members.text("path", run.path);
  if (run.trace) append_trace(members.key("trace"), *run.trace);
  append_list(members.key("config"), run.config, [](std::string& to, const auto& key_and_value) {
    to += '[';
    append_string(to, key_and_value.first);
    append_string(to += ',', key_and_value.second);
    to += ']';
  });
  append_list(members.key("checkpoints"), run.checkpoints,
              [](std::string& to, const CheckpointFact& checkpoint) {
                Members one(to);
                one.number("step", checkpoint.step);
                one.number("bytes", static_cast<double>(checkpoint.bytes));
                one.text("state", checkpoint.state);
              });
}

void append_run(std::string& out, const RunRecord& run) {
  Members members(out);
  append_facts(members, run);
  append_counts(members, run);
  append_series(members.key("series"), run.metrics.series);
  append_events(members.key("events"), run.events.events);
}

}  // namespace

std::size_t buckets_for(std::size_t runs) {
  return std::clamp(kMostBucketsOfAll / std::max<std::size_t>(runs, 1), kLeastBuckets,
                    kMostBuckets);
}

std::string report_json(const std::vector<RunRecord>& runs, const ReportOptions& options) {
  std::string out;
  {
    Members members(out);
    members.text("format", "sluice-report");
    members.number("schema", std::int64_t{1});
    members.number("made_unix_s", options.made_unix_s);
    members.text("made_by", options.made_by);
    if (options.drive_tbw)
      members.number("drive_tbw", *options.drive_tbw);
    else
      members.key("drive_tbw") += "null";
    append_list(members.key("runs"), runs, append_run);
  }
  return out;
}

std::string increment_json(const RunRecord& run, const Increment& from) {
  std::string out;
  {
    Members members(out);
    if (from.with_facts) append_facts(members, run);
    append_counts(members, run);
    members.number("keep_points", static_cast<std::int64_t>(from.points));
    append_series(members.key("series"), run.metrics.series, from.points);
    members.number("keep_events", static_cast<std::int64_t>(from.events));
    append_events(members.key("events"),
                  std::span<const std::string>(run.events.events).subspan(from.events));
  }
  return out;
}

}  // namespace sluice::report
