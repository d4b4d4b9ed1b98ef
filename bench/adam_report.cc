#include "bench/adam_report.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "aio/units.h"
#include "bench/result_header.h"

namespace sluice::bench {
namespace {

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

}  // namespace

std::string AdamReport::table() const {
  const bool adamw = options.kernel == BenchKernel::kAdamw;
  const std::string name = adamw ? "AdamW" : "cast";
  const std::string share = name + " / ";
  const std::vector<double> gb_per_s = kernel_gb_per_s(*this);
  std::string text = heading(options, page_kind) + std::string(24, ' ') + "median       IQR\n";
  text += row(name + (adamw ? ", G params/s" : ", G elements/s"), kernel_giga_per_s(*this), 3);
  text += row(name + ", GB/s", gb_per_s, 2,
              std::to_string(options.bytes_per_element()) +
                  (adamw ? " bytes a parameter" : " bytes an element"));
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

}  // namespace sluice::bench
