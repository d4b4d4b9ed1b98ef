#include "tools/watch/run_follower.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <utility>
#include <vector>

#include "aio/clock.h"
#include "aio/regular_file.h"
#include "engine/observe/log_parts.h"

namespace sluice::watch {
namespace {

constexpr std::size_t kBefore = 64;
constexpr std::size_t kBlock = std::size_t{256} << 10;

// The means over `lines`, each over those that have the value.
void measure(const std::vector<const StepLine*>& lines, RunView& view) {
  const auto mean = [&](const char* column) -> std::optional<double> {
    double sum = 0;
    std::int64_t count = 0;
    for (const StepLine* const line : lines)
      if (const auto value = line->value(column)) sum += *value, ++count;
    return count > 0 ? std::optional(sum / static_cast<double>(count)) : std::nullopt;
  };
  view.mean_of = static_cast<std::int64_t>(lines.size());
  view.tokens_per_s = mean("tokens_per_s");
  view.step_ms = mean("step_ms");
  view.nvme_read_bytes = mean("nvme_read_bytes");
  view.nvme_write_bytes = mean("nvme_write_bytes");
  view.h2d_bytes = mean("h2d_bytes");
  view.d2h_bytes = mean("d2h_bytes");
  view.gpu_utilization_percent = mean("gpu_utilization_percent");
  view.gpu_power_watts = mean("gpu_power_watts");
  view.gpu_throttled_percent = mean("gpu_throttled_percent");
  if (view.step_ms.value_or(0) > 0) {
    const std::array<std::optional<double>, 3> parts = {mean("forward_ms"), mean("backward_ms"),
                                                        mean("update_exposed_ms")};
    double rest = 1;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      view.parts[i] = std::clamp(parts[i].value_or(0) / *view.step_ms, 0.0, 1.0);
      rest -= view.parts[i];
    }
    view.parts[3] = std::max(0.0, rest);
    if (view.nvme_write_bytes)
      view.written_a_day = *view.nvme_write_bytes / *view.step_ms * 1e3 * 86400;
  }
}

// The seconds of a step, from line to line, and so including evaluations and checkpoints. 0:
// unknown.
double interval_s(const std::vector<const StepLine*>& lines) {
  if (lines.size() < 2) return 0;
  const auto newest = lines.front()->value("unix_s");
  const auto oldest = lines.back()->value("unix_s");
  const std::int64_t steps = lines.front()->step - lines.back()->step;
  if (!newest || !oldest || steps <= 0 || *newest <= *oldest) return 0;
  return (*newest - *oldest) / static_cast<double>(steps);
}

}  // namespace

class FileFollower::OpenFile {
 public:
  explicit OpenFile(const std::string& path) : path_(path), file_(aio::open_inside(path)) {
    if (file_.ok() && ::fstat(file_->get(), &info_) != 0)
      file_ = Error::from_errno(errno, {.operation = "look at", .path = path_});
  }

  bool is_missing() const {
    return !file_.ok() &&
           (file_.error().error_number() == ENOENT || file_.error().error_number() == ENOTDIR);
  }
  Status status() const { return file_.status(); }
  Identity identity() const { return {.device = info_.st_dev, .inode = info_.st_ino}; }
  std::int64_t size_bytes() const { return info_.st_size; }
  Result<std::size_t> read_at(std::int64_t offset_bytes, char* into, std::size_t bytes) const {
    for (;;) {
      const ssize_t got = ::pread(file_->get(), into, bytes, offset_bytes);
      if (got >= 0) return static_cast<std::size_t>(got);
      if (errno != EINTR) return Error::from_errno(errno, {.operation = "read", .path = path_});
    }
  }

 private:
  std::string path_;
  Result<aio::OwnedDescriptor> file_;
  struct stat info_ {};
};

FileFollower::FileFollower(std::string path, Sink sink)
    : path_(std::move(path)), sink_(std::move(sink)), lines_(sink_.line) {}

// Whether `file` is the one that was read last, with the same content so far.
bool FileFollower::continues(const OpenFile& file) const {
  if (!identity_ || file.identity() != *identity_ || file.size_bytes() < offset_bytes_)
    return false;
  std::string there(before_.size(), '\0');
  const auto got = file.read_at(offset_bytes_ - static_cast<std::int64_t>(there.size()),
                                there.data(), there.size());
  return got.ok() && *got == there.size() && there == before_;
}

