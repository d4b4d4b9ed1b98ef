// adam_bench: measures the CPU AdamW kernels against the machine's copy bandwidth. See --help.
#include <algorithm>
#include <array>
#include <cstdio>
#include <exception>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "aio/executor.h"
#include "aio/units.h"
#include "bench/adam_options.h"
#include "bench/adam_workload.h"

namespace sluice::bench {
namespace {

constexpr int kOurError = 1;
constexpr int kUserError = 2;

struct Run {
  double adam_gparams_per_s = 0;
  std::array<double, kCopyKinds.size()> copy_gb_per_s{};
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

// Distance between the quartiles, of linear interpolation.
double spread(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const auto at = [&](double fraction) {
    const double place = fraction * static_cast<double>(values.size() - 1);
    const auto below = static_cast<std::size_t>(place);
    const std::size_t above = std::min(below + 1, values.size() - 1);
    return values[below] + (place - static_cast<double>(below)) * (values[above] - values[below]);
  };
  return at(0.75) - at(0.25);
}

template <typename Value>
std::vector<double> each(const std::vector<Run>& runs, const Value& value) {
  std::vector<double> values;
  values.reserve(runs.size());
  for (const Run& run : runs) values.push_back(value(run));
  return values;
}

// The order rotates from run to run, so that none always follows the same other.
std::vector<Run> measure(const AdamBenchOptions& options, AdamWorkload& workload) {
  workload.adam_params_per_s(0);  // a pass each to warm up
  for (const CopyKind kind : kCopyKinds) workload.copy_gb_per_s(kind, 0);
  std::vector<Run> runs(static_cast<std::size_t>(options.runs));
  for (std::size_t i = 0; i < runs.size(); ++i)
    for (std::size_t j = 0; j <= kCopyKinds.size(); ++j) {
      const std::size_t what = (i + j) % (kCopyKinds.size() + 1);
      if (what == kCopyKinds.size())
        runs[i].adam_gparams_per_s = 1e-9 * workload.adam_params_per_s(options.seconds);
      else
        runs[i].copy_gb_per_s[what] = workload.copy_gb_per_s(kCopyKinds[what], options.seconds);
    }
  return runs;
}

struct Summary {
  std::vector<double> gparams, gb, copy, ratio;
  CopyKind best_copy = CopyKind::kRegular;
};

Summary summarise(const AdamBenchOptions& options, const std::vector<Run>& runs) {
  Summary summary;
  std::size_t best = 0;
  double best_gb_per_s = 0;
  for (std::size_t kind = 0; kind < kCopyKinds.size(); ++kind) {
    const double gb_per_s =
        median(each(runs, [&](const Run& run) { return run.copy_gb_per_s[kind]; }));
    if (gb_per_s <= best_gb_per_s) continue;
    best = kind;
    best_gb_per_s = gb_per_s;
  }
  summary.best_copy = kCopyKinds[best];
  for (const Run& run : runs) {
    const double gb_per_s = run.adam_gparams_per_s * options.bytes_per_param();
    summary.gparams.push_back(run.adam_gparams_per_s);
    summary.gb.push_back(gb_per_s);
    summary.copy.push_back(run.copy_gb_per_s[best]);
    summary.ratio.push_back(gb_per_s / run.copy_gb_per_s[best]);
  }
  return summary;
}

std::string table(const AdamBenchOptions& options, const AdamWorkload& workload,
                  const Summary& summary) {
  char text[1024];
  std::snprintf(text, sizeof text,
                "adam_bench: %s elements, %s gradient, %s master, %s, %d threads, %s, "
                "%d x %g s\n\n"
                "                       median       IQR\n"
                "AdamW, G params/s   %9.3f %9.3f\n"
                "AdamW, GB/s         %9.2f %9.2f   %d bytes a parameter\n"
                "copy, GB/s          %9.2f %9.2f   read + written, %s stores\n"
                "AdamW / copy        %9.3f %9.3f\n",
                format_bytes(options.elements).c_str(), options.grad_name.c_str(),
                options.master_name.c_str(), std::string(to_string(options.isa)).c_str(),
                options.threads, std::string(to_string(workload.page_kind())).c_str(), options.runs,
                options.seconds, median(summary.gparams), spread(summary.gparams),
                median(summary.gb), spread(summary.gb), options.bytes_per_param(),
                median(summary.copy), spread(summary.copy),
                std::string(to_string(summary.best_copy)).c_str(), median(summary.ratio),
                spread(summary.ratio));
  return text;
}

std::string json(const AdamBenchOptions& options, const AdamWorkload& workload,
                 const std::vector<Run>& runs, const Summary& summary) {
  using Json = nlohmann::ordered_json;
  Json list = Json::array();
  for (const Run& run : runs) {
    Json copies;
    for (std::size_t kind = 0; kind < kCopyKinds.size(); ++kind)
      copies[std::string(to_string(kCopyKinds[kind]))] = run.copy_gb_per_s[kind];
    list.push_back({{"adam_gparams_per_s", run.adam_gparams_per_s},
                    {"adam_gb_per_s", run.adam_gparams_per_s * options.bytes_per_param()},
                    {"copy_gb_per_s", copies}});
  }
  const Json result = {{"elements", options.elements},
                       {"grad", options.grad_name},
                       {"master", options.master_name},
                       {"isa", to_string(options.isa)},
                       {"threads", options.threads},
                       {"pages", to_string(workload.page_kind())},
                       {"seconds", options.seconds},
                       {"bytes_per_param", options.bytes_per_param()},
                       {"best_copy", to_string(summary.best_copy)},
                       {"runs", list},
                       {"median",
                        {{"adam_gparams_per_s", median(summary.gparams)},
                         {"adam_gb_per_s", median(summary.gb)},
                         {"copy_gb_per_s", median(summary.copy)},
                         {"adam_over_copy", median(summary.ratio)}}}};
  return result.dump(2) + "\n";
}

int fail(const Error& error, int code) {
  std::fprintf(stderr, "adam_bench: %s\n", error.message().c_str());
  return code;
}

int run(int argc, const char* const* argv) {
  const auto arguments = parse_adam_command_line(argc, argv);
  if (!arguments.ok()) return fail(arguments.error(), kUserError);
  if (!arguments->has_value()) return 0;
  const auto options = parse_adam_options(**arguments);
  if (!options.ok()) return fail(options.error(), kUserError);
  std::ofstream file;
  if (!options->json.empty() && options->json != "-") {
    file.open(options->json, std::ios::app);  // before measuring; emptied when there is a result
    if (!file)
      return fail(Error(ErrorCode::kPermission, "--json: cannot write \"" + options->json + "\""),
                  kUserError);
  }

  const auto executor = aio::make_executor(options->threads);
  if (!executor.ok()) return fail(executor.error(), kUserError);
  auto workload = AdamWorkload::create(*options, **executor);
  if (!workload.ok()) return fail(workload.error(), kUserError);
  const std::vector<Run> runs = measure(*options, *workload);
  const Summary summary = summarise(*options, runs);
  std::fputs(table(*options, *workload, summary).c_str(), options->json == "-" ? stderr : stdout);
  if (options->json.empty()) return 0;
  const std::string text = json(*options, *workload, runs, summary);
  if (options->json == "-") {
    std::cout << text << std::flush;
    return std::cout ? 0 : kOurError;
  }
  file.close();
  file.open(options->json, std::ios::trunc);
  file << text << std::flush;
  if (!file)
    return fail(Error(ErrorCode::kIo, "--json: writing \"" + options->json + "\" failed"),
                kOurError);
  return 0;
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  try {
    return sluice::bench::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "adam_bench: %s\n", error.what());
    return 1;
  }
}
