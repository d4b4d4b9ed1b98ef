#include "tools/watch/web_pages.h"

#include <openssl/crypto.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <string_view>
#include <utility>

#include "aio/text.h"
#include "engine/data/sha256.h"
#include "engine/observe/metric_keys.h"
#include "tools/report/json_text.h"
#include "tools/report/report_page.h"
#include "tools/watch/frame.h"

namespace sluice::watch {
namespace {

using Runs = std::span<const RunFollower* const>;

// UTF-8 in any locale, with backslash and quotation mark escaped.
std::string label_text(std::string_view text) {
  std::string safe;
  for (const char c : without_controls(text)) {
    if (c == '\\' || c == '"') safe += '\\';
    safe += c;
  }
  return safe;
}

std::string sample_text(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return significant(value, kAllDigits);
}

struct Sample {
  std::string more_labels;  // ",tier=\"gpu\""
  double value = 0;
};

class Text {
 public:
  explicit Text(Runs runs) : runs_(runs) {}

  // Each run has any number of samples; a family without samples is left out.
  void family(const std::string& name, const char* type, const std::string& help,
              const std::function<std::vector<Sample>(const RunFollower&)>& samples) {
    std::string lines;
    for (const RunFollower* const run : runs_)
      for (const Sample& sample : samples(*run))
        lines += name + "{run=\"" + label_text(run->record().name) + "\"" + sample.more_labels +
                 "} " + sample_text(sample.value) + "\n";
    if (lines.empty()) return;
    out_ += "# HELP " + name + " " + help + "\n# TYPE " + name + " " + type + "\n" + lines;
  }
  void gauge(const std::string& name, const std::string& help,
             const std::function<std::optional<double>(const RunView&)>& value) {
    family(name, "gauge", help, one(value));
  }
  void counter(const std::string& name, const std::string& help,
               const std::function<std::optional<double>(const RunView&)>& value) {
    family(name, "counter", help, one(value));
  }
  std::string take() { return std::move(out_); }

 private:
  static std::function<std::vector<Sample>(const RunFollower&)> one(
      const std::function<std::optional<double>(const RunView&)>& value) {
    return [value](const RunFollower& run) {
      const auto found = value(run.view());
      return found ? std::vector<Sample>{{.more_labels = {}, .value = *found}}
                   : std::vector<Sample>{};
    };
  }

