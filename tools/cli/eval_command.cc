#include <CLI/CLI.hpp>
#include <cmath>
#include <filesystem>
#include <iomanip>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "aio/text.h"
#include "engine/checkpoint/checkpoint_folder.h"
#include "engine/checkpoint/checkpoint_manifest.h"
#include "engine/config/stored_config.h"
#include "engine/exchange/adapter_weights.h"
#include "engine/exchange/base_fingerprint.h"
#include "engine/exchange/described_model.h"
#include "engine/exchange/stored_shape.h"
#include "engine/observe/text_table.h"
#include "engine/run/evaluation_run.h"
#include "tools/cli/command.h"
#include "tools/cli/option_checks.h"
#include "tools/session/checkpoint_argument.h"
#include "tools/session/config_options.h"
#include "tools/session/hub_model.h"
#include "tools/session/open_queue.h"
#include "tools/session/run_setup.h"
#include "tools/session/run_tokenizer.h"

namespace sluice::tools {
namespace {

// ---- what --by-document prints: a table, JSON or CSV

using engine::DocumentLoss;
using Documents = engine::EvaluationRun::Documents;
using Json = nlohmann::ordered_json;

constexpr int kDigits = 9;  // as in eval's own line

std::string loss_and_perplexity(double loss) {
  return "loss " + significant(loss, kDigits) + " (perplexity " +
         significant(std::exp(loss), kDigits) + ")";
}

std::string name_of(const Documents& evaluated, const DocumentLoss& one) {
  const std::string number = "document " + std::to_string(one.document);
  return evaluated.files.size() == 1 ? number : number + " of " + evaluated.files[one.file];
}

Json json_of(const Documents& evaluated, const DocumentLoss& one) {
  return {{"file", evaluated.files[one.file]},
          {"document", one.document},
          {"targets", one.targets},
          {"loss", one.mean()},
          {"perplexity", std::exp(one.mean())}};
}

// A CSV field: in quotes, with quotes in it doubled.
std::string quoted(const std::string& text) {
  std::string made = "\"";
  for (const char letter : text) made += letter == '"' ? "\"\"" : std::string(1, letter);
  return made + "\"";
}

// One row per document that has a target, and a summary. Needs at least one document.
std::string document_table(const Documents& evaluated) {
  const bool names_files = evaluated.files.size() > 1;
  std::vector<engine::TextRow> rows = {{"document", "targets", "loss", "perplexity"}};
  if (names_files) rows.front().emplace_back("file");
  for (const DocumentLoss& one : evaluated.losses) {
    rows.push_back({std::to_string(one.document), std::to_string(one.targets),
                    significant(one.mean()), significant(std::exp(one.mean()))});
    if (names_files) rows.back().push_back(evaluated.files[one.file]);
  }
  const engine::DocumentSummary sum = engine::summary_of(evaluated.losses);
  const auto line_of = [&](const char* which, std::size_t at) {
    const DocumentLoss& one = evaluated.losses[at];
    return std::string(which) + ": " + name_of(evaluated, one) + ", " +
           loss_and_perplexity(one.mean()) + "\n";
  };
  std::string text = engine::aligned(rows);
  text += loss_and_perplexity(sum.mean) + " over " + counted(sum.targets, "token") + " of " +
          counted(evaluated.losses.size(), "document") + "\n";
  text += "mean over documents: " + loss_and_perplexity(sum.mean_of_documents) + "\n";
  text += line_of("best", sum.best) + line_of("worst", sum.worst);
  const std::uint64_t without = evaluated.documents - evaluated.losses.size();
  if (without > 0) text += counted(without, "document") + " without a token to predict\n";
  return text;
}

// One object: "loss", "perplexity" and "tokens" as without --by-document, the means over documents,
// the best and worst document, and "documents". A number that is not finite is null.
std::string document_json(const std::string& weights, const Documents& evaluated) {
  const engine::DocumentSummary sum = engine::summary_of(evaluated.losses);
  Json documents = Json::array();
  for (const DocumentLoss& one : evaluated.losses) documents.push_back(json_of(evaluated, one));
  const Json all = {
      {"weights", weights},
      {"loss", sum.mean},
      {"perplexity", std::exp(sum.mean)},
      {"tokens", sum.targets},
      {"mean_of_documents",
       {{"loss", sum.mean_of_documents}, {"perplexity", std::exp(sum.mean_of_documents)}}},
      {"best", json_of(evaluated, evaluated.losses[sum.best])},
      {"worst", json_of(evaluated, evaluated.losses[sum.worst])},
      {"documents_without_targets", evaluated.documents - evaluated.losses.size()},
      {"documents", std::move(documents)}};
  return all.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

// Columns: file,document,targets,loss,perplexity
std::string document_csv(const Documents& evaluated) {
  std::string text = "file,document,targets,loss,perplexity\n";
  for (const DocumentLoss& one : evaluated.losses)
    text += quoted(evaluated.files[one.file]) + "," + std::to_string(one.document) + "," +
            std::to_string(one.targets) + "," + significant(one.mean(), kAllDigits) + "," +
            significant(std::exp(one.mean()), kAllDigits) + "\n";
  return text;
}

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
                     " has no document boundaries: prepare it with tools/prepare --chat, or leave "
                     "--by-document out");
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
    return Error(ErrorCode::kNotFound, options.adapter +
                                           " is neither a PEFT folder (there is no "
                                           "adapter_config.json) nor a run or checkpoint: " +
                                           found.error().message());
  if (!found.ok()) return std::move(found).error();
  wanted.checkpoint = *std::move(found);
  SLUICE_ASSIGN_OR_RETURN(wanted.manifest,
                          engine::read_checkpoint_manifest(queue, wanted.checkpoint->path));
  const engine::CheckpointState& state = wanted.manifest->state;
  if (!state.run.adapters)
    return Error(
        ErrorCode::kInvalidArgument,
        wanted.checkpoint->path +
            " contains a whole model, not adapters: name it with --weights, without --adapter");
  SLUICE_ASSIGN_OR_RETURN(const engine::ModelShape shape, engine::stored_shape(state.run));
  SLUICE_ASSIGN_OR_RETURN(wanted.recipe, engine::stored_recipe(state.run, shape));
  if (!wanted.weights.empty()) return wanted;
  const auto config = config::resolve_stored(state.configuration);
  if (config.ok()) wanted.weights = config->model.init_from;
  if (!wanted.weights.empty()) return wanted;
  return Error(
      ErrorCode::kInvalidArgument,
      "the location of these adapters' base weights is not known: name them with --weights");
}

// The adapter's own files say which kind it is.
Result<Evaluated> evaluated(const EvalOptions& options, aio::IoWatchdog& watchdog) {
  if (options.adapter.empty() && options.weights.empty())
    return Error(ErrorCode::kInvalidArgument,
                 "there is nothing to evaluate: give --weights, or --adapter with a run or "
                 "checkpoint of adapters");
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
    return Error(
        ErrorCode::kInvalidArgument,
        "--adapter " + options.adapter + " needs its base model: name its weights with --weights");
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
    if (wanted.checkpoint) {
      add("recipe.lora.base_bits=" + std::to_string(wanted.recipe.base_bits));
      add(std::string("recipe.lora.double_quant=") +
          (wanted.recipe.double_quant ? "true" : "false"));
    }
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
      {.path = wanted.weights, .advice = "name the base weights of the run with --weights"});
}

