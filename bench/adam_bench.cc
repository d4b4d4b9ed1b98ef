// adam_bench: measures the CPU AdamW kernels, or the gradient's cast, against what the machine's
// memory can do. See --help.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "aio/executor.h"
#include "aio/machine_info.h"
#include "aio/page_memory.h"
#include "aio/units.h"
#include "bench/adam_measure.h"
#include "bench/adam_options.h"
#include "bench/bench_program.h"
#include "bench/kernel_workload.h"
#include "bench/result_header.h"
#include "offload/adamw/adamw.h"
#include "offload/adamw/grad_stats.h"
#include "offload/adamw/half.h"
#include "offload/adamw/moment_rounding.h"
#include "offload/adamw/split_master.h"
#include "tools/support/interrupt.h"
#include "tools/support/progress_line.h"

namespace sluice::bench {
namespace {

// The output of adam_bench: a table for people, JSON for programs.
struct AdamReport {
  const AdamBenchOptions& options;
  const std::vector<AdamRun>& runs;
  aio::PageKind page_kind;

  std::string table() const;
  std::string json(const aio::MachineInfo& machine, const std::string& command) const;
};

using Json = nlohmann::ordered_json;

// Quantile of the sorted values, by linear interpolation.
double quantile(std::vector<double> values, double fraction) {
  std::sort(values.begin(), values.end());
  const double place = fraction * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (place - static_cast<double>(below)) * (values[above] - values[below]);
}
double median(const std::vector<double>& values) { return quantile(values, 0.5); }
double spread(const std::vector<double>& values) {
  return quantile(values, 0.75) - quantile(values, 0.25);
}

template <typename Value>
std::vector<double> each(const std::vector<AdamRun>& runs, const Value& value) {
  std::vector<double> values;
  values.reserve(runs.size());
  for (const AdamRun& run : runs) values.push_back(value(run));
  return values;
}

// One kind of traffic, with the faster of its stores.
struct Limit {
  PlainPass pass;
  std::vector<double> gb_per_s;
};

std::vector<Limit> limits_of(const AdamBenchOptions& options, const std::vector<AdamRun>& runs) {
  std::vector<Limit> limits;
  const std::vector<PlainPass> passes = yardsticks_of(options);
  for (std::size_t i = 0; i < passes.size(); ++i) {
    Limit limit{passes[i], each(runs, [i](const AdamRun& run) { return run.plain_gb_per_s[i]; })};
    if (limits.empty() || limits.back().pass.traffic != limit.pass.traffic)
      limits.push_back(std::move(limit));
    else if (median(limit.gb_per_s) > median(limits.back().gb_per_s))
      limits.back() = std::move(limit);
  }
  return limits;
}

std::vector<double> kernel_gb_per_s(const AdamReport& report) {
  return each(report.runs, [&](const AdamRun& run) {
    return 1e-9 * run.kernel_elements_per_s * report.options.bytes_per_element();
  });
}

std::vector<double> kernel_giga_per_s(const AdamReport& report) {
  return each(report.runs, [](const AdamRun& run) { return 1e-9 * run.kernel_elements_per_s; });
}

std::vector<double> ratios(const std::vector<double>& values, const std::vector<double>& to) {
  std::vector<double> result;
  result.reserve(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) result.push_back(values[i] / to[i]);
  return result;
}

std::string row(const std::string& name, const std::vector<double>& values, int decimals,
                const std::string& note = "") {
  char text[160];
  std::snprintf(text, sizeof text, "%-20s %9.*f %9.*f", name.c_str(), decimals, median(values),
                decimals, spread(values));
  return text + (note.empty() ? "" : "   " + note) + "\n";
}

std::string note_on(PlainPass pass) {
  if (pass.traffic == Traffic::kRead) return "nothing written";
  return std::string(pass.traffic == Traffic::kCopy ? "a byte written for each one read, "
                                                    : "a byte written for every two read, ") +
         std::string(to_string(pass.stores)) + " stores";
}

std::string heading(const AdamBenchOptions& options, aio::PageKind page_kind) {
  const bool adamw = options.kernel == BenchKernel::kAdamw;
  std::string text = adamw ? "AdamW: " + options.grad_name + " gradient, " + options.master_name +
                                 " master, " + options.moments_name + " moments, "
                           : "fp32 gradient, cast to " + options.grad_name + ", and its squares: ";
  text += format_bytes(options.elements) + " elements, " + std::string(to_string(options.isa)) +
          ", " + std::to_string(options.threads) +
          (options.threads == 1 ? " thread, " : " threads, ") + std::string(to_string(page_kind));
  if (options.stagger_lines > 0)
    text += ", staggered by " + std::to_string(options.stagger_lines) + " lines";
  char times[64];
  std::snprintf(times, sizeof times, ", %d x %g s\n\n", options.runs, options.seconds);
  return text + times;
}

std::string AdamReport::table() const {
  const bool adamw = options.kernel == BenchKernel::kAdamw;
  const std::string name = adamw ? "AdamW" : "cast";
  const std::string share = name + " / ";
  const std::vector<double> gb_per_s = kernel_gb_per_s(*this);
  std::string text = heading(options, page_kind) + std::string(24, ' ') + "median       IQR\n";
  text += row(name + (adamw ? ", G params/s" : ", G elements/s"), kernel_giga_per_s(*this), 3);
  text += row(name + ", GB/s", gb_per_s, 2,
              std::to_string(options.bytes_per_element()) +
                  (adamw ? " bytes per parameter" : " bytes per element"));
  for (const Limit& limit : limits_of(options, runs)) {
    const std::string traffic(to_string(limit.pass.traffic));
    text += row(traffic + ", GB/s", limit.gb_per_s, 2, note_on(limit.pass));
    text += row(share + traffic, ratios(gb_per_s, limit.gb_per_s), 3);
  }
  return text;
}

std::string AdamReport::json(const aio::MachineInfo& machine, const std::string& command) const {
  const bool adamw = options.kernel == BenchKernel::kAdamw;
  const std::string name = adamw ? "adam" : "cast";
  const std::string share = name + "_over_";
  const std::string giga_per_s = name + (adamw ? "_gparams_per_s" : "_gelements_per_s");
  const std::vector<double> gb_per_s = kernel_gb_per_s(*this);
  const std::vector<PlainPass> passes = yardsticks_of(options);

  Json json = result_header(machine, command);
  json["elements"] = options.elements;
  if (adamw) {
    json["grad"] = options.grad_name;
    json["master"] = options.master_name;
    json["moments"] = options.moments_name;
  } else {
    json["cast"] = options.grad_name;
  }
  json["isa"] = to_string(options.isa);
  json["threads"] = options.threads;
  json["pages"] = to_string(page_kind);
  json["stagger_lines"] = options.stagger_lines;
  json["seconds"] = options.seconds;
  json[adamw ? "bytes_per_param" : "bytes_per_element"] = options.bytes_per_element();

  json["runs"] = Json::array();
  for (std::size_t i = 0; i < runs.size(); ++i) {
    Json run = {{giga_per_s, 1e-9 * runs[i].kernel_elements_per_s},
                {name + "_gb_per_s", gb_per_s[i]}};
    for (std::size_t j = 0; j < passes.size(); ++j)
      run[std::string(to_string(passes[j].traffic)) + "_gb_per_s"]
         [std::string(to_string(passes[j].stores))] = runs[i].plain_gb_per_s[j];
    json["runs"].push_back(std::move(run));
  }

  Json medians = {{giga_per_s, median(kernel_giga_per_s(*this))},
                  {name + "_gb_per_s", median(gb_per_s)}};
  for (const Limit& limit : limits_of(options, runs)) {
    const std::string traffic(to_string(limit.pass.traffic));
    json["best_" + traffic] = to_string(limit.pass.stores);
    medians[traffic + "_gb_per_s"] = median(limit.gb_per_s);
    medians[share + traffic] = median(ratios(gb_per_s, limit.gb_per_s));
  }
  json["median"] = std::move(medians);
  return text_of(json);
}

// AdamWorkload: one AdamW problem in memory. A pass is one step over all parameters.
class AdamWorkload final : public KernelWorkload {
 public:
  static Result<std::unique_ptr<KernelWorkload>> create(const AdamBenchOptions& options,
                                                        aio::Executor& executor);
  void pass() override;

