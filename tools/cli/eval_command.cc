#include <CLI/CLI.hpp>
#include <cmath>
#include <filesystem>
#include <iomanip>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "tools/cli/command.h"
#include "tools/cli/config_options.h"
#include "tools/cli/open_queue.h"
#include "tools/cli/option_checks.h"
#include "tools/cli/run_setup.h"
#include "tools/cli/run_tokenizer.h"

namespace sluice::tools {
namespace {

constexpr std::int64_t kAllBatches = 1'000'000'000;
constexpr int kLossDigits = 9;  // an fp32 number's

struct Options {
  ConfigOptions config;
  std::string weights;
  std::vector<std::string> data;
  std::int64_t batches = 0;
  bool json = false;
  bool any_tokenizer = false;
};

std::string json_list(const std::vector<std::string>& items) {
  return nlohmann::json(items).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// Before a plan is made for weights that do not exist.
Status check_weights(const std::string& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status))
    return Error(ErrorCode::kNotFound, "--weights: there is no file or folder " + path);
  if (std::filesystem::is_regular_file(status) || std::filesystem::is_directory(status)) return {};
  return Error(ErrorCode::kInvalidArgument,
               "--weights: " + path + " is neither a regular file nor a folder");
}

void print(const Options& options, const engine::LossSum& loss) {
  const double perplexity = std::exp(loss.mean());
  const auto tokens = static_cast<std::uint64_t>(loss.tokens);
  if (options.json) {
    const nlohmann::ordered_json result = {{"weights", options.weights},
                                           {"loss", loss.mean()},
                                           {"perplexity", perplexity},
                                           {"tokens", tokens}};
    std::cout << result.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace)
              << "\n";
    return;
  }
  std::cout << std::setprecision(kLossDigits) << "loss " << loss.mean() << " (perplexity "
            << perplexity << ") over " << tokens << " tokens\n";
}

Status check_data(const config::Config& config, bool any_tokenizer, aio::IoWatchdog& watchdog) {
  SLUICE_ASSIGN_OR_RETURN(const FileQueue files, open_queue(watchdog));
  return check_evaluation_data(*files.queue, config, any_tokenizer);
}

Result<int> run(const Options& options, aio::IoWatchdog& watchdog) {
  SLUICE_RETURN_IF_ERROR(check_weights(options.weights));
  ConfigOptions config_options = options.config;
  const auto add = [&](const std::string& override) {
    config_options.overrides.push_back(override);
  };
  add("model.init_from=" + options.weights);
  if (!options.data.empty()) add("data.validation=" + json_list(options.data));
  if (!options.data.empty()) add("data.train=" + json_list(options.data));
  // Data named here is evaluated in full.
  const std::int64_t batches =
      options.batches == 0 && !options.data.empty() ? kAllBatches : options.batches;
  if (batches > 0) add("run.eval_batches=" + std::to_string(batches));
  SLUICE_ASSIGN_OR_RETURN(const config::Resolved resolved, resolve(config_options));
  watchdog.set_limit_s(resolved.config.run.io_watchdog_s);
  SLUICE_RETURN_IF_ERROR(check_data(resolved.config, options.any_tokenizer, watchdog));
  SLUICE_ASSIGN_OR_RETURN(const auto run, set_up_evaluation(resolved.config));
  engine::LossSum loss;
  {
    TerminalLine line;
    loss = run->evaluate(show_share(line, "evaluating"));
  }
  print(options, loss);
  if (std::isfinite(loss.mean())) return 0;
  std::cerr << "sluice: the loss is not finite: the weights hold NaN or infinity, or what comes of "
               "them does not fit the type that computes (bf16.enabled, fp16.enabled; without "
               "both it is fp32)\n";
  return kExitNotFinite;
}

}  // namespace

Command add_eval_command(CLI::App& sluice) {
  CLI::App* const command = sluice.add_subcommand(
      "eval", "Evaluate weights on data: the mean loss, also of models larger than memory");
  command->footer(
      "  sluice eval configs/demo.json --weights model.safetensors --data val.bin\n"
      "CONFIG says what the model is. A config.json beside the weights has to agree with it: what\n"
      "sluice import refuses is refused here.");
  const auto options = std::make_shared<Options>();
  add_config_options(*command, options->config);
  command->add_option("--weights", options->weights, "A safetensors file, index or folder")
      ->required();
  command->add_option("--data", options->data,
                      "Token files; else the configuration's validation data");
  command
      ->add_option("--batches", options->batches,
                   "How many micro-batches at most (run.eval_batches); else all of --data")
      ->check(at_least(1));
  command->add_flag("--json", options->json, "Prints one JSON object");
  add_any_tokenizer(*command, options->any_tokenizer);
  return [options](aio::IoWatchdog& watchdog) { return run(*options, watchdog); };
}

}  // namespace sluice::tools
