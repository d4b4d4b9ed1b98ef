#include "tools/tune/tune_report.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "aio/bounded_json.h"
#include "aio/units.h"
#include "engine/observe/text_table.h"

namespace sluice::tools {
namespace {

using engine::decimals;
using Json = nlohmann::ordered_json;

std::string milliseconds(double seconds) {
  if (seconds <= 0) return "";
  return seconds < 10 ? decimals(1e3 * seconds, seconds < 0.1 ? 1 : 0) + " ms"
                      : decimals(seconds, 1) + " s";
}

std::string bytes(std::uint64_t count) { return count == 0 ? "" : format_bytes(count); }

std::string_view word_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::kStart:
      return "start";
    case Verdict::kFaster:
      return "faster";
    case Verdict::kNotFaster:
      return "not faster";
    case Verdict::kFailed:
      return "failed";
    case Verdict::kPruned:
      break;
  }
  return "not run";
}

std::string_view word_of(TuneEnd end) {
  switch (end) {
    case TuneEnd::kNothingFaster:
      return "no neighbouring configuration is faster";
    case TuneEnd::kTimeUsed:
      return "the time is used up";
    case TuneEnd::kTrialsUsed:
      return "the number of trials is used up";
    case TuneEnd::kInterrupted:
      break;
  }
  return "interrupted";
}

// A refusal may contain a table after its first line, which does not fit into a row.
std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

std::string name_of(const TuneReport& report, const TuneRow& row) {
  const std::string text = describe(report.dimensions, row.point);
  return text.empty() ? "as configured" : text;
}

std::string verdict_of(const TuneReport& report, std::size_t number) {
  const TuneRow& row = report.result.rows[number];
  const TuneResult& result = report.result;
  std::string text(result.best == number ? "best" : word_of(row.verdict));
  if (row.verdict == Verdict::kNotFaster && result.best) {
    const Trial& best = result.rows[*result.best].trial;
    text = row.trial.step_s > best.step_s + noise_s(best, row.trial) ? "slower"
                                                                     : "within noise of the best";
  }
  return row.reason.empty() ? text : text + ": " + first_line(row.reason);
}

std::string conclusion(const TuneReport& report) {
  const TuneResult& result = report.result;
  if (!result.best) return "No trial was completed.\n";
  const TuneRow& best = result.rows[*result.best];
  std::string text;
  if (*result.best == 0) {
    text = "No trial was faster than the unchanged configuration";
  } else {
    text = "Best: " + name_of(report, best) + ": " + outcome_of(best);
    const double gain = result.confirmation ? result.confirmation->gain() : 0;
    if (gain > 0)
      text += ".\nMeasured again alternately, it is " + decimals(gain, 3) + " times as fast as " +
              "the unchanged configuration";
    const std::string failure = result.confirmation ? result.confirmation->failure : "";
    if (!failure.empty())
      text += ".\nMeasured again, it failed, and nothing is changed: " + first_line(failure);
    else if (!is_worth_it(result))
      text += ": the gain was noise, and nothing is changed";
  }
  return text + ". The search ended because " + std::string(word_of(result.end)) + ".\n";
}

Json json_of_row(const TuneReport& report, std::size_t number) {
  const TuneRow& row = report.result.rows[number];
  Json json{{"trial", number + 1},
            {"changes", describe(report.dimensions, row.point)},
            {"verdict", word_of(row.verdict)}};
  if (!row.reason.empty()) json["reason"] = row.reason;
  if (row.forecast.step_s > 0) json["predicted_step_s"] = row.forecast.step_s;
  if (row.verdict == Verdict::kPruned) return json;
  json["took_s"] = row.trial.took_s;
  if (!row.trial.measured() || row.verdict == Verdict::kFailed) return json;
  json["step_s"] = row.trial.step_s;
  json["step_error_s"] = row.trial.error_s;
  json["tokens_per_s"] = row.trial.tokens_per_s;
  json["gpu_bytes"] = row.trial.gpu_bytes;
  json["host_bytes"] = row.trial.host_bytes;
  return json;
}

// The lines of `left`, padded to equal width, each followed by a word.
std::string beside(const std::string& left, const std::vector<std::string>& words) {
  std::vector<std::string> lines;
  std::size_t width = 0;
  for (std::size_t begin = 0; begin < left.size();) {
    const std::size_t end = left.find('\n', begin);
    lines.push_back(left.substr(begin, end - begin));
    width = std::max(width, lines.back().size());
    begin = end + 1;
  }
  std::string text;
  for (std::size_t i = 0; i < lines.size(); ++i)
    text += lines[i] + std::string(width - lines[i].size(), ' ') + "  " + words[i] + "\n";
  return text;
}

}  // namespace

bool is_worth_it(const TuneResult& result) {
  if (!result.best) return false;
  if (!result.confirmation) return true;
  if (!result.confirmation->failure.empty()) return false;
  const double gain = result.confirmation->gain();
  return gain == 0 || gain > 1;
}

