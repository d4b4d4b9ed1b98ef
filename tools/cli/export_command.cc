#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "aio/log.h"
#include "aio/units.h"
#include "engine/config/stored_config.h"
#include "engine/exchange/export_model.h"
#include "tools/cli/checkpoint_argument.h"
#include "tools/cli/command.h"
#include "tools/cli/command_model.h"
#include "tools/cli/open_queue.h"
#include "tools/cli/run_tokenizer.h"
#include "tools/cli/show_share.h"
#include "tools/cli/weight_dtype.h"

namespace sluice::tools {
namespace {

struct ExportCommandOptions {
  std::string from;
  std::string to;
  std::string checkpoint;
  std::string dtype = "fp32";
  std::string max_shard_size = "5G";
  std::string tokenizer;
  bool merged = false;
  std::string base;
};

// The base of adapters: as it is named, or where the run has it.
Result<std::string> base_of(const ExportCommandOptions& options,
                            const engine::CheckpointState& state) {
  if (!state.run.adapters) {
    if (options.base.empty()) return std::string();
    return Error(ErrorCode::kInvalidArgument,
                 "--base: the checkpoint holds a whole model, and no adapters beside one");
  }
  if (!options.base.empty() && !options.merged)
    return Error(ErrorCode::kInvalidArgument,
                 "--base names the weights that --merged adds the adapters to: give both, or leave "
                 "it out");
  if (!options.base.empty()) return options.base;
  const auto config = config::resolve_stored(state.configuration);
  const std::string found = config.ok() ? config->model.init_from : std::string();
  if (found.empty() && options.merged)
    return Error(ErrorCode::kInvalidArgument,
                 "where the weights are that the adapters were trained beside is not known: name "
                 "them with --base FOLDER");
  return found;
}

// The run's token files, as its checkpoint has them. A configuration of another version, which can
// no longer be read, costs the tokenizer but not the weights.
std::vector<std::string> token_files(const engine::CheckpointState& state) {
  const auto config = config::resolve_stored(state.configuration);
  return config.ok() ? config->data.train : std::vector<std::string>();
}

void tell_tokenizer(const engine::TokenizerFiles& tokenizer) {
  using Kind = engine::TokenizerFiles::Kind;
  if (tokenizer.kind == Kind::kUnknown)
    log::warning("the folder has no tokenizer, because its tokenizer is not known: " +
                 tokenizer.note + ". To have one in it, name it with --tokenizer FILE (or bytes)");
  if (tokenizer.kind != Kind::kUnknown)
    std::cout << "tokenizer: " << tokenizer.description() << "\n";
  if (tokenizer.special.ends.empty())
    log::warning("which token ends a text is not known: generation continues to its limit");
}

Result<int> run(const ExportCommandOptions& options, aio::IoWatchdog& watchdog) {
  engine::ExportOptions wanted{.folder = options.to};
  SLUICE_ASSIGN_OR_RETURN(wanted.dtype, weight_dtype(options.dtype));
  auto shard = parse_bytes(options.max_shard_size);
  if (!shard.ok()) return std::move(shard).error().with_context("--max-shard-size");
  wanted.max_shard_bytes = *shard;
  SLUICE_ASSIGN_OR_RETURN(const FileQueue files, open_queue(watchdog));
  SLUICE_RETURN_IF_ERROR(engine::check_empty(files.backend->files(), options.to));
  SLUICE_ASSIGN_OR_RETURN(const CheckpointArgument from,
                          find_checkpoint(*files.queue, options.from, options.checkpoint));
  SLUICE_ASSIGN_OR_RETURN(const auto checkpoint, engine::CheckpointReader::open(
                                                     *files.queue, from.path, {.moments = false}));
  SLUICE_ASSIGN_OR_RETURN(
      wanted.tokenizer,
      chosen_tokenizer(*files.queue, {.name = options.tokenizer,
                                      .run_directory = from.run_directory,
                                      .token_files = token_files(checkpoint->state())}));
  wanted.merged = options.merged;
  SLUICE_ASSIGN_OR_RETURN(wanted.base, base_of(options, checkpoint->state()));
  wanted.run_directory = from.run_directory;
  const bool is_adapter = checkpoint->state().run.adapters && !options.merged;
  const auto& adapters = checkpoint->state().run.adapters;
  if (options.merged && adapters && adapters->base_bits < engine::StoredAdapters{}.base_bits)
    log::info("the adapters were trained beside this model in " +
              std::to_string(adapters->base_bits) +
              " bits, and are merged into its own numbers: what is written differs from what was "
              "trained by what that rounded");
  TerminalLine line;
  bool has_begun = false;
  wanted.progress = show_share(line, "exporting", &has_begun);
  const auto exported = engine::export_model(*files.queue, *checkpoint, wanted);
  line.clear();
  if (!exported.ok() && has_begun) return at_work(exported.error());
  if (!exported.ok()) return exported.error();
  std::cout << options.to << ": the " << (is_adapter ? "adapters" : "weights") << " of "
            << from.path << (options.merged ? " merged with " + wanted.base : std::string())
            << " as " << options.dtype << ", " << format_bytes(exported->bytes) << " in "
            << exported->files << (exported->files == 1 ? " file\n" : " files\n");
  tell_tokenizer(wanted.tokenizer);
  return 0;
}

}  // namespace

Command add_export_command(CLI::App& sluice) {
  CLI::App* const command = sluice.add_subcommand(
      "export", "Export a checkpoint's weights, every byte verified, as a Hugging Face folder");
  command->footer(
      "  sluice export runs/demo exported\n"
      "  sluice export runs/demo exported-bf16 --checkpoint 400 --dtype bf16\n"
      "  python3 -c 'from transformers import AutoModelForCausalLM as M; "
      "M.from_pretrained(\"exported\")'\n"
      "OUT gets model.safetensors (or shards and their index), config.json,\n"
      "generation_config.json with the tokens that end a text, README.md, which says how it was\n"
      "trained, and the tokenizer that the run keeps in DIR/tokenizer, or the one that "
      "tools/prepare\n"
      "left beside its token files. A damaged checkpoint is refused, and leaves no config.json. A\n"
      "checkpoint of adapters (recipe.lora) becomes a folder of PEFT's, or with --merged a whole\n"
      "model.");
  const auto options = std::make_shared<ExportCommandOptions>();
  command->add_option("DIR", options->from, "A run's directory, or the folder of one checkpoint")
      ->required();
  command->add_option("OUT", options->to, "The folder to make; not there yet, or empty")
      ->required();
  command->add_option("--checkpoint", options->checkpoint,
                      "Of a run's directory: step-000000012, or 12; else the newest");
  command->add_option("--dtype", options->dtype, "Of the weights: fp32 (default), bf16, fp16")
      ->check(choices(kWeightDTypes));
  command->add_option("--max-shard-size", options->max_shard_size,
                      "Splits larger weights into several files (default 5G); 0: never");
  command->add_option("--tokenizer", options->tokenizer,
                      "A tokenizer.json, or bytes; else the one the run was trained with");
  command->add_flag("--merged", options->merged,
                    "Of adapters: adds them to the weights that they were trained beside");
  command->add_option("--base", options->base,
                      "Those weights, where they are no longer where the run found them");
  return [options](aio::IoWatchdog& watchdog) { return run(*options, watchdog); };
}

}  // namespace sluice::tools
