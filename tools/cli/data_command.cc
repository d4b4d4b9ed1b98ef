#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <utility>

#include "aio/log.h"
#include "aio/small_file.h"
#include "engine/data/token_sidecar.h"
#include "engine/exchange/byte_tokenizer.h"
#include "engine/exchange/tokenizer_checks.h"
#include "engine/samples/run_samples.h"
#include "tools/cli/command.h"
#include "tools/cli/data_report.h"
#include "tools/cli/data_samples.h"
#include "tools/cli/option_checks.h"
#include "tools/cli/text_tokens.h"
#include "tools/session/config_options.h"
#include "tools/session/hub_model.h"
#include "tools/session/open_queue.h"
#include "tools/session/show_share.h"

namespace sluice::tools {
namespace {

constexpr std::uint64_t kTokensShown = 400;

struct DataOptions {
  std::string file;
  ConfigOptions config;
  std::int64_t sequence_tokens = 0;  // 0: not given
  std::string dtype;
  std::string tokenizer;
  std::string tokens_tool;
  std::int64_t samples = 3;
  std::uint64_t seed = 0;
  std::optional<std::uint64_t> at;
  std::uint64_t tokens = kTokensShown;
  bool plain = false;
  bool json = false;
};

// The opened files, and the rows that are made of them, if any.
struct Opened {
  std::optional<engine::RunSamples> run;
  std::unique_ptr<const data::TokenCorpus> alone;  // not moved: `windows` refers to it
  std::unique_ptr<data::SampleSource> windows;     // refers to `alone`
  std::uint64_t row_tokens = 0;
  std::int64_t vocab = 0;  // vocabulary of the run's model; 0: there is none

