#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "engine/exchange/import_model.h"
#include "tools/cli/command.h"
#include "tools/cli/open_queue.h"
#include "tools/cli/show_share.h"

namespace sluice::tools {
namespace {

struct Options {
  std::string from;
  std::string to;
};

Result<int> run(const Options& options, aio::IoWatchdog& watchdog) {
  SLUICE_ASSIGN_OR_RETURN(const FileQueue files, open_queue(watchdog));
  TerminalLine line;
  SLUICE_ASSIGN_OR_RETURN(
      const engine::Imported imported,
      engine::import_model(*files.queue, {.from = options.from,
                                          .directory = options.to,
                                          .progress = show_share(line, "importing")}));
  line.clear();
  for (const std::string& note : imported.notes) std::cerr << "note: " << note << "\n";
  std::cout << imported.checkpoint << ": " << imported.parameters << " parameters of "
            << options.from << (imported.tokenizer ? ", with its tokenizer\n" : "\n");
  return 0;
}

}  // namespace

Command add_import_command(CLI::App& sluice) {
  CLI::App* const command = sluice.add_subcommand(
      "import", "Makes a run's directory of a Hugging Face folder that holds a GPT-2");
  command->footer(
      "  sluice import gpt2 runs/gpt2\n"
      "  sluice generate runs/gpt2 --prompt 'The drive'\n"
      "  sluice train runs/gpt2/config.json --out runs/gpt2 --resume --steps 100 \\\n"
      "      --set data.train='[\"data/train.bin\"]'\n"
      "HF_FOLDER is what transformers' save_pretrained() or a download from the hub left: "
      "config.json,\n"
      "model.safetensors or shards with their index, fp32 or 16 bits. DIR gets "
      "checkpoints/step-000000000\n"
      "(moments of zero), config.json with the model's shape, and the tokenizer.");
  const auto options = std::make_shared<Options>();
  command->add_option("HF_FOLDER", options->from, "The model's folder")->required();
  command->add_option("DIR", options->to, "The run's directory; not there yet, or empty")
      ->required();
  return [options](aio::IoWatchdog& watchdog) { return run(*options, watchdog); };
}

}  // namespace sluice::tools
