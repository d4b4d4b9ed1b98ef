#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "engine/exchange/import_model.h"
#include "tools/cli/command.h"
#include "tools/session/hub_model.h"
#include "tools/session/open_queue.h"
#include "tools/session/show_share.h"

namespace sluice::tools {
namespace {

struct ImportOptions {
  std::string from;
  std::string to;
};

Result<int> run(const ImportOptions& options, aio::IoWatchdog& watchdog) {
  SLUICE_ASSIGN_OR_RETURN(const std::string from, model_folder(options.from, HubFiles::kModel));
  SLUICE_ASSIGN_OR_RETURN(const FileQueue files, open_queue(watchdog));
  TerminalLine line;
  bool has_begun = false;
  const auto imported =
      engine::import_model(*files.queue, {.from = from,
                                          .directory = options.to,
                                          .progress = show_share(line, "importing", &has_begun)});
  line.clear();
  if (!imported.ok() && has_begun) return at_work(imported.error());
  if (!imported.ok()) return imported.error();
  for (const std::string& note : imported->notes) std::cerr << "note: " << note << "\n";
  std::cout << imported->checkpoint << ": " << imported->parameters << " parameters of "
            << options.from << (imported->tokenizer ? ", with its tokenizer\n" : "\n");
  return 0;
}

}  // namespace

Command add_import_command(CLI::App& sluice) {
  CLI::App* const command = sluice.add_subcommand(
      "import", "Import a model from a Hugging Face folder into the folder of a new run");
  command->footer(
      "  sluice import Qwen/Qwen3-0.6B runs/qwen\n  sluice generate runs/qwen --prompt 'The "
      "drive'\n  "
      "sluice train runs/qwen/config.json --resume --steps 100 \\\n      --set "
      "data.train='[\"data/train.bin\"]'\nHF_FOLDER is written by transformers' save_pretrained() "
      "or a download from the hub:\nconfig.json, and model.safetensors or shards with their index, "
      "in fp32 or 16 bits. DIR gets\ncheckpoints/step-000000000 (with moments of zero), "
      "config.json with the model's shape, and\nin DIR/tokenizer the tokenizer and the tokens that "
      "end a text.");
  const auto options = std::make_shared<ImportOptions>();
  command
      ->add_option("HF_FOLDER", options->from, "The model's folder, or its OWNER/NAME on the hub")
      ->required();
  command->add_option("DIR", options->to, "The run's folder; it must not exist, or be empty")
      ->required();
  return [options](aio::IoWatchdog& watchdog) { return run(*options, watchdog); };
}

}  // namespace sluice::tools
