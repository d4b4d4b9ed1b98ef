#include "tools/cli/run_tokenizer.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <utility>

#include "aio/log.h"
#include "engine/exchange/gpt2_weights.h"
#include "engine/exchange/tokenizer_checks.h"
#include "engine/model/gpt_shape.h"

namespace sluice::tools {
namespace {

using engine::TokenizerFiles;
using Kind = TokenizerFiles::Kind;

// What differs is said in any case.
Status allowed(Status checked, bool any) {
  if (checked.ok()) return checked;
  if (checked.error().code() != ErrorCode::kInvalidArgument) return checked;
  if (any) {
    log::warning(checked.error().message());
    return {};
  }
  return Error(checked.error())
      .with_suffix(std::string(". Prepare the text with the other one's tokenizer (tools/prepare "
                               "--tokenizer FILE), or go on all the same with ") +
                   kAnyTokenizer);
}

// With `any` the first one's.
Result<TokenizerFiles> tokenizer_of(aio::IoQueue& queue, const std::vector<std::string>& files,
                                    bool any) {
  auto common = engine::common_tokenizer(queue, files);
  if (common.ok()) return common;
  SLUICE_RETURN_IF_ERROR(allowed(common.error(), any));
  return engine::tokenizer_of_tokens(queue, files.front());
}

Status check_weights(aio::IoQueue& queue, const config::Config& config, const TokenizerFiles& data,
                     bool any) {
  const std::string& weights = config.model.init_from;
  if (weights.empty()) return {};
  const auto opened = engine::open_gpt2_weights(queue, weights, engine::gpt_shape(config.model));
  if (!opened.ok()) return opened.error();
  SLUICE_ASSIGN_OR_RETURN(const TokenizerFiles of_weights,
                          engine::tokenizer_of_weights(queue, weights));
  return allowed(engine::check_same_tokenizer({data, "the data", of_weights, weights}), any);
}

std::string kept_folder(const std::string& directory) {
  return directory + "/" + std::string(engine::kTokenizerFolder);
}
std::string staged_folder(const std::string& directory) { return kept_folder(directory) + ".new"; }

void say_what_is_unknown(const TokenizerFiles& data) {
  if (data.kind != Kind::kUnknown) return;
  log::info((data.fingerprint.empty() ? "which tokenizer the data is of is not known, and not "
                                        "compared: "
                                      : "the run keeps no tokenizer: ") +
            data.note);
}

}  // namespace

void add_any_tokenizer(CLI::App& command, bool& any) {
  command.add_flag(kAnyTokenizer, any,
                   "Goes on though tokenizers differ: of training and validation data, or of the "
                   "data and the model");
}

Result<TokenizerFiles> check_training_data(aio::IoQueue& queue, const config::Config& config,
                                           bool any) {
  SLUICE_ASSIGN_OR_RETURN(const TokenizerFiles train, tokenizer_of(queue, config.data.train, any));
  SLUICE_ASSIGN_OR_RETURN(const TokenizerFiles validation,
                          tokenizer_of(queue, config.data.validation, any));
  SLUICE_RETURN_IF_ERROR(allowed(
      engine::check_same_tokenizer({train, "data.train", validation, "data.validation"}), any));
  const bool begins = config.run.resume.empty();
  if (begins) SLUICE_RETURN_IF_ERROR(check_weights(queue, config, train, any));
  if (!config.data.train.empty()) say_what_is_unknown(train);
  const auto hint = engine::vocabulary_hint(train, config.model.vocab, config.model.hidden);
  if (hint && begins && config.model.init_from.empty()) log::warning(*hint);
  return train;
}

Status check_evaluation_data(aio::IoQueue& queue, const config::Config& config, bool any) {
  const auto& files = config.data.validation.empty() ? config.data.train : config.data.validation;
  SLUICE_ASSIGN_OR_RETURN(const TokenizerFiles data, tokenizer_of(queue, files, any));
  return check_weights(queue, config, data, any);
}

Result<TokenizerFiles> check_resumed_data(aio::IoQueue& queue, const ResumedTokenizer& resumed) {
  auto found = engine::tokenizer_of_weights(queue, resumed.checkpoint);
  if (!found.ok() && found.error().code() == ErrorCode::kCorrupt)
    return std::move(found).error().with_suffix(
        ": bring it back, or move the run's tokenizer folder away to keep that of the data in it");
  if (!found.ok()) return found;
  const TokenizerFiles& of_run = *found;
  const TokenizerFiles& of_data = resumed.of_data;
  const Status same = engine::check_same_tokenizer(
      {of_data, "the data", of_run, "the run that wrote " + resumed.checkpoint});
  SLUICE_RETURN_IF_ERROR(allowed(same, resumed.any));
  if (!same.ok() || of_run.kind == Kind::kUnknown) {
    TokenizerFiles kept = of_data;
    if (same.ok()) kept.special = of_run.special.or_else(of_data.special);
    return kept;
  }
  // A model that learns to end texts with another token ends them with either.
  TokenizerFiles kept = of_run;
  for (const std::int64_t end : of_data.special.ends)
    if (!kept.special.ends_text(end)) kept.special.ends.push_back(end);
  return kept;
}

Status stage_run_tokenizer(aio::IoQueue& queue, const config::Config& config,
                           TokenizerFiles tokenizer, bool anew) {
  aio::FileSystem& files = queue.backend().files();
  SLUICE_RETURN_IF_ERROR(discard_run_tokenizer(files, config.run.dir));
  tokenizer.special = tokenizer.special.within(config.model.vocab);
  if (tokenizer.kind == Kind::kUnknown && tokenizer.special.empty()) return {};
  if (!anew) {
    SLUICE_ASSIGN_OR_RETURN(TokenizerFiles there,
                            engine::tokenizer_in(queue, kept_folder(config.run.dir)));
    if (there.kind != Kind::kUnknown && there.fingerprint == tokenizer.fingerprint) {
      if (there.special == tokenizer.special) return {};
      there.special = tokenizer.special;
      tokenizer = std::move(there);
    }
  }
  const std::string folder = staged_folder(config.run.dir);
  SLUICE_RETURN_IF_ERROR(files.make_directories(folder));
  return engine::write_tokenizer(queue, tokenizer, folder, config.model.context_tokens);
}

Status put_run_tokenizer(aio::FileSystem& files, const std::string& directory) {
  const std::string from = staged_folder(directory);
  const std::string to = kept_folder(directory);
  SLUICE_ASSIGN_OR_RETURN(const bool staged, files.exists(from));
  if (!staged) return {};
  SLUICE_RETURN_IF_ERROR(engine::remove_kept_tokenizer(files, directory));
  SLUICE_ASSIGN_OR_RETURN(const bool has_more, files.exists(to));  // of the user's
  if (!has_more) {
    SLUICE_RETURN_IF_ERROR(files.rename(from, to));
  } else {
    SLUICE_ASSIGN_OR_RETURN(const auto names, files.list(from));
    for (const std::string& name : names)
      SLUICE_RETURN_IF_ERROR(files.rename(from + "/" + name, to + "/" + name));
    SLUICE_RETURN_IF_ERROR(files.remove(from));
  }
  return files.sync_directory(directory);
}

Status discard_run_tokenizer(aio::FileSystem& files, const std::string& directory) {
  const std::string folder = staged_folder(directory);
  SLUICE_ASSIGN_OR_RETURN(const bool there, files.exists(folder));
  if (!there) return {};
  SLUICE_ASSIGN_OR_RETURN(const auto names, files.list(folder));
  for (const std::string& name : names) SLUICE_RETURN_IF_ERROR(files.remove(folder + "/" + name));
  return files.remove(folder);
}

Result<TokenizerFiles> chosen_tokenizer(aio::IoQueue& queue, const ChosenTokenizer& chosen) {
  const auto of_run = engine::find_tokenizer(queue, chosen.run_directory, chosen.token_files);
  if (chosen.name.empty()) return of_run;
  SLUICE_ASSIGN_OR_RETURN(TokenizerFiles named, engine::tokenizer_named(queue, chosen.name));
  if (!of_run.ok()) {  // what is named stands in for it
    log::warning(of_run.error().message());
    return named;
  }
  const Status same =
      engine::check_same_tokenizer({named, "--tokenizer " + chosen.name, *of_run, "the model"});
  if (!same.ok()) log::warning(same.error().message());
  named.special = of_run->special.or_else(named.special);
  return named;
}

}  // namespace sluice::tools