  const data::TokenCorpus& corpus() const { return run ? run->training_corpus() : *alone; }
  const data::SampleSource* rows() const { return run ? run->training() : windows.get(); }
};

bool is_only_file(const std::vector<std::string>& files, const std::string& file) {
  std::error_code ignored;
  return files.size() == 1 && std::filesystem::equivalent(files.front(), file, ignored);
}

// The rows of a run; a file that is not the run's training data is treated as if it were.
Result<Opened> open_run(const DataOptions& options) {
  ConfigOptions asked = options.config;
  if (options.sequence_tokens > 0)
    asked.overrides.push_back("data.sequence_length=" + std::to_string(options.sequence_tokens));
  SLUICE_ASSIGN_OR_RETURN(config::Resolved resolved, resolve(asked));
  config::Data& data = resolved.config.data;
  if (!options.file.empty() && !is_only_file(data.train, options.file)) {
    data.train = {options.file};
    data.validation.clear();
    data.validation_fraction = 0;
  }
  Opened opened;
  SLUICE_ASSIGN_OR_RETURN(opened.run,
                          engine::RunSamples::open(resolved.config, {.reads_all_tokens = false}));
  opened.row_tokens = static_cast<std::uint64_t>(data.sequence_tokens);
  opened.vocab = resolved.config.model.vocab;
  return opened;
}

Result<Opened> open_file(const DataOptions& options) {
  const std::string files[] = {options.file};
  Opened opened;
  SLUICE_ASSIGN_OR_RETURN(
      data::TokenCorpus corpus,
      data::TokenCorpus::open(files, {.type = data::token_type_named(options.dtype)}));
  opened.alone = std::make_unique<const data::TokenCorpus>(std::move(corpus));
  if (options.sequence_tokens == 0) return opened;
  opened.row_tokens = static_cast<std::uint64_t>(options.sequence_tokens);
  const data::SourceOptions wanted = {.sequence_tokens = opened.row_tokens,
                                      .shuffle_seed = options.seed};
  const data::TokenDocuments* const documents = opened.alone->files().front().documents();
  if (documents == nullptr) {
    SLUICE_ASSIGN_OR_RETURN(opened.windows,
                            data::window_source(*opened.alone, opened.alone->whole(), wanted));
    return opened;
  }
  const data::DocumentRange all = {.file = 0, .first = 0, .last = documents->count()};
  SLUICE_ASSIGN_OR_RETURN(opened.windows, data::document_source(*opened.alone, {&all, 1}, wanted));
  return opened;
}

Result<Opened> open(const DataOptions& options) {
  if (!options.config.file.empty()) return open_run(options);
  if (!options.file.empty()) return open_file(options);
  return Error(
      ErrorCode::kInvalidArgument,
      "name a token file (such as data/train.bin), or a run's configuration with --config");
}

std::string tokenizer_path(const std::string& name) {
  std::error_code ignored;
  return std::filesystem::is_directory(name, ignored) ? name + "/tokenizer.json" : name;
}

Result<engine::TokenizerFiles> tokenizer_of(aio::IoQueue& queue, const DataOptions& options,
                                            const std::string& path) {
  SLUICE_ASSIGN_OR_RETURN(engine::TokenizerFiles beside, engine::tokenizer_of_tokens(queue, path));
  if (options.tokenizer.empty()) return beside;
  SLUICE_ASSIGN_OR_RETURN(const std::string folder,
                          model_folder(options.tokenizer, HubFiles::kTokenizer));
  auto named = engine::tokenizer_named(queue, tokenizer_path(folder));
  if (!named.ok()) return std::move(named).error().with_context("--tokenizer");
  const Status same = engine::check_same_tokenizer(
      queue, {*named, "--tokenizer " + options.tokenizer, beside, path});
  if (!same.ok()) log::warning(same.error().message());
  named->special = beside.special.or_else(named->special);
  return named;
}

Status check_tokenizer(const FileReport& file) {
  const std::uint64_t tokens = file.tokenizer.tokens;
  using Kind = engine::TokenizerFiles::Kind;
  if (file.tokenizer.kind == Kind::kUnknown || tokens == 0 || file.census.largest < tokens)
    return {};
  return Error(ErrorCode::kInvalidArgument,
               file.path + ": token " + std::to_string(file.census.largest_at) + " is " +
                   std::to_string(file.census.largest) + ", and the tokenizer " +
                   file.tokenizer.description() + " ends at " + std::to_string(tokens - 1) +
                   ": the file belongs to another tokenizer; name it with --tokenizer FILE");
}

Result<FileReport> look_at(aio::IoQueue& queue, const DataOptions& options,
                           const data::TokenFile& file) {
  FileReport report{.path = file.path(),
                    .type = std::string(data::to_string(file.type())),
                    .has_documents = file.documents() != nullptr,
                    .vocab_size = file.vocab_size()};
  if (!file.note().empty()) log::warning(file.note());
  SLUICE_ASSIGN_OR_RETURN(report.tokenizer, tokenizer_of(queue, options, file.path()));
  const std::string sidecar = file.path() + ".json";
  SLUICE_ASSIGN_OR_RETURN(const bool has_sidecar, queue.backend().files().exists(sidecar));
  if (has_sidecar) {
    SLUICE_ASSIGN_OR_RETURN(const std::string text,
                            aio::read_small_file(queue, sidecar, data::kMaxSidecarBytes));
    report.record = data::parse_token_record(text);
  }
  const std::vector<std::int64_t>& ends = report.tokenizer.special.ends;
  TerminalLine line;
  SLUICE_ASSIGN_OR_RETURN(
      report.census,
      data::take_census(file, ends.empty() ? std::nullopt : std::optional(ends.front()),
                        show_share(line, "reading " + file.path())));
  SLUICE_RETURN_IF_ERROR(check_tokenizer(report));
  return report;
}

RowsReport rows_of(const Opened& opened) {
  const data::SampleSource& rows = *opened.rows();
  RowsReport report{.row_tokens = opened.row_tokens,
                    .rows = rows.count(),
                    .documents = rows.documents(),
                    .targets = rows.targets(),
                    .outcome = rows.outcome()};
  for (std::uint64_t row = 0; row < rows.count(); ++row)
    for (const data::SamplePlace& place : rows.places(row)) report.predictions += place.tokens - 1;
  if (opened.run && opened.run->validation() != nullptr)
    report.validation_rows = opened.run->validation()->count();
  return report;
}

// Shows bytes as text, and tokens beyond them by their names.
class VisibleBytes final : public TextTokens {
 public:
  Result<std::vector<std::int64_t>> encode(const std::string& text) override {
    return bytes_->encode(text);
  }
  Result<std::string> decode(std::int64_t token) override {
    SLUICE_ASSIGN_OR_RETURN(const std::string text, bytes_->decode(token));
    if (token < engine::kByteEndOfText) return text;
    return text + std::string(engine::kEndOfTextName);
  }
  Result<std::string> finish() override { return bytes_->finish(); }
  Status restart() override { return bytes_->restart(); }

