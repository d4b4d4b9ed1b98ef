#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <string>

#include "tools/cli/command.h"
#include "tools/cli/command_model.h"
#include "tools/support/value_hints.h"
#include "tools/support/version.h"

namespace sluice::tools {
namespace {

constexpr const char* kShells = "bash|zsh|fish";

struct ManualOptions {
  std::string command;
  bool names = false;
};

Result<int> print_script(CLI::App& sluice, const std::string& shell) {
  if (shell != "bash" && shell != "zsh" && shell != "fish")
    return Error(ErrorCode::kInvalidArgument,
                 "there is no completion for \"" + shell + "\": there is for bash, zsh and fish");
  std::cout << completion_script(model_of(sluice), shell);
  return 0;
}

Result<int> print_manual(CLI::App& sluice, const ManualOptions& options) {
  const CommandModel program = model_of(sluice);
  if (options.names) {
    std::cout << program.name << "\n";
    for (const CommandModel& command : program.commands)
      std::cout << program.name << "-" << command.name << "\n";
    return 0;
  }
  const std::string version = version_text("sluice");
  const std::string first_line = version.substr(0, version.find('\n'));
  const CommandModel* shown = nullptr;
  for (const CommandModel& command : program.commands)
    if (command.name == options.command) shown = &command;
  if (shown == nullptr && !options.command.empty())
    return Error(ErrorCode::kInvalidArgument,
                 "there is no command \"" + options.command + "\": sluice --help lists them");
  std::cout << manual_page(program, shown, first_line);
  return 0;
}

}  // namespace

Command add_completion_command(CLI::App& sluice) {
  CLI::App* const command = sluice.add_subcommand(
      "completion", "Print the script that completes sluice's command line in a shell");
  command->footer(
      "  source <(sluice completion bash)                               # in ~/.bashrc\n"
      "  sluice completion zsh > ~/.zfunc/_sluice                       # a folder of $fpath\n"
      "  sluice completion fish > ~/.config/fish/completions/sluice.fish\n"
      "Completes commands, options, their choices, keys of --set and files.");
  const auto shell = std::make_shared<std::string>();
  command->add_option("SHELL", *shell, "bash, zsh or fish")->required()->check(choices(kShells));
  return [shell, &sluice](aio::IoWatchdog& /*watchdog*/) { return print_script(sluice, *shell); };
}

Command add_man_command(CLI::App& sluice) {
  CLI::App* const command =
      sluice.add_subcommand("man", "Print a manual page, generated from --help");
  command->footer(
      "  sluice man | man -l -\n"
      "  sluice man train > ~/.local/share/man/man1/sluice-train.1");
  const auto options = std::make_shared<ManualOptions>();
  auto* const name = command->add_option("COMMAND", options->command,
                                         "Command to document, instead of the program");
  command->add_flag("--names", options->names, "Lists the names of all pages")->excludes(name);
  return
      [options, &sluice](aio::IoWatchdog& /*watchdog*/) { return print_manual(sluice, *options); };
}

}  // namespace sluice::tools
