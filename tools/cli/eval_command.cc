#include <CLI/CLI.hpp>
#include <cmath>
#include <filesystem>
#include <iomanip>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "engine/checkpoint/checkpoint_manifest.h"
#include "engine/config/stored_config.h"
#include "engine/exchange/adapter_weights.h"
#include "engine/exchange/base_fingerprint.h"
#include "engine/exchange/described_model.h"
#include "engine/exchange/stored_shape.h"
#include "tools/cli/command.h"
#include "tools/cli/document_report.h"
#include "tools/cli/option_checks.h"
#include "tools/session/checkpoint_argument.h"
#include "tools/session/config_options.h"
#include "tools/session/open_queue.h"
#include "tools/session/run_setup.h"
#include "tools/session/run_tokenizer.h"

namespace sluice::tools {
namespace {

constexpr std::int64_t kAllBatches = 1'000'000'000;
constexpr int kLossDigits = 9;  // digits that identify an fp32 number

struct EvalOptions {
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

// Called before a plan is made, since the weights may not exist.
Status check_weights(const std::string& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status))
    return Error(ErrorCode::kNotFound,
                 "--weights: there is no file or folder " + path + engine::download_hint(path));
  if (std::filesystem::is_regular_file(status) || std::filesystem::is_directory(status)) return {};
  return Error(ErrorCode::kInvalidArgument,
               "--weights: " + path + " is neither a regular file nor a folder");
}

void print(const EvalOptions& options, const engine::LossSum& loss) {
  const double perplexity = std::exp(loss.mean());
  const auto tokens = static_cast<std::uint64_t>(loss.tokens);
  if (options.json) {
    nlohmann::ordered_json result = {{"weights", options.weights},
                                     {"loss", loss.mean()},
                                     {"perplexity", perplexity},
                                     {"tokens", tokens}};
    if (!options.adapter.empty()) result["adapter"] = options.adapter;
    std::cout << result.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace)
              << "\n";
    return;
  }
  std::cout << std::setprecision(kLossDigits) << "loss " << loss.mean() << " (perplexity "
            << perplexity << ") over " << tokens << " tokens\n";
}

// Called before weights are read.
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

Status check_data(const config::Config& config, const EvalOptions& options,
                  aio::IoWatchdog& watchdog) {
  SLUICE_ASSIGN_OR_RETURN(const FileQueue files, open_queue(watchdog));
  SLUICE_RETURN_IF_ERROR(check_evaluation_data(*files.queue, config, options.any_tokenizer));
  return options.by_document ? check_has_documents(config) : Status();
}

