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
constexpr std::string_view kOfRunFiles = "since schema 3; not for modules of the Python package";
constexpr std::string_view kByNvml =
    "since schema 4, on GPUs, if libnvidia-ml.so.1 (NVML) can be loaded and reports it";
constexpr std::string_view kWithExperts =
    "models with experts, since schema 5; not for modules of the Python package";
constexpr std::string_view kBrokenDown = "with wall_clock_breakdown, since schema 3";

constexpr std::array kMetricKeys = {
    MetricKey{"schema", "", kSinceTwo, "5; files without this key have schema 1"},
    MetricKey{"step", "", kAlways, "the step's number in the run; the first is 1"},
    MetricKey{
        "tokens_seen", "tokens", kSinceTwo,
        "tokens of the run up to and including this step, over all ranks, including skipped steps"},
    MetricKey{"unix_s", "s", kSinceTwo, "when the step ended, as Unix time"},
    MetricKey{"loss", "nats per token", kAlways,
              "mean over the step's tokens, without the balance loss; null: not finite"},
    MetricKey{"balance_loss", "", "with model.router_aux_loss_coef, since schema 5",
              "the balance loss of experts, a mean over the micro-batches, before "
              "model.router_aux_loss_coef multiplies it; as large as model.experts_per_token if "
              "tokens are shared evenly"},
    MetricKey{"busiest_expert", "", kWithExperts,
              "for each layer, the tokens of the expert with the most, divided by an even share: 1 "
              "is even, and model.experts is one expert alone"},
    MetricKey{"idle_experts", "", kWithExperts, "for each layer, how many experts had no token"},
    MetricKey{"lr", "", kAlways, "the learning rate of the step"},
    MetricKey{"grad_norm", "", kAlways,
              "norm of all gradients, before clipping; of a skipped step 0, or null if not finite"},
    MetricKey{"loss_scale", "", kAlways, "loss scale; 1 except for fp16"},
    MetricKey{"skipped", "", kAlways, "true: the gradients overflowed, and nothing was updated"},
    MetricKey{"tokens_per_s", "tokens/s", kAlways,
              "tokens of the step over all ranks, divided by its time"},
    MetricKey{"tflops_per_s", "TFLOP/s", kOfRunFiles,
              "matrix products of forward and backward over all ranks, divided by the step's time; "
              "recomputation does not count"},
    MetricKey{"step_ms", "ms", kAlways, "the whole step, without evaluation and checkpoints"},
    MetricKey{"forward_ms", "ms", kAlways,
              "forward including the head, without waiting for updates"},
    MetricKey{"backward_ms", "ms", kAlways, "backward including recomputation"},
    MetricKey{"update_ms", "ms", kAlways,
              "the optimizer update, whether overlapped with compute or not"},
    MetricKey{"update_exposed_ms", "ms", kAlways, "the part of the update that compute waited for"},
    MetricKey{"recompute_ms", "ms", kBrokenDown, "recomputation within backward"},
    MetricKey{"await_params_ms", "ms", kBrokenDown,
              "forward and backward waiting for parameters: for a copy, a gather or a drive"},
    MetricKey{"await_inputs_ms", "ms", kBrokenDown,
              "forward and backward waiting for inputs of units to be moved out or back"},
    MetricKey{"nvme_read_bytes", "bytes", kAlways, "read from the drives during the step"},
    MetricKey{"nvme_write_bytes", "bytes", kAlways, "written to the drives during the step"},
    MetricKey{"h2d_bytes", "bytes", kAlways, "copied from the host to GPUs"},
    MetricKey{"d2h_bytes", "bytes", kAlways, "copied from GPUs to the host"},
    MetricKey{"gpu_peak_bytes", "bytes", kAlways,
              "peak of the memory allocated so far, on the GPU with the most; 0: no GPU"},
    MetricKey{"gpu_utilization_percent", "%", kByNvml,
              "share of the step's time in which any kernel ran on a GPU: the mean over all ranks' "
              "GPUs, sampled five times a second; a step without a sample has the previous value. "
              "For modules of the Python package: the first rank's GPU, since the previous step"},
    MetricKey{"gpu_power_watts", "W", kByNvml,
              "power of all ranks' GPUs together, sampled in the same way; for a MIG instance that "
              "of the whole card"},
    MetricKey{"gpu_throttled_percent", "%", kByNvml,
              "share of the samples in which heat or the power supply lowered a GPU's clock, "
              "except for its power cap; of the GPU with the most"},
    MetricKey{"host_pinned_bytes", "bytes", kAlways, "pinned or locked memory of the hosts"},
    MetricKey{"host_rss_bytes", "bytes", kAlways, "resident memory of the processes"},
    MetricKey{"val_loss", "nats per token", "after steps followed by an evaluation",
              "mean over the validation tokens; null: not finite"},
    MetricKey{"unit_hashes", "", "with run.hash_units, unless the step was skipped",
              "for each unit, XXH3-64 of its gradient and of its parameters, in hexadecimal"},
};

constexpr std::string_view kBegin = "begin";
constexpr std::string_view kCheckpoint = "checkpoint";

