#include "engine/observe/metric_keys.h"

#include <array>
#include <nlohmann/json.hpp>
#include <vector>

#include "engine/observe/event_log.h"
#include "engine/observe/step_metrics.h"
#include "engine/observe/text_table.h"

namespace sluice::engine {
namespace {

constexpr std::string_view kAlways = "always";
constexpr std::string_view kSinceTwo = "always since schema 2";
constexpr std::string_view kOfRunFiles = "since schema 3; not of modules of the Python package";
constexpr std::string_view kByNvml =
    "since schema 4, on GPUs, where libnvidia-ml.so.1 (NVML) can be loaded and says so";
constexpr std::string_view kBrokenDown = "with wall_clock_breakdown, since schema 3";

constexpr std::array kMetricKeys = {
    MetricKey{"schema", "", kSinceTwo, "4; files without it are of schema 1"},
    MetricKey{"step", "", kAlways, "the step's number in the run; the first is 1"},
    MetricKey{"tokens_seen", "tokens", kSinceTwo,
              "of the run so far with this step, all ranks', those of skipped steps too"},
    MetricKey{"unix_s", "s", kSinceTwo, "when the step ended, since 1970 by the system's clock"},
    MetricKey{"loss", "nats a token", kAlways,
              "mean over the step's tokens; null: it was not finite"},
    MetricKey{"lr", "", kAlways, "the learning rate of the step"},
    MetricKey{
        "grad_norm", "", kAlways,
        "of all gradients, before clipping; of a skipped step 0, or null where it was not finite"},
    MetricKey{"loss_scale", "", kAlways, "what the loss was multiplied by; 1 but for fp16"},
    MetricKey{"skipped", "", kAlways, "true: the gradients overflowed, and nothing was updated"},
    MetricKey{"tokens_per_s", "tokens/s", kAlways, "the step's tokens, all ranks', over its time"},
    MetricKey{"tflops_per_s", "TFLOP/s", kOfRunFiles,
              "products of forward and backward, all ranks', over the step's time; what is "
              "recomputed does not count"},
    MetricKey{"step_ms", "ms", kAlways, "the whole step, without evaluation and checkpoints"},
    MetricKey{"forward_ms", "ms", kAlways,
              "of it, forward with the head, without waiting for updates"},
    MetricKey{"backward_ms", "ms", kAlways, "of it, backward with recomputing"},
    MetricKey{"update_ms", "ms", kAlways, "the optimizer, under compute or not"},
    MetricKey{"update_exposed_ms", "ms", kAlways, "of it, what compute waited for"},
    MetricKey{"recompute_ms", "ms", kBrokenDown,
              "of backward, computing again what forward did not keep"},
    MetricKey{"await_params_ms", "ms", kBrokenDown,
              "of both passes, waiting for parameters: a copy, a gather or a drive"},
    MetricKey{"await_inputs_ms", "ms", kBrokenDown,
              "of both passes, waiting for what units were given, on its way out or back"},
    MetricKey{"nvme_read_bytes", "bytes", kAlways, "read from the drives during the step"},
    MetricKey{"nvme_write_bytes", "bytes", kAlways, "written to the drives during the step"},
    MetricKey{"h2d_bytes", "bytes", kAlways, "copied from the host to GPUs"},
    MetricKey{"d2h_bytes", "bytes", kAlways, "copied from GPUs to the host"},
    MetricKey{"gpu_peak_bytes", "bytes", kAlways,
              "the most that was allocated on the fullest GPU so far; 0: there is none"},
    MetricKey{"gpu_utilization_percent", "%", kByNvml,
              "of the step, the time in which some kernel ran on a GPU, however small: the mean of "
              "all ranks' GPUs, sampled five times a second; a step without a sample has the last "
              "one. Of "
              "modules of the Python package: of the first rank's GPU, since the step before"},
    MetricKey{"gpu_power_watts", "W", kByNvml,
              "what all ranks' GPUs drew, likewise; of a MIG instance the whole card's"},
    MetricKey{"gpu_throttled_percent", "%", kByNvml,
              "of the samples, those in which heat or the power supply held a GPU's clock down, "
              "the cap on its power aside; of the GPU that had most"},
    MetricKey{"host_pinned_bytes", "bytes", kAlways, "pinned or locked memory of the hosts"},
    MetricKey{"host_rss_bytes", "bytes", kAlways, "resident memory of the processes"},
    MetricKey{"val_loss", "nats a token", "after steps followed by an evaluation",
              "mean over the validation tokens; null: it was not finite"},
    MetricKey{"unit_hashes", "", "with run.hash_units, unless the step was skipped",
              "for each unit, XXH3-64 of its gradient and of its parameters, in hexadecimal"},
};

constexpr std::string_view kBegin = "begin";
constexpr std::string_view kCheckpoint = "checkpoint";

constexpr std::array kEventKeys = {
    MetricKey{"event", "", "all", "begin, checkpoint, warning or end"},
    MetricKey{"unix_s", "s", "all", "when, since 1970 by the system's clock"},
    MetricKey{"step", "", "all", "the last step done; of a checkpoint, the one it is of"},
    MetricKey{"schema", "", kBegin, "of this file: 1"},
    MetricKey{"steps", "", kBegin, "of the whole run, where that is known"},
    MetricKey{"tokens_per_step", "tokens", kBegin, "of all ranks, likewise"},
    MetricKey{"ranks", "", kBegin, "how many train together"},
    MetricKey{"build", "", kBegin, "version and commit, LibTorch's and CUDA's versions"},
    MetricKey{"machine", "", kBegin,
              "cpu, cores, ram_bytes, kernel, gpu; product_flops_per_s: the speed of large "
              "products on one GPU, as the probe measured it"},
    MetricKey{"model", "", kBegin,
              "family, parameters, trained_parameters; flops_per_token: forward, backward and "
              "recompute, of which the last need not be done for all units"},
    MetricKey{"tiers", "", kBegin,
              "for gpu, cpu and nvme: planned bytes, budget_bytes where it is known, and parts"},
    MetricKey{"plan", "", "begin, where the planner was asked",
              "the predicted step, as \"prediction\" of sluice plan --json has it"},
    MetricKey{"what_if", "", "begin, where the planner was asked",
              "what would make it faster, as sluice plan --json has it: with, step_s, "
              "tokens_per_s_ratio"},
    MetricKey{"config", "", kBegin,
              "keys that were given or derived: path, value, outcome, reason, source"},
    MetricKey{"bytes", "bytes", kCheckpoint, "its size"},
    MetricKey{"stopped_s", "s", kCheckpoint, "how long training stood still for it"},
    MetricKey{"took_s", "s", kCheckpoint, "until it was on the disk"},
    MetricKey{"failed", "", "checkpoint, if it was not saved", "why"},
    MetricKey{"text", "", "warning", "as the terminal has it"},
    MetricKey{"how", "", "end", "completed, interrupted or failed"},
    MetricKey{"reason", "", "end, if it failed", "what ended the run"},
};

constexpr std::string_view kMore =
    "## Parts\n\n"
    "With `run.log_part_mib` neither file grows beyond that size: it is renamed to "
    "`metrics.jsonl.1` "
    "(or `events.jsonl.1`),\nand a new one is begun. What had that name before is then `.2`, and "
    "so "
    "on, so the highest number is the oldest part; lines\nare never divided, and a number may be "
    "missing. `sluice report`, `sluice diff`, `sluice-log` and a resume read all parts.\n"
    "Where steps are run again, their lines go to `metrics-cut.jsonl`, from whichever part they "
    "were "
    "in.\n\n"
    "## sluice train --json-lines\n\n"
    "Standard output has JSON objects, one a line, and nothing else; standard error stays empty "
    "but "
    "for what a launcher\nof ranks, or a mistake in the command line, says.\n\n"
    "| `event` | keys |\n|---|---|\n"
    "| `step` | those of the step's line of metrics.jsonl |\n"
    "| `begin`, `checkpoint`, `end` | those of the event in events.jsonl |\n"
    "| `info`, `warning`, `error` | `unix_s`, `text` |\n"
    "| `text` | `unix_s`, `text`: a line of what would be shown otherwise, tables too |\n";

std::string table(std::span<const MetricKey> keys) {
  std::string text;
  std::size_t widest = 0;
  for (const MetricKey& key : keys) widest = std::max(widest, key.name.size());
  for (const MetricKey& key : keys) {
    const std::string margin(widest + 2, ' ');
    text += "  " + std::string(key.name) + std::string(widest - key.name.size() + 2, ' ');
    text += std::string(key.unit.empty() ? "" : "[" + std::string(key.unit) + "] ") +
            std::string(key.meaning) + "\n";
    if (key.when != kAlways) text += "  " + margin + std::string(key.when) + "\n";
  }
  return text;
}

nlohmann::ordered_json json_of(std::span<const MetricKey> keys) {
  auto list = nlohmann::ordered_json::array();
  for (const MetricKey& key : keys)
    list.push_back(
        {{"name", key.name}, {"unit", key.unit}, {"when", key.when}, {"meaning", key.meaning}});
  return list;
}

std::string rows(std::span<const MetricKey> keys) {
  std::string text = "| key | unit | when | meaning |\n|---|---|---|---|\n";
  for (const MetricKey& key : keys)
    text += "| `" + std::string(key.name) + "` | " + std::string(key.unit) + " | " +
            std::string(key.when) + " | " + std::string(key.meaning) + " |\n";
  return text;
}

}  // namespace

std::span<const MetricKey> metric_keys() { return kMetricKeys; }
std::span<const MetricKey> event_keys() { return kEventKeys; }

std::string describe_metrics() {
  return "metrics.jsonl: a JSON object a step, on a line of its own; schema " +
         std::to_string(kMetricsSchema) + "\n" + table(kMetricKeys) +
         "\nevents.jsonl: what happened between steps, likewise; schema " +
         std::to_string(kEventsSchema) + "\n" + table(kEventKeys) +
         "\nWith run.log_part_mib older lines are in metrics.jsonl.1, .2 and so on, the highest "
         "number being the\noldest part; of events.jsonl likewise.\n\n"
         "sluice train --json-lines: JSON objects with \"event\": step, with the keys of "
         "metrics.jsonl; begin,\ncheckpoint and end, with those of events.jsonl; info, warning, "
         "error and text, with unix_s and text\n";
}

std::string metrics_json() {
  const nlohmann::ordered_json all = {
      {"metrics", {{"schema", kMetricsSchema}, {"keys", json_of(kMetricKeys)}}},
      {"events", {{"schema", kEventsSchema}, {"keys", json_of(kEventKeys)}}}};
  return all.dump(2);
}

std::string metrics_page() {
  return "# What a run writes down about itself\n\n"
         "`sluice metrics --keys` prints this page, with `--json` for programs. A number that is "
         "not finite is `null`.\nReaders skip keys that they do not know, and refuse lines of a "
         "schema above theirs.\n\n"
         "## metrics.jsonl\n\nA JSON object a step, on a line of its own. Schema " +
         std::to_string(kMetricsSchema) +
         ".\nWith several ranks times are the slowest one's, and "
         "bytes the sum.\n\n" +
         rows(kMetricKeys) + "\n## events.jsonl\n\nWhat happened between steps. Schema " +
         std::to_string(kEventsSchema) +
         ".\nEach life of the run begins with `begin`; where the next one begins, or the file "
         "ends, "
         "without an `end`, it was killed\nor still goes on. Lines are only added: those of steps "
         "that were run again stay.\n\n" +
         rows(kEventKeys) + "\n" + std::string(kMore);
}

}  // namespace sluice::engine
