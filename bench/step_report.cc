#include "bench/step_report.h"

#include <functional>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "aio/units.h"
#include "bench/result_header.h"
#include "engine/config/resolve.h"
#include "engine/observe/text_table.h"
#include "tools/measure/quantile.h"

namespace sluice::bench {
namespace {

using engine::decimals;
using engine::TextRow;
using tools::GpuProfile;
using tools::MeasuredStep;
using tools::MemoryUse;
using tools::quantile;
using tools::StepMeasurement;
using Json = nlohmann::ordered_json;

constexpr std::size_t kShownKernels = 24;

using ValueOf = std::function<double(const MeasuredStep&)>;

std::vector<double> values_of(const StepMeasurement& measured, const ValueOf& value) {
  std::vector<double> values;
  values.reserve(measured.steps.size());
  for (const MeasuredStep& step : measured.steps) values.push_back(value(step));
  return values;
}

double step_seconds(const MeasuredStep& step) { return step.seconds; }

double seconds_of(std::int64_t ns) { return static_cast<double>(ns) * 1e-9; }

struct Part {
  const char* name;
  const char* key;
  double (*seconds)(const MeasuredStep&);
};

constexpr Part kParts[] = {
    {"forward", "forward_s", [](const MeasuredStep& s) { return seconds_of(s.times.forward_ns); }},
    {"backward", "backward_s",
     [](const MeasuredStep& s) { return seconds_of(s.times.backward_ns); }},
    {"update", "update_s", [](const MeasuredStep& s) { return seconds_of(s.times.update_ns); }},
    {"  of it waited for", "update_exposed_s",
     [](const MeasuredStep& s) { return seconds_of(s.times.update_exposed_ns); }},
};

struct Flow {
  const char* name;
  const char* key;
  std::uint64_t engine::TrainingRun::Traffic::*bytes;
};

constexpr Flow kFlows[] = {
    {"NVMe read", "nvme_read_bytes", &engine::TrainingRun::Traffic::nvme_read_bytes},
    {"NVMe written", "nvme_write_bytes", &engine::TrainingRun::Traffic::nvme_write_bytes},
    {"host to GPU", "h2d_bytes", &engine::TrainingRun::Traffic::h2d_bytes},
    {"GPU to host", "d2h_bytes", &engine::TrainingRun::Traffic::d2h_bytes},
};

double a_step(const StepMeasurement& measured, std::uint64_t bytes) {
  return measured.moved_steps == 0 ? 0 : static_cast<double>(bytes) / measured.moved_steps;
}

std::uint64_t less(std::uint64_t value, std::uint64_t by) { return value > by ? value - by : 0; }

std::string percent(double share) { return decimals(100 * share, 1) + "%"; }

std::string time_table(const StepReport& report) {
  const StepMeasurement& measured = report.measured;
  const double median = report.median_step_seconds();
  std::vector<TextRow> rows = {{"time", "median", "share", "quartiles"}};
  const auto add = [&](const char* name, const std::vector<double>& values) {
    rows.push_back({name, decimals(1e3 * quantile(values, 0.5), 1) + " ms",
                    percent(quantile(values, 0.5) / median),
                    decimals(1e3 * quantile(values, 0.25), 1) + " to " +
                        decimals(1e3 * quantile(values, 0.75), 1) + " ms"});
  };
  add("step", values_of(measured, step_seconds));
  for (const Part& part : kParts) add(part.name, values_of(measured, part.seconds));
  return engine::aligned(rows);
}

std::string memory_table(const StepReport& report) {
  const StepMeasurement& measured = report.measured;
  const double parameters = static_cast<double>(report.parameters);
  std::vector<TextRow> rows = {{"memory", "bytes", "a parameter", "planned"}};
  const auto add = [&](const char* name, std::uint64_t bytes, std::uint64_t planned) {
    if (bytes == 0) return;
    rows.push_back({name, format_bytes(bytes), decimals(static_cast<double>(bytes) / parameters, 2),
                    planned == 0 ? "" : format_bytes(planned)});
  };
  add("GPU, LibTorch's peak", measured.gpu_peak_bytes, report.planned_gpu_bytes);
  add("GPU, all of the run", less(measured.memory.gpu_used_bytes, report.before.gpu_used_bytes), 0);
  add("host, resident at most", measured.memory.peak_resident_bytes, report.planned_host_bytes);
  add("  of it since CUDA was there",
      less(measured.memory.peak_resident_bytes, report.before.resident_bytes), 0);
  add("host, taken of the machine",
      less(report.before.available_bytes, measured.memory.available_bytes), 0);
  add("host, pinned for the GPU", measured.gpu_pinned_bytes, 0);
  add("host, pinned by the kernel", measured.memory.pinned_bytes, 0);
  return engine::aligned(rows);
}

std::string flow_table(const StepReport& report) {
  std::vector<TextRow> rows = {{"moved", "a step", "a parameter", "GB/s"}};
  for (const Flow& flow : kFlows) {
    const double bytes = a_step(report.measured, report.measured.moved.*flow.bytes);
    if (bytes == 0) continue;
    rows.push_back({flow.name, format_bytes(static_cast<std::uint64_t>(bytes)),
                    decimals(bytes / static_cast<double>(report.parameters), 4),
                    decimals(bytes / report.median_step_seconds() * 1e-9, 2)});
  }
  return rows.size() == 1 ? std::string() : engine::aligned(rows);
}

Json json_of(const MemoryUse& use) {
  return Json{{"resident_bytes", use.resident_bytes},
              {"peak_resident_bytes", use.peak_resident_bytes},
              {"pinned_bytes", use.pinned_bytes},
              {"available_bytes", use.available_bytes},
              {"gpu_used_bytes", use.gpu_used_bytes}};
}

Json kernels_json(const std::vector<GpuProfile::Kernel>& kernels) {
  Json list = Json::array();
  for (const GpuProfile::Kernel& kernel : kernels)
    list.push_back({{"name", kernel.name}, {"calls", kernel.calls}, {"seconds", kernel.seconds}});
  return list;
}

Json profile_json(const GpuProfile& profile) {
  return Json{{"steps", profile.steps},
              {"wall_s", profile.wall_seconds},
              {"busy_s", profile.busy_seconds},
              {"copying_s", profile.copying_seconds},
              {"kernels", kernels_json(profile.kernels)},
              {"copies", kernels_json(profile.copies)}};
}

Json steps_json(const StepMeasurement& measured) {
  Json steps = Json::array();
  for (const MeasuredStep& step : measured.steps) {
    Json one{{"seconds", step.seconds}, {"loss", step.loss}, {"skipped", step.skipped}};
    for (const Part& part : kParts) one[part.key] = part.seconds(step);
    steps.push_back(std::move(one));
  }
  return steps;
}

Json median_json(const StepReport& report) {
  if (report.measured.steps.empty()) return nullptr;
  Json median{{"step_s", report.median_step_seconds()},
              {"step_s_quartiles",
               {quantile(values_of(report.measured, step_seconds), 0.25),
                quantile(values_of(report.measured, step_seconds), 0.75)}},
              {"tokens_per_s", report.tokens_per_second()}};
  for (const Part& part : kParts)
    median[part.key] = quantile(values_of(report.measured, part.seconds), 0.5);
  return median;
}

Json flows_json(const StepReport& report) {
  Json flows{{"steps", report.measured.moved_steps}};
  for (const Flow& flow : kFlows) {
    const double bytes = a_step(report.measured, report.measured.moved.*flow.bytes);
    flows[flow.key] = {{"a_step", bytes},
                       {"a_parameter", bytes / static_cast<double>(report.parameters)}};
  }
  return flows;
}

}  // namespace

double StepReport::median_step_seconds() const {
  return quantile(values_of(measured, step_seconds), 0.5);
}

double StepReport::tokens_per_second() const {
  return static_cast<double>(tokens_per_step) / median_step_seconds();
}

std::string StepReport::table() const {
  const MeasuredStep& last = measured.steps.back();
  std::string text = "\n" + std::to_string(measured.steps.size()) + " steps of " +
                     std::to_string(tokens_per_step) +
                     " tokens: " + decimals(1e3 * median_step_seconds(), 1) +
                     " ms in the median, " + decimals(tokens_per_second(), 0) + " tokens/s; loss " +
                     decimals(measured.steps.front().loss, 3) + " to " + decimals(last.loss, 3) +
                     "; set up in " + engine::duration(setup_seconds) + "\n";
  if (predicted_step_s) {
    text += "predicted " + decimals(1e3 * *predicted_step_s, 1) + " ms; step / prediction " +
            decimals(median_step_seconds() / *predicted_step_s, 3) + "\n";
  }
  if (waves && waves->count() > 1) {
    text += std::to_string(waves->count()) + " waves of " + std::to_string(waves->of_a_wave) +
            " of the step's " + std::to_string(waves->micro_batches) + " micro-batches\n";
  }
  text += '\n';
  text += time_table(*this) + "\n" + memory_table(*this);
  if (const std::string flows = flow_table(*this); !flows.empty()) text += "\n" + flows;
  if (profile) text += "\n" + profile->table(kShownKernels);
  return text;
}

std::string StepReport::json(const aio::MachineInfo& machine, const std::string& command) const {
  Json json = result_header(machine, command);
  if (!options.commit.empty()) json["commit"] = options.commit;
  json["parameters"] = parameters;
  json["untied_embedding_parameters"] = untied_embedding;
  json["tokens_per_step"] = tokens_per_step;
  json["out_of_memory"] = out_of_memory.has_value();
  if (out_of_memory) json["error"] = *out_of_memory;
  json["interrupted"] = measured.interrupted;
  json["setup_s"] = setup_seconds;
  if (predicted_step_s) json["predicted_step_s"] = *predicted_step_s;
  if (!gpu.empty()) json["gpu"] = {{"name", gpu}, {"product_flops_per_s", gpu_product_flops_per_s}};
  if (waves) {
    json["micro_batches"] = waves->micro_batches;
    json["waves"] = waves->count();
    json["wave_micro_batches"] = waves->of_a_wave;
  }
  json["planned"] = {{"gpu_bytes", planned_gpu_bytes},
                     {"host_bytes", planned_host_bytes},
                     {"nvme_bytes", planned_nvme_bytes}};
  json["median"] = median_json(*this);
  json["moved"] = flows_json(*this);
  json["memory"] = {{"before", json_of(before)},
                    {"after", json_of(measured.memory)},
                    {"gpu_peak_bytes", measured.gpu_peak_bytes},
                    {"gpu_pinned_bytes", measured.gpu_pinned_bytes}};
  if (profile) json["profile"] = profile_json(*profile);
  json["drain_s"] = measured.drain_seconds;
  json["warmup_s"] = measured.warmup_seconds;
  json["steps"] = steps_json(measured);
  json["config"] = Json::parse(config::to_json(config));
  return text_of(json);
}

}  // namespace sluice::bench