// Shows and returns the mean loss.
Result<double> evaluate(const EvalOptions& options, engine::EvaluationRun& run) {
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

// What is evaluated: weights, alone or with adapters from a PEFT folder or a checkpoint.
struct Evaluated {
  std::string weights;
  engine::LoraRecipe recipe;  // unset: full weights, whatever CONFIG's run trained
  std::string peft;           // a PEFT folder, or
  std::optional<CheckpointArgument> checkpoint;
  std::optional<engine::CheckpointManifest> manifest;  // the checkpoint's manifest
};

Result<Evaluated> evaluated_checkpoint(aio::IoQueue& queue, const EvalOptions& options) {
  Evaluated wanted{.weights = options.weights};
  auto found = find_checkpoint(queue, options.adapter, "");
  if (!found.ok() && found.error().code() == ErrorCode::kNotFound)
    return Error(ErrorCode::kNotFound,
                 options.adapter +
                     " is no folder of PEFT's (there is no adapter_config.json), and "
                     "no run or checkpoint: " +
                     found.error().message());
  if (!found.ok()) return std::move(found).error();
  wanted.checkpoint = *std::move(found);
  SLUICE_ASSIGN_OR_RETURN(wanted.manifest,
                          engine::read_checkpoint_manifest(queue, wanted.checkpoint->path));
  const engine::CheckpointState& state = wanted.manifest->state;
  if (!state.run.adapters)
    return Error(ErrorCode::kInvalidArgument, wanted.checkpoint->path +
                                                  " holds a whole model, and no adapters: name "
                                                  "it with --weights, without --adapter");
  SLUICE_ASSIGN_OR_RETURN(const engine::ModelShape shape, engine::stored_shape(state.run));
  SLUICE_ASSIGN_OR_RETURN(wanted.recipe, engine::stored_recipe(state.run, shape));
  if (!wanted.weights.empty()) return wanted;
  const auto config = config::resolve_stored(state.configuration);
  if (config.ok()) wanted.weights = config->model.init_from;
  if (!wanted.weights.empty()) return wanted;
  return Error(ErrorCode::kInvalidArgument,
               "where the weights are that these adapters were trained beside is not known: name "
               "them with --weights");
}

// The adapter's own files say which kind it is.
Result<Evaluated> evaluated(const EvalOptions& options, aio::IoWatchdog& watchdog) {
  if (options.adapter.empty() && options.weights.empty())
    return Error(ErrorCode::kInvalidArgument,
                 "nothing is named that is to be evaluated: give --weights, or --adapter a run or "
                 "a checkpoint of adapters");
  if (options.adapter.empty()) return Evaluated{.weights = options.weights};
  SLUICE_ASSIGN_OR_RETURN(const FileQueue files, open_queue(watchdog));
  SLUICE_ASSIGN_OR_RETURN(
      const bool is_peft,
      files.backend->files().exists(options.adapter + "/" + std::string(engine::kPeftConfigName)));
  if (!is_peft) {
    auto wanted = evaluated_checkpoint(*files.queue, options);
    if (!wanted.ok()) return std::move(wanted).error().with_context("--adapter");
    return wanted;
  }
  if (options.weights.empty())
    return Error(ErrorCode::kInvalidArgument,
                 "--adapter " + options.adapter +
                     " belongs to a model: name the model's weights with --weights");
  Evaluated wanted{.weights = options.weights, .peft = options.adapter};
  ConfigOptions config = options.config;
  config.overrides.push_back("model.init_from=" + options.weights);
  SLUICE_ASSIGN_OR_RETURN(const config::Resolved resolved, resolve(config));
  auto adapters =
      engine::AdapterWeights::open(*files.queue, options.adapter, resolved.config.model.shape());
  if (!adapters.ok()) return std::move(adapters).error().with_context("--adapter");
  wanted.recipe = adapters->config().recipe;
  return wanted;
}

void add_overrides(const Evaluated& wanted, const EvalOptions& options, ConfigOptions& config) {
  const auto add = [&](const std::string& override) { config.overrides.push_back(override); };
  add("model.init_from=" + wanted.weights);
  add("recipe.lora.rank=" + std::to_string(wanted.recipe.rank));
  if (wanted.recipe.exists()) {
    add("recipe.lora.alpha=" + nlohmann::json(wanted.recipe.alpha).dump());
    add(std::string("recipe.lora.rank_stabilised=") +
        (wanted.recipe.rank_stabilised ? "true" : "false"));
    add("recipe.lora.dropout=" + nlohmann::json(wanted.recipe.dropout).dump());
    // A PEFT folder does not record the number format of the base that it was trained with.
    if (wanted.checkpoint) add("recipe.lora.base_bits=" + std::to_string(wanted.recipe.base_bits));
    add("recipe.lora.targets=" + json_list(wanted.recipe.targets));
    add("recipe.lora.adapter=" + wanted.peft);
  }
  if (!options.data.empty()) add("data.validation=" + json_list(options.data));
  // Data named on the command line is evaluated in full.
  const bool all = !options.data.empty() || options.by_document;
  const std::int64_t batches = options.batches == 0 && all ? kAllBatches : options.batches;
  if (batches > 0) add("run.eval_batches=" + std::to_string(batches));
  if (options.by_document) add("data.long_documents=split");
}

// Called before a plan is made.
Status check(const Evaluated& wanted, const EvalOptions& options, const config::Config& config,
             aio::IoWatchdog& watchdog) {
  SLUICE_RETURN_IF_ERROR(check_data(config, options, watchdog));
  if (!wanted.manifest) return {};
  SLUICE_ASSIGN_OR_RETURN(const FileQueue files, open_queue(watchdog));
  SLUICE_ASSIGN_OR_RETURN(
      const engine::ModelWeights weights,
      engine::open_model_weights(*files.queue, wanted.weights, config.model.shape(),
                                 engine::HeadCheck::kBeginning));
  return engine::check_base_sample(
      weights, wanted.manifest->state.run,
      {.path = wanted.weights, .advice = "name those that the run began with with --weights"});
}

Result<int> run(const EvalOptions& asked, aio::IoWatchdog& watchdog) {
  EvalOptions options = asked;
  if (!options.weights.empty()) SLUICE_RETURN_IF_ERROR(check_weights(options.weights));
  SLUICE_ASSIGN_OR_RETURN(const Evaluated wanted, evaluated(options, watchdog));
  options.weights = wanted.weights;
  if (wanted.checkpoint) options.adapter = wanted.checkpoint->path;
  SLUICE_RETURN_IF_ERROR(check_weights(options.weights));
  ConfigOptions config_options = options.config;
  add_overrides(wanted, options, config_options);
  SLUICE_ASSIGN_OR_RETURN(const config::Resolved resolved, resolve(config_options));
  watchdog.set_limit_s(resolved.config.run.io_watchdog_s);
  SLUICE_RETURN_IF_ERROR(check(wanted, options, resolved.config, watchdog));
  SLUICE_ASSIGN_OR_RETURN(
      const auto run, set_up_evaluation(resolved.config, wanted.checkpoint ? wanted.checkpoint->path
                                                                           : std::string()));
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
      "  sluice eval runs/lora/config.json --adapter runs/lora\n"
      "CONFIG says what the model is. A config.json beside the weights has to agree with it: what\n"
      "sluice import refuses is refused here. --by-document needs data of tools/prepare --chat, "
      "and takes each\n"
      "document whole (data.long_documents: split): what a row's end cuts off continues in "
      "another\n"
      "row as a piece of its own, which sees nothing of the text before it but one token.");
  const auto options = std::make_shared<EvalOptions>();
  add_config_options(*command, options->config);
  command->add_option("--weights", options->weights,
                      "A safetensors file, index or folder; of a run's adapters, where their base "
                      "no longer lies where the run found it");
  command->add_option("--adapter", options->adapter,
                      "A PEFT folder, whose adapters are evaluated beside the weights; or a run of "
                      "adapters (its newest checkpoint), or one of its checkpoints");
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
