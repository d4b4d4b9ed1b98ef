#include "tools/session/run_tokenizer.h"

#include <CLI/CLI.hpp>
#include <utility>

#include "aio/log.h"
#include "engine/exchange/adapter_weights.h"
#include "engine/exchange/kept_tokenizer.h"
#include "engine/exchange/model_weights.h"
#include "engine/exchange/tokenizer_checks.h"
#include "engine/families/families.h"
#include "tools/session/hub_model.h"
#include "tools/session/open_queue.h"

namespace sluice::tools {
namespace {

using engine::TokenizerFiles;

// Returns the error unless `any` allows it; a difference is always reported.
Status allowed(Status checked, bool any) {
  if (checked.ok()) return checked;
  if (checked.error().code() != ErrorCode::kInvalidArgument) return checked;
  if (any) {
    log::warning(checked.error().message());
    return {};
  }
  return Error(checked.error())
      .with_suffix(std::string(". Prepare the text with the other tokenizer (tools/prepare "
                               "--tokenizer FILE), or continue anyway with ") +
                   kAnyTokenizer);
}

// With `any` and different tokenizers, the first one.
Result<TokenizerFiles> tokenizer_of(aio::IoQueue& queue, const std::vector<std::string>& files,
                                    bool any) {
  auto common = engine::common_tokenizer(queue, files);
  if (common.ok()) return common;
  SLUICE_RETURN_IF_ERROR(allowed(common.error(), any));
  return engine::tokenizer_of_tokens(queue, files.front());
}

// Merges a model's tokenizer with that of the data it continues with. A model that learns to end
// texts with another token ends them with either; the token that begins a text is the model's.
TokenizerFiles joined(const TokenizerFiles& of_model, const TokenizerFiles& of_data) {
  TokenizerFiles both = engine::fuller_of(of_model, of_data);
  both.special = of_model.special.empty() ? of_data.special : of_model.special;
  for (const std::int64_t end : of_data.special.ends)
    if (!both.special.ends_text(end)) both.special.ends.push_back(end);
  return both;
}

struct Model {
  const TokenizerFiles& tokenizer;
  std::string name;
};
// Returns the tokenizer to keep; the data's if they differ and `any` allows it.
Result<TokenizerFiles> compared(aio::IoQueue& queue, const Model& model, const TokenizerFiles& data,
                                bool any) {
  const Status same =
      engine::check_same_tokenizer(queue, {data, "the data", model.tokenizer, model.name});
  SLUICE_RETURN_IF_ERROR(allowed(same, any));
  return same.ok() ? joined(model.tokenizer, data) : data;
}

Result<TokenizerFiles> compared_with_weights(aio::IoQueue& queue, const config::Config& config,
                                             const TokenizerFiles& data, bool any) {
  const std::string& weights = config.model.init_from;
  SLUICE_RETURN_IF_ERROR(engine::open_model_weights(queue, weights, config.model.shape(),
                                                    engine::HeadCheck::kBeginning)
                             .status());
  SLUICE_ASSIGN_OR_RETURN(const TokenizerFiles of_weights,
                          engine::tokenizer_of_weights(queue, weights));
  return compared(queue, {of_weights, weights}, data, any);
}

Status check_adapter(aio::IoQueue& queue, const config::Config& config) {
  if (config.lora.adapter.empty()) return {};
  auto adapters = engine::AdapterWeights::open(
      queue, config.lora.adapter,
      engine::ModelOptions{.shape = config.model.shape(), .lora = config.lora.recipe()});
  if (!adapters.ok()) return std::move(adapters).error().with_context("recipe.lora.adapter");
  if (adapters->config().recipe.dropout != config.lora.dropout)
    log::info(config.lora.adapter +
              " was trained with another lora_dropout than recipe.lora.dropout: training losses "
              "are not comparable with the earlier ones");
  return {};
}

}  // namespace

void add_any_tokenizer(CLI::App& command, bool& any) {
  command.add_flag(kAnyTokenizer, any,
                   "Continues even if the tokenizers of training and validation data, or of data "
                   "and model, differ");
}

Result<TokenizerFiles> check_training_data(aio::IoQueue& queue, const config::Config& config,
                                           bool any) {
  SLUICE_ASSIGN_OR_RETURN(const TokenizerFiles train, tokenizer_of(queue, config.data.train, any));
  SLUICE_ASSIGN_OR_RETURN(const TokenizerFiles validation,
                          tokenizer_of(queue, config.data.validation, any));
  const Status same =
      engine::check_same_tokenizer(queue, {train, "data.train", validation, "data.validation"});
  SLUICE_RETURN_IF_ERROR(allowed(same, any));
  if (!config.data.train.empty() && train.fingerprint.empty())
    log::info("the data's tokenizer is not known and was not compared: " + train.note);
  const bool known = !train.fingerprint.empty() && !validation.fingerprint.empty();
  const TokenizerFiles data = same.ok() && known ? engine::fuller_of(train, validation) : train;
  if (!config.run.resume.empty()) return data;
  return check_first_data(queue, config, data, any);
}

Result<TokenizerFiles> check_first_data(aio::IoQueue& queue, const config::Config& config,
                                        const TokenizerFiles& data, bool any) {
  SLUICE_RETURN_IF_ERROR(check_adapter(queue, config));
  if (!config.model.init_from.empty()) return compared_with_weights(queue, config, data, any);
  const auto hint = engine::vocabulary_hint(data, config.model.vocab, config.model.hidden);
  if (hint) log::warning(*hint);
  return data;
}

Status check_evaluation_data(aio::IoQueue& queue, const config::Config& config, bool any) {
  const auto& files = config.data.validation.empty() ? config.data.train : config.data.validation;
  SLUICE_ASSIGN_OR_RETURN(const TokenizerFiles data, tokenizer_of(queue, files, any));
  SLUICE_RETURN_IF_ERROR(check_adapter(queue, config));
  return compared_with_weights(queue, config, data, any).status();
}

void warn_of_tokenizers(const config::Config& config, aio::IoWatchdog& watchdog) {
  const auto checked = [&]() -> Status {
    SLUICE_ASSIGN_OR_RETURN(const FileQueue files, open_queue(watchdog));
    config::Config known = config;
    if (is_partial_snapshot(known.model.init_from)) known.model.init_from.clear();
    return check_training_data(*files.queue, known, /*any=*/false).status();
  }();
  if (!checked.ok()) log::warning("sluice train would refuse this: " + checked.error().message());
}

Result<TokenizerFiles> check_resumed_data(aio::IoQueue& queue, const ResumedTokenizer& resumed) {
  auto found = engine::tokenizer_of_weights(queue, resumed.checkpoint);
  if (!found.ok() && found.error().code() == ErrorCode::kCorrupt)
    return std::move(found).error().with_suffix(
        ": restore it, or move the run's tokenizer folder away to use the tokenizer of the data");
  if (!found.ok()) return found;
  return compared(queue, {*found, "the run that wrote " + resumed.checkpoint}, resumed.of_data,
                  resumed.any);
}

Status keep_run_tokenizer(aio::IoQueue& queue, const config::Config& config,
                          TokenizerFiles tokenizer, std::int64_t first_step) {
  tokenizer.special = tokenizer.special.within(config.model.vocab);
  SLUICE_ASSIGN_OR_RETURN(const TokenizerFiles kept,
                          engine::keep_tokenizer(queue, tokenizer,
                                                 {.directory = config.run.dir,
                                                  .context_tokens = config.model.context_tokens,
                                                  .first_step = first_step}));
  if (kept.kind == TokenizerFiles::Kind::kUnknown && !kept.fingerprint.empty())
    log::info("the run stores no tokenizer, only its fingerprint: " + tokenizer.note);
  return {};
}

Result<TokenizerFiles> chosen_tokenizer(aio::IoQueue& queue, const ChosenTokenizer& chosen) {
  auto of_run = engine::find_tokenizer(queue, chosen.run_directory, chosen.token_files);
  if (chosen.name.empty()) return of_run;
  SLUICE_ASSIGN_OR_RETURN(std::string name, model_folder(chosen.name, HubFiles::kTokenizer));
  if (name != chosen.name) name += "/tokenizer.json";
  SLUICE_ASSIGN_OR_RETURN(TokenizerFiles named, engine::tokenizer_named(queue, name));
  if (!of_run.ok()) {  // the named tokenizer replaces it
    log::warning(of_run.error().message());
    return named;
  }
  const Status same = engine::check_same_tokenizer(
      queue, {named, "--tokenizer " + chosen.name, *of_run, "the model"});
  if (!same.ok()) log::warning(same.error().message());
  named.special = of_run->special.or_else(named.special);
  return named;
}

}  // namespace sluice::tools