Status FileFollower::read_rest(const OpenFile& file) {
  identity_ = file.identity();
  std::vector<char> block(kBlock);
  for (;;) {
    SLUICE_ASSIGN_OR_RETURN(const std::size_t got,
                            file.read_at(offset_bytes_, block.data(), block.size()));
    if (got == 0) return {};
    const std::string_view text(block.data(), got);
    offset_bytes_ += static_cast<std::int64_t>(got);
    before_.append(text.substr(got - std::min(got, kBefore)));
    before_.erase(0, before_.size() - std::min(before_.size(), kBefore));
    has_read_ = true;
    lines_.feed(text);
  }
}

// Reads the whole part, after the parts before it.
Status FileFollower::read_part(const std::string& part) {
  const OpenFile file(part);
  if (part == path_ && file.is_missing()) return {};
  SLUICE_RETURN_IF_ERROR(file.status());
  lines_.finish();
  offset_bytes_ = 0;
  before_.clear();
  return read_rest(file);
}

void FileFollower::begin_anew() {
  identity_.reset();
  offset_bytes_ = 0;
  before_.clear();
  lines_ = report::LineSplitter(sink_.line);
  if (std::exchange(has_read_, false)) sink_.restart();
}

Status FileFollower::poll() {
  const OpenFile file(path_);
  if (!file.is_missing()) SLUICE_RETURN_IF_ERROR(file.status());
  if (!file.is_missing() && continues(file)) return read_rest(file);
  if (identity_) {
    const OpenFile moved(path_ + ".1");
    if (moved.status().ok() && continues(moved)) {
      SLUICE_RETURN_IF_ERROR(read_rest(moved));
      if (file.is_missing()) return {};  // the next part is about to be created
      lines_.finish();
      offset_bytes_ = 0;
      before_.clear();
      return read_rest(file);
    }
  }
  return engine::visit_log_parts(
      path_, [this] { begin_anew(); }, [this](const std::string& part) { return read_part(part); });
}