// RUN/best as the folder of that checkpoint; all else as it is.
Result<std::string> resolved_weights(const std::string& weights, aio::IoWatchdog& watchdog) {
  std::error_code error;
  const std::filesystem::path path(weights);
  const auto name = path.has_filename() ? path.filename() : path.parent_path().filename();
  if (name != engine::kBestName || std::filesystem::exists(path, error)) return weights;
  SLUICE_ASSIGN_OR_RETURN(const FileQueue files, open_queue(watchdog));
  SLUICE_ASSIGN_OR_RETURN(const CheckpointArgument best,
                          find_checkpoint(*files.queue, weights, ""));
  return best.path;
}

Result<int> run(const EvalOptions& asked, aio::IoWatchdog& watchdog) {
  EvalOptions options = asked;
  SLUICE_ASSIGN_OR_RETURN(options.weights, model_folder(options.weights, HubFiles::kModel));
  SLUICE_ASSIGN_OR_RETURN(options.weights, resolved_weights(options.weights, watchdog));
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
  std::cerr
      << "sluice: the loss is not finite: the weights contain NaN or infinity, or the computation "
         "overflows in its type (bf16.enabled, fp16.enabled; without both fp32)\n";
  return kExitNotFinite;
}

}  // namespace

Command add_eval_command(CLI::App& sluice) {
  CLI::App* const command = sluice.add_subcommand(
      "eval", "Evaluate weights on data: the mean loss, also for models larger than memory");
  command->footer(
      "  sluice eval configs/demo.json --weights model.safetensors --data val.bin\n  sluice eval "
      "run.json --weights hf/ --data sft/val.bin --by-document --csv\n  sluice eval "
      "runs/lora/config.json --adapter runs/lora\nCONFIG describes the model. A config.json in the "
      "folder of the weights must agree with it, and\nmodels that sluice import refuses are "
      "refused here too. --by-document needs data from\ntools/prepare --chat, and evaluates each "
      "document completely (data.long_documents: split): the\npart that does not fit a row "
      "continues in another row, which sees only one token of the text\nbefore it.");
  const auto options = std::make_shared<EvalOptions>();
  add_config_options(*command, options->config);
  command->add_option(
      "--weights", options->weights,
      "A safetensors file, index or folder, or RUN/best; for a run's adapters only needed if "
      "their base model has moved");
  command->add_option("--adapter", options->adapter,
                      "A PEFT folder, a run of adapters (its newest checkpoint) or one of its "
                      "checkpoints: evaluates the weights with these adapters");
  command->add_option("--data", options->data,
                      "Token files; default: the configuration's validation data");
  CLI::Option* const batches =
      command
          ->add_option("--batches", options->batches,
                       "Largest number of micro-batches (run.eval_batches); default: all of --data")
          ->check(at_least(1));
  CLI::Option* const by_document =
      command
          ->add_flag("--by-document", options->by_document,
                     "The loss and perplexity of each document, over all data")
          ->excludes(batches);
  CLI::Option* const json = command->add_flag("--json", options->json, "Prints one JSON object");
  command->add_flag("--csv", options->csv, "With --by-document: prints one CSV line per document")
      ->needs(by_document)
      ->excludes(json);
  add_any_tokenizer(*command, options->any_tokenizer);
  return [options](aio::IoWatchdog& watchdog) { return run(*options, watchdog); };
}

}  // namespace sluice::tools