 private:
  AdamWorkload(const AdamBenchOptions& options, aio::Executor& executor);
  Status map_arrays();
  void fill(std::uint64_t begin, std::uint64_t end);

  const std::uint64_t elements_;
  const offload::Isa isa_;
  const offload::AdamwScalars scalars_;
  offload::AdamwArrays arrays_;
};

using offload::ElementType;
using offload::GradType;
using offload::ParamForm;

AdamWorkload::AdamWorkload(const AdamBenchOptions& options, aio::Executor& executor)
    : KernelWorkload(executor, options.stagger_lines),
      elements_(options.elements),
      isa_(options.isa),
      scalars_(offload::make_adamw_scalars({.learning_rate = 1e-4,
                                            .weight_decay = 0.01,
                                            .step = 1000,
                                            .grad_norm = 2,
                                            .clip_norm = 1})
                   .value()) {
  arrays_.grad_type = options.grad;
  arrays_.param_form = options.form.param;
  arrays_.moment_type = options.form.moments;
  arrays_.moment_keys = offload::moment_keys({.run_seed = 1, .step = 1000}, 0);
}

Result<std::unique_ptr<KernelWorkload>> AdamWorkload::create(const AdamBenchOptions& options,
                                                             aio::Executor& executor) {
  std::unique_ptr<AdamWorkload> workload(new AdamWorkload(options, executor));
  SLUICE_RETURN_IF_ERROR(workload->map_arrays());
  workload->fill_all(options.elements,
                     [&](std::uint64_t begin, std::uint64_t end) { workload->fill(begin, end); });
  return std::unique_ptr<KernelWorkload>(std::move(workload));
}

Status AdamWorkload::map_arrays() {
  const auto map_array = [this](auto& array, std::uint64_t element_bytes) -> Status {
    SLUICE_ASSIGN_OR_RETURN(std::byte* const bytes, map(elements_ * element_bytes));
    array = reinterpret_cast<std::remove_reference_t<decltype(array)>>(bytes);
    return {};
  };
  SLUICE_RETURN_IF_ERROR(map_array(arrays_.grad, offload::element_bytes(arrays_.grad_type)));
  if (arrays_.param_form != ParamForm::kFp32) SLUICE_RETURN_IF_ERROR(map_array(arrays_.param16, 2));
  if (arrays_.param_form == ParamForm::kSplit)
    SLUICE_RETURN_IF_ERROR(map_array(arrays_.lo, 2));
  else
    SLUICE_RETURN_IF_ERROR(map_array(arrays_.master, 4));
  if (arrays_.moment_type == ElementType::kFp32) {
    SLUICE_RETURN_IF_ERROR(map_array(arrays_.m, 4));
    return map_array(arrays_.v, 4);
  }
  SLUICE_RETURN_IF_ERROR(map_array(arrays_.m16, 2));
  return map_array(arrays_.v16, 2);
}

void AdamWorkload::fill(std::uint64_t begin, std::uint64_t end) {
  // Only this program owns the memory; the contract's const is for kernels.
  void* const grad = const_cast<void*>(arrays_.grad);
  for (std::uint64_t i = begin; i < end; ++i) {
    const float gradient = 1e-3F * noise(i);
    if (arrays_.grad_type == GradType::kFp32) static_cast<float*>(grad)[i] = gradient;
    if (arrays_.grad_type == GradType::kBf16)
      static_cast<std::uint16_t*>(grad)[i] = offload::bf16_from_float(gradient);
    if (arrays_.grad_type == GradType::kFp16)
      static_cast<std::uint16_t*>(grad)[i] = offload::fp16_from_float(gradient);
    const float weight = 0.05F * noise(i + elements_);
    if (arrays_.param_form == ParamForm::kSplit) {
      const offload::SplitMaster halves = offload::split_master(weight);
      arrays_.param16[i] = halves.hi;
      arrays_.lo[i] = halves.lo;
    } else {
      arrays_.master[i] = weight;
    }
    const float m = 1e-4F * noise(i + 2 * elements_);
    const float v = 1e-6F * (1 + noise(i + 3 * elements_));
    if (arrays_.moment_type == ElementType::kFp32) {
      arrays_.m[i] = m;
      arrays_.v[i] = v;
    } else {
      arrays_.m16[i] = offload::bf16_from_float(m);
      arrays_.v16[i] = offload::bf16_from_float(v);
    }
  }
}

void AdamWorkload::pass() { offload::adamw_step(executor(), isa_, scalars_, arrays_, elements_); }

// CastWorkload: one fp32 gradient in memory. A pass casts all of it and adds up its squares.
class CastWorkload final : public KernelWorkload {
 public:
  static Result<std::unique_ptr<KernelWorkload>> create(const AdamBenchOptions& options,
                                                        aio::Executor& executor);
  void pass() override;