 private:
  std::unique_ptr<TextTokens> bytes_ = byte_tokens();
};

// Null: tokens are shown as numbers.
Result<std::unique_ptr<TextTokens>> words_of(const DataOptions& options,
                                             const engine::TokenizerFiles& tokenizer) {
  using Kind = engine::TokenizerFiles::Kind;
  if (tokenizer.kind == Kind::kUnknown) return std::unique_ptr<TextTokens>();
  if (tokenizer.kind == Kind::kBytes)
    return std::unique_ptr<TextTokens>(std::make_unique<VisibleBytes>());
  SLUICE_ASSIGN_OR_RETURN(const std::string tool, find_tokens_tool(options.tokens_tool));
  return tool_tokens({.tool = tool, .json = tokenizer.path});
}

Status add_samples(const DataOptions& options, const Opened& opened, DataReport& report) {
  const std::uint64_t shown = options.tokens == 0 ? ~std::uint64_t{0} : options.tokens;
  const std::uint64_t length = opened.rows() != nullptr ? opened.row_tokens
                               : options.tokens == 0    ? kTokensShown
                                                        : shown;
  SLUICE_ASSIGN_OR_RETURN(report.samples,
                          choose_samples(opened.corpus(), opened.rows(),
                                         {.count = static_cast<std::uint64_t>(options.samples),
                                          .seed = options.seed,
                                          .at = options.at,
                                          .piece_tokens = length}));
  if (report.samples.empty()) return {};
  SLUICE_ASSIGN_OR_RETURN(const auto words, words_of(options, report.files.front().tokenizer));
  for (DataSample& sample : report.samples)
    SLUICE_RETURN_IF_ERROR(read_text(opened.corpus(), words.get(), shown, sample));
  return {};
}

Result<int> run(const DataOptions& options, aio::IoWatchdog& watchdog) {
  SLUICE_ASSIGN_OR_RETURN(const FileQueue files, open_queue(watchdog));
  SLUICE_ASSIGN_OR_RETURN(const Opened opened, open(options));
  DataReport report;
  for (const data::TokenFile& file : opened.corpus().files()) {
    SLUICE_ASSIGN_OR_RETURN(report.files.emplace_back(), look_at(*files.queue, options, file));
    if (opened.vocab > 0 &&
        report.files.back().census.largest >= static_cast<std::uint64_t>(opened.vocab))
      SLUICE_RETURN_IF_ERROR(file.check_vocab(static_cast<std::uint64_t>(opened.vocab)));
  }
  if (opened.rows() != nullptr) report.rows = rows_of(opened);
  SLUICE_RETURN_IF_ERROR(add_samples(options, opened, report));
  const bool in_colour =
      !options.plain && ::isatty(STDOUT_FILENO) == 1 && std::getenv("NO_COLOR") == nullptr;
  std::cout << (options.json ? data_json(report)
                             : data_text(report, in_colour ? Marks::kColour : Marks::kBrackets));
  return 0;
}

}  // namespace

Command add_data_command(CLI::App& sluice) {
  CLI::App* const command = sluice.add_subcommand(
      "data",
      "Show the contents of a token file: counts, lengths, and text with the trained parts marked");
  command->footer(
      "  sluice data sft/train.bin                        documents as stored\n  sluice data "
      "sft/train.bin --sequence-length 4096 packed into rows, cut and padded\n  sluice data "
      "--config run.json --at 123456        the row of the run that contains this token\nTrained "
      "tokens are green on a terminal, otherwise in brackets. Text is decoded with the "
      "tokenizer\nthat tools/prepare saved with the file. Characters that would change a terminal "
      "are shown\nas \\x1b or \\u202e.");
  const auto options = std::make_shared<DataOptions>();
  command->add_option("FILE", options->file, "Token file; default: the training data of --config")
      ->check(not_empty());
  CLI::Option* const config =
      command
          ->add_option("--config", options->config.file,
                       "A run's configuration: shows rows as that run sees them")
          ->check(not_empty());
  command
      ->add_option("--set", options->config.overrides,
                   "Overrides one key of --config: --set data.long_documents=split")
      ->allow_extra_args(false)
      ->needs(config);
  command
      ->add_option("--sequence-length", options->sequence_tokens,
                   "Shows rows of this many tokens, as with data.sequence_length")
      ->check(at_least(1));
  command
      ->add_option("--dtype", options->dtype,
                   "Token type of a file without a header: uint16, uint32")
      ->check(CLI::IsMember({"uint16", "uint32"}))
      ->excludes(config);
  command->add_option("--samples", options->samples, "Number of samples shown (default 3)")
      ->check(at_least(0));
  command
      ->add_option("--at", options->at,
                   "Shows the document or row that contains this token of the file, from there on; "
                   "default: random samples")
      ->check(at_least(0));
  command->add_option("--seed", options->seed, "Seed of the random samples (default 0)")
      ->check(at_least(0));
  command
      ->add_option("--tokens", options->tokens, "Tokens shown of each sample (default 400); 0: all")
      ->check(at_least(0));
  command
      ->add_option("--tokenizer", options->tokenizer,
                   "A tokenizer.json, its folder, or bytes; default: the one saved with the file")
      ->check(not_empty());
  command->add_option("--tokens-tool", options->tokens_tool,
                      "Path of tools/tokens, if it is not in the source tree of this program");
  command->add_flag("--plain", options->plain, "Brackets instead of colours, even on a terminal");
  command->add_flag("--json", options->json, "Prints one JSON object");
  return [options](aio::IoWatchdog& watchdog) { return run(*options, watchdog); };
}

}  // namespace sluice::tools