std::string outcome_of(const TuneRow& row) {
  if (!row.reason.empty()) return row.reason;
  return "step " + milliseconds(row.trial.step_s) + ", " + decimals(row.trial.tokens_per_s, 0) +
         " tokens/s";
}

std::string table_of(const TuneReport& report) {
  std::vector<engine::TextRow> rows = {
      {"trial", "predicted", "step", "tokens/s", "GPU", "host", "took"}};
  // Only numbers are right-aligned: the words follow them.
  std::vector<std::string> words = {"changed: verdict"};
  for (std::size_t i = 0; i < report.result.rows.size(); ++i) {
    const TuneRow& row = report.result.rows[i];
    const bool measured = row.trial.step_s > 0;
    rows.push_back({std::to_string(i + 1), milliseconds(row.forecast.step_s),
                    milliseconds(row.trial.step_s),
                    measured ? decimals(row.trial.tokens_per_s, 0) : "", bytes(row.trial.gpu_bytes),
                    bytes(row.trial.host_bytes),
                    row.trial.took_s > 0 ? engine::duration(row.trial.took_s) : ""});
    words.push_back(name_of(report, row) + ": " + verdict_of(report, i));
  }
  std::string text = beside(engine::aligned(rows), words);
  for (const std::string& key : report.kept)
    text.append("Not varied, because the configuration sets it: ")
        .append(key)
        .append(" (--vary ")
        .append(key)
        .append(" tries others)\n");
  return text + conclusion(report);
}

std::string json_of(const TuneReport& report) {
  const TuneResult& result = report.result;
  Json json{{"ended", word_of(result.end)}, {"trials", Json::array()}};
  for (std::size_t i = 0; i < result.rows.size(); ++i)
    json["trials"].push_back(json_of_row(report, i));
  if (result.best) {
    Json keys = Json::object();
    for (const KeyValue& one : report.best_keys) keys[one.key] = json_or_discarded<Json>(one.json);
    json["best"] = {
        {"trial", *result.best + 1}, {"keys", std::move(keys)}, {"worth_it", is_worth_it(result)}};
  }
  if (result.confirmation) {
    json["again"] = {{"start_step_s", result.confirmation->start_step_s},
                     {"best_step_s", result.confirmation->best_step_s},
                     {"gain", result.confirmation->gain()}};
    if (!result.confirmation->failure.empty())
      json["again"]["failure"] = result.confirmation->failure;
  }
  json["kept"] = report.kept;
  return json.dump(2, ' ', false, Json::error_handler_t::replace);
}

namespace {

void put(Json& root, std::string_view path, Json value) {
  Json* at = &root;
  for (std::size_t dot = path.find('.'); dot != std::string_view::npos; dot = path.find('.')) {
    at = &(*at)[std::string(path.substr(0, dot))];
    if (!at->is_object()) *at = Json::object();
    path.remove_prefix(dot + 1);
  }
  (*at)[std::string(path)] = std::move(value);
}

// Interprets text like resolve(): JSON, else a string.
Json value_of(const std::string& text) {
  Json value = json_or_discarded<Json>(text);
  return value.is_discarded() ? Json(text) : value;
}

std::string merged_text(const config::Sources& sources) {
  Json root = Json::object();
  if (sources.run_file) {
    const auto text = config::plain_json(*sources.run_file);
    if (text.ok()) root = json_or_discarded<Json>(*text);
  }
  if (!root.is_object()) return {};
  for (const std::string& override_text : sources.overrides) {
    const std::size_t equals = override_text.find('=');
    put(root, std::string_view(override_text).substr(0, equals),
        value_of(override_text.substr(equals + 1)));
  }
  return root.dump(2) + "\n";
}

}  // namespace

config::Sources with_changes(const config::Sources& sources, const std::vector<KeyValue>& changes) {
  config::Sources changed = sources;
  for (const KeyValue& change : changes)
    changed.overrides.push_back(change.key + "=" + change.json);
  return changed;
}

Result<std::string> merged_config(const config::Sources& sources,
                                  const std::vector<KeyValue>& changes) {
  const config::Sources changed = with_changes(sources, changes);
  SLUICE_ASSIGN_OR_RETURN(const config::Resolved wanted, config::resolve(changed));
  const std::string whole = config::to_json(wanted);
  if (sources.deepspeed) return whole;
  const std::string text = merged_text(changed);
  const auto resolved =
      config::resolve({.run_file = config::Source{.name = "the merged file", .text = text},
                       .deepspeed = {},
                       .overrides = {},
                       .world_size = sources.world_size,
                       .facts = sources.facts});
  const bool is_same =
      resolved.ok() && config::to_json(resolved->config) == config::to_json(wanted.config);
  return is_same ? text : whole;
}

}  // namespace sluice::tools