  Runs runs_;
  std::string out_;
};

double sum_of(const RunFollower& run, std::size_t column) {
  double sum = 0;
  for (const auto& bucket : run.record().metrics.series.buckets())
    if (bucket.cells[column].count > 0) sum += bucket.cells[column].sum;
  return sum;
}

// Adds a line's keys. Bytes per step are summed over the run; other values are the last line's.
void add_keys(Text& text) {
  for (const engine::MetricKey& key : engine::metric_keys()) {
    const std::size_t column = report::metric_column(key.name);
    if (column >= report::metric_columns().size()) continue;
    std::string name = "sluice_" + std::string(key.name);
    std::string help(key.meaning);
    std::replace(help.begin(), help.end(), '\n', ' ');
    std::replace(help.begin(), help.end(), '\\', '/');
    const bool is_traffic =
        key.unit == "bytes" && (key.meaning.find("during the step") != key.meaning.npos ||
                                key.meaning.starts_with("copied"));
    if (is_traffic) {
      text.family(
          name + "_total", "counter", help + ", summed over the run", [=](const RunFollower& run) {
            return run.view().lines > 0
                       ? std::vector<Sample>{{.more_labels = {}, .value = sum_of(run, column)}}
                       : std::vector<Sample>{};
          });
      continue;
    }
    double factor = 1;
    if (key.unit == "ms") {
      name = name.substr(0, name.size() - 3) + "_seconds";
      factor = 1e-3;
    } else if (key.name == "unix_s") {
      name = "sluice_last_step_timestamp_seconds";
    } else if (key.name == "tokens_per_s") {
      name = "sluice_tokens_per_second";
    } else if (key.unit == "TFLOP/s") {
      name = "sluice_flops_per_second";
      factor = 1e12;
    } else if (key.unit == "%") {
      name = name.substr(0, name.rfind("_percent")) + "_ratio";
      factor = 1e-2;
    } else if (key.unit == "nats per token") {
      name += "_nats";
    }
    const bool is_counter = key.name == "tokens_seen";
    if (is_counter) name += "_total";
    const bool is_val = key.name == "val_loss";
    text.family(name, is_counter ? "counter" : "gauge", help, [=](const RunFollower& run) {
      std::optional<double> value;
      if (is_val)
        value = run.view().val_loss;
      else if (run.view().last)
        value = run.view().last->value(key.name);
      // If the last step's loss is not finite, report NaN rather than the previous loss.
      if (!value && key.name == "loss" && run.view().last) value = std::nan("");
      return value ? std::vector<Sample>{{.more_labels = {}, .value = *value * factor}}
                   : std::vector<Sample>{};
    });
  }
}

void add_tiers(Text& text) {
  const auto of = [](std::optional<double> TierView::*member) {
    return [member](const RunFollower& run) {
      std::vector<Sample> samples;
      for (const TierView& tier : run.view().tiers)
        if (tier.*member)
          samples.push_back(
              {.more_labels = ",tier=\"" + tier.name + "\"", .value = *(tier.*member)});
      return samples;
    };
  };
  text.family("sluice_tier_planned_bytes", "gauge", "planned bytes of each tier",
              of(&TierView::planned_bytes));
  text.family("sluice_tier_budget_bytes", "gauge", "budget of each tier, if it has one",
              of(&TierView::budget_bytes));
}

}  // namespace

std::string exposition(Runs runs) {
  Text text(runs);
  text.gauge("sluice_step", "the last completed step",
             [](const RunView& view) -> std::optional<double> {
               return view.last ? static_cast<double>(view.last->step) : 0;
             });
  text.gauge("sluice_steps", "steps of the whole run, as configured",
             [](const RunView& view) -> std::optional<double> {
               if (!view.facts.total_steps) return std::nullopt;
               return static_cast<double>(*view.facts.total_steps);
             });
  text.family(
      "sluice_state", "gauge", "1 for the run's current state, 0 for all others",
      [](const RunFollower& run) {
        std::vector<Sample> samples;
        for (int i = 0; i <= static_cast<int>(RunPhase::kStopped); ++i) {
          const auto phase = static_cast<RunPhase>(i);
          samples.push_back({.more_labels = std::string(",state=\"") + phase_word(phase) + "\"",
                             .value = run.view().phase == phase ? 1.0 : 0.0});
        }
        return samples;
      });
  text.gauge("sluice_left_seconds", "time until the last step, at the speed of the last steps",
             [](const RunView& view) { return view.left_s; });
  add_keys(text);
  add_tiers(text);
  const auto count = [](std::int64_t RunView::*member) {
    return [member](const RunView& view) -> std::optional<double> {
      return static_cast<double>(view.*member);
    };
  };
  const auto event_count = [](std::int64_t RunFacts::*member) {
    return [member](const RunView& view) -> std::optional<double> {
      return static_cast<double>(view.facts.*member);
    };
  };
  text.counter("sluice_steps_skipped_total", "steps whose gradients overflowed",
               count(&RunView::skipped));
  text.counter("sluice_steps_not_finite_total", "steps whose loss was not finite",
               count(&RunView::not_finite));
  text.counter("sluice_checkpoints_total", "checkpoints saved",
               event_count(&RunFacts::checkpoints));
  text.counter("sluice_checkpoints_failed_total", "checkpoints that could not be saved",
               event_count(&RunFacts::failed_checkpoints));
  text.counter("sluice_warnings_total", "warnings", event_count(&RunFacts::warnings));
  text.counter("sluice_starts_total", "number of times the run was started or continued",
               event_count(&RunFacts::begins));
  text.gauge("sluice_last_checkpoint_timestamp_seconds", "when the last checkpoint was on the disk",
             [](const RunView& view) -> std::optional<double> {
               if (view.facts.last_checkpoint_unix_s <= 0) return std::nullopt;
               return view.facts.last_checkpoint_unix_s;
             });
  return text.take();
}

namespace {

constexpr std::size_t kMostKeptAnswers = 64;
constexpr std::size_t kMostCursors = 64;
constexpr std::size_t kMostCursorBytes = 200;
constexpr const char* kNoAnswer = "the runs' files cannot be read now; try again later";

std::string digest_of(std::string_view text) {
  data::Sha256 digest;
  digest.update(text);
  return digest.finish();
}

WebReply refusal(int status, const std::string& sentence) {
  return {.status = status, .body = sentence + "\n", .headers = {}};
}

// The value of a cookie; empty: not set.
std::string_view cookie_of(std::string_view all, std::string_view name) {
  while (!all.empty()) {
    std::string_view one = all.substr(0, all.find(';'));
    all.remove_prefix(std::min(all.size(), one.size() + 1));
    while (one.starts_with(' ')) one.remove_prefix(1);
    if (one.size() > name.size() && one.starts_with(name) && one[name.size()] == '=')
      return one.substr(name.size() + 1);
  }
  return {};
}

// "[::1]:8080" -> "[::1]", "localhost:80" -> "localhost"
std::string_view without_port(std::string_view host) {
  const std::size_t bracket = host.find(']');
  const std::size_t colon = host.find(':', bracket == host.npos ? 0 : bracket);
  return host.substr(0, colon);
}

std::string title_of(const std::vector<std::string>& names) {
  constexpr std::size_t kMostNames = 3;
  std::string text;
  for (std::size_t i = 0; i < names.size() && i < kMostNames; ++i)
    text += (i > 0 ? ", " : "") + names[i];
  return text + (names.size() > kMostNames ? " and more" : "") + " - sluice watch";
}

std::string json_number(double value) {
  std::string text;
  report::append_number(text, value, 14);
  return text;
}

}  // namespace

WebPages::WebPages(const RunWatcher& watcher, Options options)
    : watcher_(watcher), options_(std::move(options)) {
  // The page has no points yet: it requests them. It stays the same while the server runs.
  std::vector<report::RunRecord> empty;
  std::vector<std::string> names;
  for (const WatchSnapshot::Run& run : watcher_.snapshot()->runs) {
    names.push_back(run.view.name);
    empty.push_back(
        {.name = run.view.name,
         .path = run.view.path,
         .metrics = {.series = report::StepSeries(report::metric_columns().size(), 1)}});
  }
  const report::LivePage made = report::live_page(
      title_of(names), report::report_json(empty, {.made_unix_s = options_.now_unix_s(),
                                                   .made_by = options_.made_by,
                                                   .drive_tbw = {}}));
  html_ = made.html;
  policy_ = made.policy;
}

bool WebPages::is_token(std::string_view text) const {
  const std::string is = digest_of(text);
  const std::string wanted = digest_of(options_.token);
  return CRYPTO_memcmp(is.data(), wanted.data(), wanted.size()) == 0;
}

bool WebPages::may_see(const WebRequest& request) const {
  constexpr std::string_view kBearer = "Bearer ";
  if (options_.token.empty()) return true;
  const std::string_view header = request.authorization;
  if (header.starts_with(kBearer) && is_token(header.substr(kBearer.size()))) return true;
  const std::string_view cookie = cookie_of(request.cookie, options_.cookie_name);
  return (!cookie.empty() && is_token(cookie)) ||
         (!request.token.empty() && is_token(request.token));
}

WebReply WebPages::page() const {
  return {.type = "text/html; charset=utf-8",
          .body = html_,
          .headers = {{"Content-Security-Policy", policy_}}};
}

WebReply WebPages::data(const std::string& cursors) {
  std::vector<std::string> at;
  for (std::string_view rest = cursors; !rest.empty() && at.size() < kMostCursors;) {
    const std::string_view one = rest.substr(0, rest.find(','));
    at.emplace_back(one.substr(0, kMostCursorBytes));
    rest.remove_prefix(std::min(rest.size(), one.size() + 1));
  }
  std::string body = "{\"every_ms\":" + std::to_string(options_.every_ms) +
                     ",\"now_unix_s\":" + json_number(options_.now_unix_s()) + ",\"runs\":[";
  const bool had = watcher_.with_runs([&](std::uint64_t snapshot, const auto& runs) {
    if (snapshot != std::exchange(answered_, snapshot)) {
      increments_.clear();
      metrics_text_.clear();
    }
    for (std::size_t i = 0; i < runs.size(); ++i) {
      const RunFollower& run = *runs[i];
      const std::string cursor = i < at.size() ? at[i] : "0";
      const std::string key = std::to_string(i) + ":" + cursor;
      auto known = increments_.find(key);
      if (known == increments_.end()) {
        if (increments_.size() >= kMostKeptAnswers) increments_.clear();
        known = increments_.emplace(key, run.increment(cursor)).first;
      }
      const RunView& view = run.view();
      if (i > 0) body += ',';
      body += "{\"at\":\"" + run.cursor() + "\",\"live\":{\"kind\":\"" + phase_word(view.phase) +
              "\",\"text\":\"" + phase_word(view.phase) +
              "\",\"left_s\":" + json_number(view.left_s.value_or(std::nan(""))) +
              "},\"new\":" + known->second + "}";
    }
  });
  if (!had) return refusal(503, kNoAnswer);
  return {.type = "application/json", .body = body + "]}\n", .headers = {}};
}

WebReply WebPages::metrics() {
  const bool had = watcher_.with_runs([&](std::uint64_t snapshot, const auto& runs) {
    if (snapshot != std::exchange(answered_, snapshot)) {
      increments_.clear();
      metrics_text_.clear();
    }
    if (!metrics_text_.empty()) return;
    std::vector<const RunFollower*> all;
    all.reserve(runs.size());
    for (const auto& run : runs) all.push_back(run.get());
    metrics_text_ = exposition(all);
  });
  if (!had) return refusal(503, kNoAnswer);
  return {.type = kExpositionType, .body = metrics_text_, .headers = {}};
}

WebReply WebPages::reply(const WebRequest& request) {
  if (request.method != "GET" && request.method != "HEAD") {
    WebReply refused = refusal(405, "only GET and HEAD are supported");
    refused.headers.emplace_back("Allow", "GET, HEAD");
    return refused;
  }
  if (request.has_body) return refusal(413, "requests must not have a body");
  if (options_.token.empty()) {
    const std::string_view host = without_port(request.host);
    if (std::find(options_.hosts.begin(), options_.hosts.end(), host) == options_.hosts.end())
      return refusal(
          421, "this server does not have that name: open the address that sluice watch printed");
  }
  if (request.path == "/favicon.ico") return {.status = 204, .body = {}, .headers = {}};
  if (!may_see(request)) {
    WebReply refused =
        refusal(401, "a token is required: open the address that sluice watch printed");
    refused.headers.emplace_back("WWW-Authenticate", "Bearer");
    return refused;
  }
  if (request.path == "/") {
    if (options_.token.empty() || request.token.empty()) return page();
    // Removes the token from the address, where others may see it on the screen or in the history.
    WebReply moved = refusal(303, "see /");
    moved.headers = {{"Location", "/"},
                     {"Set-Cookie", options_.cookie_name + "=" + options_.token +
                                        "; Path=/; HttpOnly; SameSite=Lax"}};
    return moved;
  }
  if (request.path == "/data") return data(request.at);
  if (request.path == "/metrics") return metrics();
  return refusal(404, "the paths are /, /data and /metrics");
}

}  // namespace sluice::watch