constexpr std::array kEventKeys = {
    MetricKey{"event", "", "all", "begin, checkpoint, warning, sample, early_stop or end"},
    MetricKey{"unix_s", "s", "all", "Unix time"},
    MetricKey{"step", "", "all", "the last completed step; for a checkpoint, its step"},
    MetricKey{"schema", "", kBegin, "schema of this file: 1"},
    MetricKey{"steps", "", kBegin, "of the whole run, if known"},
    MetricKey{"tokens_per_step", "tokens", kBegin, "over all ranks, if known"},
    MetricKey{"ranks", "", kBegin, "number of ranks"},
    MetricKey{"build", "", kBegin, "version and commit, versions of LibTorch and CUDA"},
    MetricKey{"machine", "", kBegin,
              "cpu, cores, ram_bytes, kernel, gpu; product_flops_per_s: the measured speed of "
              "large matrix products on one GPU"},
    MetricKey{"model", "", kBegin,
              "family, parameters, trained_parameters; flops_per_token: forward, backward and "
              "recompute, which not all units may need"},
    MetricKey{"tiers", "", kBegin,
              "for gpu, cpu and nvme: planned bytes, budget_bytes if known, and parts"},
    MetricKey{"plan", "", "begin, if the planner was used",
              "the predicted step, in the form of \"prediction\" in sluice plan --json"},
    MetricKey{"what_if", "", "begin, if the planner was used",
              "what would make it faster or write less, in the form of sluice plan --json: with, "
              "step_s, tokens_per_s_ratio, nvme_write_tb_per_day"},
    MetricKey{"config", "", kBegin,
              "keys that were given or derived: path, value, outcome, reason, source"},
    MetricKey{"bytes", "bytes", kCheckpoint, "its size"},
    MetricKey{"in_place_bytes", "bytes", "checkpoint, with run.checkpoint_in_place",
              "size of its records in the store"},
    MetricKey{"stopped_s", "s", kCheckpoint, "how long training paused for it"},
    MetricKey{"took_s", "s", kCheckpoint, "time until it was on the disk"},
    MetricKey{"failed", "", "checkpoint, if it was not saved", "why"},
    MetricKey{"text", "", "warning, sample, early_stop",
              "as shown on the terminal; for a sample the text that the model generated"},
    MetricKey{"prompt", "", "sample", "one of samples.prompts"},
    MetricKey{"tokens", "tokens", "sample", "number of generated tokens"},
    MetricKey{"ended", "", "sample", "true: the model ended the text"},
    MetricKey{"evaluations", "", "early_stop", "consecutive evaluations without a lower loss"},
    MetricKey{"lowest_loss", "nats per token", "early_stop",
              "the lowest validation loss of the run; null: none was finite"},
    MetricKey{"lowest_step", "", "early_stop", "its step"},
    MetricKey{"how", "", "end", "completed, interrupted or failed"},
    MetricKey{"reason", "", "end, if it failed", "what ended the run"},
};

constexpr std::string_view kMore =
    "## Parts\n\nWith `run.log_part_mib` neither file grows beyond that size: it is renamed to "
    "`metrics.jsonl.1` (or `events.jsonl.1`),\nand a new one is started. The file that had that "
    "name before becomes `.2`, and so on, so the highest number is the oldest\npart. Lines are "
    "never split, and numbers may be missing. `sluice report`, `sluice diff`, `sluice-log` and a "
    "resume read all\nparts. If steps are run again, their old lines are moved to "
    "`metrics-cut.jsonl`.\n\n## sluice train --json-lines\n\nStandard output contains only JSON "
    "objects, one per line. Standard error stays empty, except for messages of a launcher\nof "
    "ranks and about mistakes in the command line.\n\n| `event` | keys |\n|---|---|\n| `step` | "
    "those of the step's line of metrics.jsonl |\n| `begin`, `checkpoint`, `end` | those of the "
    "event in events.jsonl |\n| `info`, `warning`, `error` | `unix_s`, `text` |\n| `text` | "
    "`unix_s`, `text`: a line of the usual output, including tables |\n";

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
  return "metrics.jsonl: one JSON object per step and line; schema " +
         std::to_string(kMetricsSchema) + "\n" + table(kMetricKeys) +
         "\nevents.jsonl: what happened between steps, one JSON object per line; schema " +
         std::to_string(kEventsSchema) + "\n" + table(kEventKeys) +
         "\nWith run.log_part_mib older lines are in metrics.jsonl.1, .2 and so on; the highest "
         "number is the oldest\npart. The same holds for events.jsonl.\n\nsluice train "
         "--json-lines: JSON objects with \"event\": step, with the keys of metrics.jsonl; "
         "begin,\ncheckpoint and end, with those of events.jsonl; info, warning, error and text, "
         "with unix_s and text\n";
}

std::string metrics_json() {
  const nlohmann::ordered_json all = {
      {"metrics", {{"schema", kMetricsSchema}, {"keys", json_of(kMetricKeys)}}},
      {"events", {{"schema", kEventsSchema}, {"keys", json_of(kEventKeys)}}}};
  return all.dump(2);
}

std::string metrics_page() {
  return "# What a run records about itself\n\n`sluice metrics --keys` prints this page, with "
         "`--json` for programs. A number that is not finite is `null`.\nReaders skip unknown "
         "keys, and refuse lines of a newer schema.\n\n## metrics.jsonl\n\nOne JSON object per "
         "step and line. Schema " +
         std::to_string(kMetricsSchema) +
         ".\nWith several ranks, times are those of the slowest rank, and bytes are the sum.\n\n" +
         rows(kMetricKeys) + "\n## events.jsonl\n\nWhat happened between steps. Schema " +
         std::to_string(kEventsSchema) +
         ".\nEach attempt of the run starts with `begin`. If the next one starts, or the file "
         "ends, without an `end`, the attempt was\nkilled or is still running. Lines are only "
         "added: those of steps that were run again stay.\n\n" +
         rows(kEventKeys) + "\n" + std::string(kMore);
}

}  // namespace sluice::engine
