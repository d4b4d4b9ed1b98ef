#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "aio/units.h"
#include "tools/cli/command.h"
#include "tools/cli/option_checks.h"
#include "tools/session/checkpoint_argument.h"
#include "tools/session/export_checkpoint.h"
#include "tools/session/open_queue.h"
#include "tools/session/show_share.h"
#include "tools/session/weight_dtype.h"
#include "tools/support/value_hints.h"

namespace sluice::tools {
namespace {

struct ExportCommandOptions : ExportRequest {
  std::string dtype_name;
  std::string max_shard_size = "5G";
};

Result<int> run(const ExportCommandOptions& options, aio::IoWatchdog& watchdog) {
  ExportRequest wanted = static_cast<const ExportRequest&>(options);
  if (!options.dtype_name.empty()) {
    SLUICE_ASSIGN_OR_RETURN(wanted.dtype, weight_dtype(options.dtype_name));
  }
  auto shard = parse_bytes(options.max_shard_size);
  if (!shard.ok()) return std::move(shard).error().with_context("--max-shard-size");
  wanted.max_shard_bytes = *shard;
  SLUICE_ASSIGN_OR_RETURN(const FileQueue files, open_queue(watchdog));
  TerminalLine line;
  bool has_begun = false;
  wanted.progress = show_share(line, "exporting", &has_begun);
  const auto exported = export_checkpoint(*files.queue, wanted);
  line.clear();
  if (!exported.ok() && has_begun) return at_work(exported.error());
  if (!exported.ok()) return exported.error();
  const std::size_t count = exported->files.files;
  const bool is_rounded = options.dtype_name.empty() && exported->dtype != engine::DType::kF32;
  std::cout << options.to << ": the " << (exported->is_adapter ? "adapters" : "weights") << " of "
            << exported->path << (options.merged ? " merged with " + exported->base : std::string())
            << " as " << weight_dtype_name(exported->dtype) << ", "
            << format_bytes(exported->files.bytes) << " in " << count
            << (count == 1 ? " file" : " files")
            << (is_rounded
                    ? " (like the model that the run started from; --dtype fp32 keeps every bit)\n"
                    : "\n");
  if (exported->tokenizer.kind != engine::TokenizerFiles::Kind::kUnknown)
    std::cout << "tokenizer: " << exported->tokenizer.description() << "\n";
  warn_of_exported(exported->tokenizer);
  return 0;
}

}  // namespace

Command add_export_command(CLI::App& sluice) {
  CLI::App* const command = sluice.add_subcommand(
      "export", "Export a checkpoint as a Hugging Face folder, with every byte verified");
  command->footer(
      "  sluice export runs/demo exported\n  sluice export runs/demo exported-bf16 --checkpoint "
      "400 --dtype bf16\n  python3 -c 'from transformers import AutoModelForCausalLM as M; "
      "M.from_pretrained(\"exported\")'\nOUT gets model.safetensors (or shards and their index), "
      "config.json,\ngeneration_config.json with the tokens that end a text, README.md, which says "
      "how it was\ntrained, and the tokenizer from DIR/tokenizer, or the one that tools/prepare "
      "saved with the\ntoken files. A damaged checkpoint is refused, and no config.json is "
      "written. A checkpoint of\nadapters (recipe.lora) becomes a PEFT folder, or with --merged a "
      "whole model.");
  const auto options = std::make_shared<ExportCommandOptions>();
  add_copy_options(*command, options->from, options->to, options->checkpoint);
  command
      ->add_option("--dtype", options->dtype_name,
                   "Data type of the weights: fp32, bf16 or fp16; default: that of the model that "
                   "the run started from, or fp32")
      ->check(choices(kWeightDTypes));
  command->add_option("--max-shard-size", options->max_shard_size,
                      "Splits larger weights into several files (default 5G); 0: never");
  command->add_option("--tokenizer", options->tokenizer,
                      "A tokenizer.json, or bytes; default: the one the run was trained with");
  command->add_flag("--merged", options->merged, "Merges the adapters into the base weights");
  command->add_option("--base", options->base, "Base weights, if they have moved since the run");
  command
      ->add_option("--base-name", options->base_name,
                   "Name of the base model in README.md and adapter_config.json; default: its name "
                   "on the hub if its folder has it, or the folder's name")
      ->type_name("NAME")
      ->check(not_empty());
  return [options](aio::IoWatchdog& watchdog) { return run(*options, watchdog); };
}

}  // namespace sluice::tools
