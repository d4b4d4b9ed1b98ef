#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdlib>
#include <string>
#include <system_error>
#include <vector>

#include "tools/cli/command.h"
#include "tools/support/scripts.h"

namespace sluice::tools {
namespace {

// Returns only if the script cannot be started: it takes over this process.
Result<int> become_prepare(const std::vector<std::string>& words) {
  SLUICE_ASSIGN_OR_RETURN(std::string script, find_script("prepare"));
  setenv("SLUICE_COMMAND", "sluice prepare", 1);  // what it calls itself
  std::vector<char*> arguments = {script.data()};
  std::vector<std::string> given = words;
  for (std::string& word : given) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  execv(script.c_str(), arguments.data());
  const std::error_code failed(errno, std::generic_category());
  return Error(ErrorCode::kIo, script + " cannot be started: " + failed.message() +
                                   ". It needs python3 on PATH, version 3.9 or later");
}

}  // namespace

Command add_prepare_command(CLI::App& sluice) {
  CLI::App* const command = sluice.add_subcommand(
      "prepare", "Turn text, tables and conversations into token files to train on");
  command->footer(
      "  sluice prepare books/ --out data/books --tokenizer bpe --vocab-size 8192\n  sluice "
      "prepare --chat sft.jsonl --out data/sft --tokenizer Qwen3-0.6B/\nIt is a Python program and "
      "needs Python 3.9: sluice prepare --help shows its options.");
  command->set_help_flag("");
  command->prefix_command();
  return [command](aio::IoWatchdog& /*watchdog*/) { return become_prepare(command->remaining()); };
}

}  // namespace sluice::tools