 private:
  CastWorkload(const AdamBenchOptions& options, aio::Executor& executor);

  const offload::Isa isa_;
  offload::GradCast cast_;
  offload::SquareSum sum_;
};

CastWorkload::CastWorkload(const AdamBenchOptions& options, aio::Executor& executor)
    : KernelWorkload(executor, options.stagger_lines), isa_(options.isa), sum_(options.elements) {
  cast_.to = options.grad;
  cast_.elements = options.elements;
}

Result<std::unique_ptr<KernelWorkload>> CastWorkload::create(const AdamBenchOptions& options,
                                                             aio::Executor& executor) {
  std::unique_ptr<CastWorkload> workload(new CastWorkload(options, executor));
  SLUICE_ASSIGN_OR_RETURN(std::byte* const grad_bytes, workload->map(options.elements * 4));
  auto* const grad = reinterpret_cast<float*>(grad_bytes);
  workload->cast_.grad = grad;
  if (options.grad != GradType::kFp32) {
    SLUICE_ASSIGN_OR_RETURN(std::byte* const out, workload->map(options.elements * 2));
    workload->cast_.out = reinterpret_cast<std::uint16_t*>(out);
  }
  workload->fill_all(options.elements, [grad](std::uint64_t begin, std::uint64_t end) {
    for (std::uint64_t i = begin; i < end; ++i) grad[i] = 1e-3F * noise(i);
  });
  return std::unique_ptr<KernelWorkload>(std::move(workload));
}

void CastWorkload::pass() {
  sum_.reset(0);
  offload::cast_and_sum(executor(), isa_, cast_, sum_);
}

Result<std::vector<AdamRun>> measure(const AdamBenchOptions& options, KernelWorkload& workload,
                                     aio::Executor& executor, tools::ProgressLine& progress) {
  const tools::Interrupt interrupt;
  return measure_kernel(options, workload, executor, interrupt, progress);
}

int run(const AdamBenchOptions& options, const BenchCommand& command) {
  BenchProgram bench(command, options.json);
  if (const Status usable = bench.check_json(); !usable.ok())
    return bench.fail(usable.error(), kUserError);
  bench.show_machine();

  const auto executor = aio::make_executor(options.threads);
  if (!executor.ok()) return bench.fail(executor.error(), kUserError);
  const auto workload = options.kernel == BenchKernel::kAdamw
                            ? AdamWorkload::create(options, **executor)
                            : CastWorkload::create(options, **executor);
  if (!workload.ok()) return bench.fail(workload.error(), kUserError);
  const auto runs = measure(options, **workload, **executor, bench.progress());
  if (!runs.ok())
    return bench.fail(runs.error(), runs.error().code() == ErrorCode::kCancelled
                                        ? tools::kInterruptedExitCode
                                        : kUserError);

  const AdamReport report{options, *runs, (*workload)->page_kind()};
  bench.show(report.table());
  return bench.finish([&] { return report.json(bench.machine(), bench.command()); });
}

}  // namespace

}  // namespace sluice::bench

int main(int argc, char** argv) {
  return sluice::bench::bench_main("adam_bench", argc, argv, sluice::bench::parse_adam_command_line,
                                   sluice::bench::run);
}