namespace {

namespace fs = std::filesystem;

constexpr std::size_t kRecent = 256;
constexpr std::size_t kMeanOf = 20;

double seconds_of(const struct timespec& time) {
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Parses "1.2.3"; anything invalid gives fewer numbers.
std::vector<std::int64_t> numbers_of(std::string_view text) {
  std::vector<std::int64_t> numbers;
  constexpr std::size_t kMost = 8;
  while (!text.empty() && numbers.size() < kMost) {
    const std::string_view word = text.substr(0, text.find('.'));
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (error != std::errc{} || end != word.data() + word.size() || value < 0) return {};
    numbers.push_back(value);
    text.remove_prefix(std::min(text.size(), word.size() + 1));
  }
  return numbers;
}

bool begins_with(const std::vector<std::string>& list, const std::vector<std::string>& start) {
  return list.size() >= start.size() && std::equal(start.begin(), start.end(), list.begin());
}

}  // namespace

double RunFollower::steady_seconds() { return 1e-9 * static_cast<double>(SteadyClock().now_ns()); }

RunFollower::RunFollower(Options options)
    : options_(std::move(options)),
      record_{.name = options_.name.empty() ? report::run_name(options_.path) : options_.name,
              .path = options_.path,
              .metrics = {.series = report::StepSeries(report::metric_columns().size(),
                                                       options_.most_buckets)}},
      metrics_(options_.most_buckets, [this](const auto& step) { take_step(step); }),
      file_(options_.path + "/metrics.jsonl",
            {.restart =
                 [this] {
                   metrics_ = report::MetricsReader(options_.most_buckets,
                                                    [this](const auto& step) { take_step(step); });
                   too_long_lines_ = 0;
                   recent_.clear();
                   ++series_epoch_;
                 },
             .line = [this](const report::TextLine& line) { metrics_.take(line); }}) {}

void RunFollower::take_step(const report::MetricsReader::Step& step) {
  recent_.push_back({.step = step.step,
                     .skipped = step.skipped,
                     .values = {step.values.begin(), step.values.end()}});
  if (recent_.size() > kRecent) recent_.pop_front();
}

bool RunFollower::changed(const std::string& name, Stamp& stamp) {
  struct stat info {};
  Stamp now;
  if (::stat((options_.path + "/" + name).c_str(), &info) == 0) {
    now = {.inode = static_cast<std::int64_t>(info.st_ino),
           .size = info.st_size,
           .changed_ns = info.st_mtim.tv_sec * 1'000'000'000 + info.st_mtim.tv_nsec};
    if (S_ISREG(info.st_mode)) newest_unix_s_ = std::max(newest_unix_s_, seconds_of(info.st_mtim));
    is_there_ = true;
  }
  return std::exchange(stamp, now) != now;
}

void RunFollower::read_facts() {
  const std::string folder = options_.path + "/";
  std::array<bool, 4> is_new{};
  constexpr std::array<const char*, 4> kNames = {"events.jsonl", "config.json", "trace.json",
                                                 "metrics-cut.jsonl"};
  for (std::size_t i = 0; i < kNames.size(); ++i) is_new[i] = changed(kNames[i], stamps_[i]);
  if (std::none_of(is_new.begin(), is_new.end(), [](bool it) { return it; })) return;
  // Read all files again, so that notices about one file stay while another changes.
  report::RunRecord now{.name = record_.name, .path = record_.path, .metrics = record_.metrics};
  const std::vector<std::string> notices_before = std::exchange(file_notices_, {});
  std::error_code ignored;
  const bool has_trace = fs::exists(folder + kNames[2], ignored);
  if (!engine::log_parts(folder + kNames[0]).empty()) report::read_events(folder + kNames[0], now);
  if (stamps_[1] != Stamp{}) report::read_config(folder + kNames[1], now);
  if (has_trace) report::read_trace(folder + kNames[2], now);
  if (stamps_[3] != Stamp{}) report::read_cut(folder + kNames[3], now);
  // A last line that is still being written does not count.
  if (now.events.has_torn_end) stamps_[0].size = -1;
  file_notices_.insert(file_notices_.end(), now.notices.begin(), now.notices.end());
  if (!begins_with(now.events.events, record_.events.events)) ++events_epoch_;
  const bool is_noticed = file_notices_ != notices_before;
  if (is_noticed || is_new[1] || is_new[2] || is_new[3]) ++facts_version_;
  record_ = std::move(now);
  facts_ = facts_of(record_);
}

void RunFollower::follow_metrics() {
  const std::string error_before = std::exchange(metrics_error_, {});
  struct stat info {};
  if (::stat((options_.path + "/metrics.jsonl").c_str(), &info) == 0 && S_ISREG(info.st_mode)) {
    is_there_ = true;
    newest_unix_s_ = std::max(newest_unix_s_, seconds_of(info.st_mtim));
  }
  const std::int64_t rewrites = metrics_.rewrites();
  const std::int64_t epoch = series_epoch_;
  const Status read = file_.poll();
  metrics_.add_unreadable(file_.too_long_lines() - too_long_lines_);
  too_long_lines_ = file_.too_long_lines();
  if (!read.ok()) metrics_error_ = "the metrics cannot be read now: " + read.error().message();
  facts_version_ += metrics_error_ != error_before ? 1 : 0;
  const bool is_other = series_epoch_ != epoch;
  if (!is_other && metrics_.rewrites() != rewrites) ++series_epoch_;
  if (is_other || metrics_.file().lines != record_.metrics.lines ||
      metrics_.file().bad_lines != record_.metrics.bad_lines)
    record_.metrics = metrics_.file();
}

void RunFollower::poll() {
  is_there_ = false;
  newest_unix_s_ = 0;
  std::error_code ignored;
  if (fs::is_regular_file(options_.path + "/lock", ignored)) is_there_ = true;
  read_facts();
  follow_metrics();
  const Progress progress{.newest_unix_s = newest_unix_s_,
                          .lines = metrics_.file().lines + metrics_.file().bad_lines,
                          .events = static_cast<std::int64_t>(record_.events.events.size())};
  if (progress != progress_) {
    progress_ = progress;
    changed_s_ = options_.steady_s();
  }
  show();
}

RunObservation RunFollower::observation() const {
  RunObservation observation{
      .is_there = is_there_,
      .lock = options_.lock(options_.path),
      .end = facts_.end,
      .end_unix_s = facts_.end_unix_s,
      .has_begun = facts_.begins > 0,
      .begin_step = facts_.begin_step,
      .newest_unix_s = newest_unix_s_,
      .unchanged_s = options_.steady_s() - changed_s_,
      .total_steps = facts_.total_steps.value_or(0),
      .eval_every = facts_.eval_every,
      .checkpoint_every = facts_.checkpoint_every,
      .last_saved = std::max(facts_.last_attempt.value_or(0), facts_.begin_step)};
  if (!recent_.empty()) {
    observation.last_step = recent_.back().step;
    observation.last_step_unix_s = recent_.back().value("unix_s").value_or(0);
  }
  return observation;
}

// Computes the measured values over the last steps of this attempt.
void RunFollower::show() {
  RunView view{.name = record_.name, .path = record_.path, .facts = facts_};
  RunObservation seen = observation();
  const double now_s = options_.now_unix_s();
  std::vector<const StepLine*> lines;
  for (auto line = recent_.rbegin(); line != recent_.rend() && lines.size() < kMeanOf; ++line) {
    const auto time = line->value("unix_s");
    if (time && *time < facts_.begin_unix_s) break;
    lines.push_back(&*line);
  }
  if (lines.empty() && !recent_.empty()) lines.push_back(&recent_.back());
  measure(lines, view);
  seen.interval_s = interval_s(lines);
  if (seen.interval_s == 0 && view.step_ms) seen.interval_s = *view.step_ms / 1e3;
  view.phase = phase_of(seen, now_s);
  if (!recent_.empty()) {
    view.last = recent_.back();
    if (seen.last_step_unix_s > 0) view.since_last_s = std::max(0.0, now_s - seen.last_step_unix_s);
  }
  if (!is_over(view.phase) && seen.total_steps > seen.last_step && seen.interval_s > 0 &&
      !recent_.empty())
    view.left_s = static_cast<double>(seen.total_steps - seen.last_step) * seen.interval_s;
  show_totals(view);
  collect_notices(view.phase);
  view.notices = record_.notices;
  view_ = std::move(view);
}

void RunFollower::show_totals(RunView& view) const {
  const std::size_t val = report::metric_column("val_loss");
  for (const auto& bucket : record_.metrics.series.buckets()) {
    const auto& cell = bucket.cells[val];
    if (cell.count == 0) continue;
    view.val_loss = cell.mean();
    view.least_val_loss = std::min(view.least_val_loss.value_or(cell.least), cell.least);
  }
  view.lines = record_.metrics.lines;
  view.skipped = record_.metrics.skipped.count;
  view.not_finite = record_.metrics.not_finite_loss.count;
  view.written_bytes =
      record_.metrics.nvme_write_bytes + (record_.cut ? record_.cut->nvme_write_bytes : 0);
  view.read_bytes = record_.metrics.nvme_read_bytes;
  view.tiers = facts_.tiers;
  for (TierView& tier : view.tiers) {
    if (tier.name == "gpu" && view.last) tier.used_bytes = view.last->value("gpu_peak_bytes");
    if (tier.name == "cpu" && view.last) tier.used_bytes = view.last->value("host_rss_bytes");
  }
}

void RunFollower::collect_notices(RunPhase phase) {
  record_.notices = file_notices_;
  if (!metrics_error_.empty()) record_.notices.push_back(metrics_error_);
  report::MetricsFile told = record_.metrics;
  if (is_there_ && (told.lines > 0 || told.bad_lines > 0 || is_over(phase))) {
    told.has_torn_end = is_over(phase) && file_.has_torn_end();
    report::note_metrics(told, record_.notices);
  }
}

std::string RunFollower::cursor() const {
  const auto& series = record_.metrics.series;
  const std::int64_t last = series.buckets().empty() ? -1 : series.buckets().back().index;
  std::string text;
  for (const std::int64_t one :
       {series_epoch_, series.width(), last + 1, static_cast<std::int64_t>(series.buckets().size()),
        events_epoch_, static_cast<std::int64_t>(record_.events.events.size()), facts_version_,
        record_.metrics.lines + record_.metrics.bad_lines})
    text += (text.empty() ? "" : ".") + std::to_string(one);
  return text;
}

std::string RunFollower::increment(const std::string& cursor) const {
  if (cursor == this->cursor()) return "null";
  const std::vector<std::int64_t> had = numbers_of(cursor);
  report::Increment from;
  if (had.size() == 8) {
    const auto& buckets = record_.metrics.series.buckets();
    const auto points = static_cast<std::size_t>(had[3]);
    // The page's last point may have grown since.
    if (had[0] == series_epoch_ && had[1] == record_.metrics.series.width() && points > 0 &&
        points <= buckets.size() && buckets[points - 1].index + 1 == had[2])
      from.points = points - 1;
    if (had[4] == events_epoch_ && static_cast<std::size_t>(had[5]) <= record_.events.events.size())
      from.events = static_cast<std::size_t>(had[5]);
    from.with_facts = had[6] != facts_version_;
  }
  return report::increment_json(record_, from);
}

}  // namespace sluice::watch
