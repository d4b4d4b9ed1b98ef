#include <CLI/CLI.hpp>
#include <cmath>
#include <filesystem>
#include <iomanip>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "engine/exchange/adapter_weights.h"
#include "tools/cli/command.h"
#include "tools/cli/config_options.h"
#include "tools/cli/document_report.h"
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
  std::string adapter;
  std::vector<std::string> data;
  std::int64_t batches = 0;
  bool json = false;
  bool csv = false;
  bool by_document = false;
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

// Before weights are read.
Status check_has_documents(const config::Config& config) {
  const auto& paths = config.data.validation.empty() ? config.data.train : config.data.validation;
  for (const std::string& path : paths) {
    SLUICE_ASSIGN_OR_RETURN(const data::TokenFile file,
                            data::TokenFile::open(path, engine::file_options(config.data)));
    if (file.documents() != nullptr) continue;
    return Error(ErrorCode::kInvalidArgument,
                 "--by-document: " + path +
                     " is one text, and where documents begin is not known of it: prepare it by "
                     "tools/prepare --chat, or leave --by-document out");
  }
  return {};
}

Status check_data(const config::Config& config, const Options& options, aio::IoWatchdog& watchdog) {
  SLUICE_ASSIGN_OR_RETURN(const FileQueue files, open_queue(watchdog));
  SLUICE_RETURN_IF_ERROR(check_evaluation_data(*files.queue, config, options.any_tokenizer));
  return options.by_document ? check_has_documents(config) : Status();
}

// The mean loss, once it is shown.
Result<double> evaluate(const Options& options, engine::EvaluationRun& run) {
  TerminalLine line;
  const auto progress = show_share(line, "evaluating");
  if (!options.by_document) {
    const engine::LossSum loss = run.evaluate(progress);
    line.clear();
    print(options, loss);
    return loss.mean();
  }
  SLUICE_ASSIGN_OR_RETURN(const auto evaluated, run.evaluate_documents(progress));
  line.clear();
  std::cout << (options.json  ? document_json(options.weights, evaluated)
                : options.csv ? document_csv(evaluated)
                              : document_table(evaluated));
  return engine::summary_of(evaluated.losses).mean;
}

// Weights are whole unless an adapter is named, whatever the run of the configuration trained; and
// what kind of adapter it is, the adapter itself says.
Status add_adapter(const Options& options, aio::IoWatchdog& watchdog, ConfigOptions& config) {
  const auto add = [&](const std::string& key, const std::string& value) {
    config.overrides.push_back("recipe.lora." + key + "=" + value);
  };
  if (options.adapter.empty()) {
    add("rank", "0");
    return {};
  }
  SLUICE_ASSIGN_OR_RETURN(const config::Resolved resolved, resolve(config));
  SLUICE_ASSIGN_OR_RETURN(const FileQueue files, open_queue(watchdog));
  auto adapters =
      engine::AdapterWeights::open(*files.queue, options.adapter, resolved.config.model.shape());
  if (!adapters.ok()) return std::move(adapters).error().with_context("--adapter");
  const engine::LoraRecipe& recipe = adapters->config().recipe;
  add("rank", std::to_string(recipe.rank));
  add("alpha", nlohmann::json(recipe.alpha).dump());
  add("rank_stabilised", recipe.rank_stabilised ? "true" : "false");
  add("targets", json_list(recipe.targets));
  add("adapter", options.adapter);
  return {};
}

Result<int> run(const Options& options, aio::IoWatchdog& watchdog) {
  SLUICE_RETURN_IF_ERROR(check_weights(options.weights));
  ConfigOptions config_options = options.config;
  const auto add = [&](const std::string& override) {
    config_options.overrides.push_back(override);
  };
  add("model.init_from=" + options.weights);
  SLUICE_RETURN_IF_ERROR(add_adapter(options, watchdog, config_options));
  if (!options.data.empty()) add("data.validation=" + json_list(options.data));
  if (!options.data.empty()) add("data.train=" + json_list(options.data));
  // Data named here is evaluated in full.
  const bool all = !options.data.empty() || options.by_document;
  const std::int64_t batches = options.batches == 0 && all ? kAllBatches : options.batches;
  if (batches > 0) add("run.eval_batches=" + std::to_string(batches));
  if (options.by_document) add("data.long_documents=split");
  SLUICE_ASSIGN_OR_RETURN(const config::Resolved resolved, resolve(config_options));
  watchdog.set_limit_s(resolved.config.run.io_watchdog_s);
  SLUICE_RETURN_IF_ERROR(check_data(resolved.config, options, watchdog));
  SLUICE_ASSIGN_OR_RETURN(const auto run, set_up_evaluation(resolved.config));
  SLUICE_ASSIGN_OR_RETURN(const double loss, evaluate(options, *run));
  if (std::isfinite(loss)) return 0;
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
      "  sluice eval run.json --weights hf/ --data sft/val.bin --by-document --csv\n"
      "CONFIG says what the model is. A config.json beside the weights has to agree with it: what\n"
      "sluice import refuses is refused here. --by-document needs data of tools/prepare --chat, "
      "and takes each\n"
      "document whole (data.long_documents: split): what a row's end cuts off continues in "
      "another\n"
      "row as a piece of its own, which sees nothing of the text before it but one token.");
  const auto options = std::make_shared<Options>();
  add_config_options(*command, options->config);
  command->add_option("--weights", options->weights, "A safetensors file, index or folder")
      ->required();
  command->add_option("--adapter", options->adapter,
                      "A PEFT folder: its adapters beside the weights");
  command->add_option("--data", options->data,
                      "Token files; else the configuration's validation data");
  CLI::Option* const batches =
      command
          ->add_option("--batches", options->batches,
                       "How many micro-batches at most (run.eval_batches); else all of --data")
          ->check(at_least(1));
  CLI::Option* const by_document =
      command
          ->add_flag("--by-document", options->by_document,
                     "The loss and perplexity of each document, of all of the data")
          ->excludes(batches);
  CLI::Option* const json = command->add_flag("--json", options->json, "Prints one JSON object");
  command->add_flag("--csv", options->csv, "With --by-document: prints a line for each document")
      ->needs(by_document)
      ->excludes(json);
  add_any_tokenizer(*command, options->any_tokenizer);
  return [options](aio::IoWatchdog& watchdog) { return run(*options, watchdog); };
}

}  // namespace sluice::tools
