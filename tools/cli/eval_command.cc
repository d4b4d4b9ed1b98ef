#include <CLI/CLI.hpp>
#include <cmath>
#include <iomanip>
#include <iostream>
#include <memory>

#include "tools/cli/command.h"
#include "tools/cli/config_options.h"
#include "tools/cli/run_setup.h"

namespace sluice::tools {
namespace {

constexpr std::int64_t kAllBatches = 1'000'000'000;
constexpr int kLossDigits = 9;  // an fp32 number's

struct Options {
  ConfigOptions config;
  std::string weights;
  std::vector<std::string> data;
  std::int64_t batches = 0;
};

std::string json_list(const std::vector<std::string>& items) {
  std::string text = "[";
  for (const std::string& item : items) text += (text.size() > 1 ? ",\"" : "\"") + item + "\"";
  return text + "]";
}

Result<int> run(const Options& options, aio::IoWatchdog& watchdog) {
  ConfigOptions config_options = options.config;
  const auto add = [&](const std::string& override) {
    config_options.overrides.push_back(override);
  };
  add("model.init_from=" + options.weights);
  if (!options.data.empty()) add("data.validation=" + json_list(options.data));
  if (!options.data.empty()) add("data.train=" + json_list(options.data));
  // Data that is named here is meant as a whole.
  const std::int64_t batches =
      options.batches == 0 && !options.data.empty() ? kAllBatches : options.batches;
  if (batches > 0) add("run.eval_batches=" + std::to_string(batches));
  SLUICE_ASSIGN_OR_RETURN(const config::Resolved resolved, resolve(config_options));
  watchdog.set_limit_s(resolved.config.run.io_watchdog_s);
  SLUICE_ASSIGN_OR_RETURN(const auto run, set_up_evaluation(resolved.config));
  engine::LossSum loss;
  {
    TerminalLine line;
    loss = run->evaluate(show_share(line, "evaluating"));
  }
  std::cout << std::setprecision(kLossDigits) << "loss " << loss.mean() << " (perplexity "
            << std::exp(loss.mean()) << ") over " << static_cast<std::uint64_t>(loss.tokens)
            << " tokens\n";
  return 0;
}

}  // namespace

Command add_eval_command(CLI::App& sluice) {
  CLI::App* const command = sluice.add_subcommand(
      "eval", "The mean loss of weights on data, also of a model larger than memory");
  command->footer("  sluice eval configs/demo.json --weights model.safetensors --data val.bin");
  const auto options = std::make_shared<Options>();
  add_config_options(*command, options->config);
  command->add_option("--weights", options->weights, "A safetensors file, index or folder")
      ->required();
  command->add_option("--data", options->data,
                      "Token files; else the configuration's validation data");
  command->add_option("--batches", options->batches,
                      "How many micro-batches at most (run.eval_batches); else all of --data");
  return [options](aio::IoWatchdog& watchdog) { return run(*options, watchdog); };
}

}  // namespace sluice::tools
