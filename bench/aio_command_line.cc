#include "bench/aio_command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <utility>
#include <vector>

namespace sluice::bench {
namespace {

constexpr const char* kDescription =
    "Measures how fast a drive moves data between a file and pinned memory: GB/s, IOPS,\n"
    "latency and CPU time, by the same IO layer that training uses.\n"
    "\n"
    "It writes a scratch file without a name, which is gone when the program ends, however\n"
    "it ends. K, M, G, T in sizes are powers of 1024; GB/s is 10^9 bytes a second.";

constexpr const char* kExamples =
    "Examples:\n"
    "  aio_bench --path /nvme --size 8G\n"
    "      sequential reads: three runs of 5 s, 1M blocks, 32 in flight\n"
    "  aio_bench --path /nvme0 --path /nvme1 --weights auto --mode all --json out.json\n"
    "      a file striped over two drives: reads, writes, then both at once\n"
    "  aio_bench --path /nvme --mode randread --block-size 4K --threads 4\n"
    "      IOPS of small random reads on four rings\n"
    "  aio_bench --path /nvme --sweep --out aio.json\n"
    "      finds the best block size, depth and threads, and writes an \"aio\" section that a\n"
    "      training configuration can include\n"
    "\n"
    "Exit codes: 0 done; 1 an IO error or wrong data; 2 a mistake in the options; 130 Ctrl-C.";

void add_options(CLI::App& app, AioArguments& to) {
  // Every value is taken as text: parse_options() says better what is wrong with one.
  const auto add = [&app](const char* group, const char* name, std::optional<std::string>& value,
                          const char* kind, const char* help) {
    app.add_option(name, value, help)->group(group)->type_name(kind)->allow_extra_args(false);
  };
  const auto add_flag = [&app](const char* group, const char* name, bool& value, const char* help) {
    app.add_flag(name, value, help)->group(group)->disable_flag_override();
  };
  constexpr const char* kWhere = "Where";
  app.add_option("--path", to.paths, "folder for the scratch file; several: striped [.]")
      ->group(kWhere)
      ->type_name("DIR")
      ->allow_extra_args(false);
  add(kWhere, "--size", to.size, "BYTES", "of the file [4G; with --file: all of it]");
  add(kWhere, "--file", to.file, "FILE", "measure on this existing file; reads never change it");
  add_flag(kWhere, "--overwrite", to.overwrite, "let writes destroy the data in --file");
  add(kWhere, "--stripe-size", to.stripe_size, "BYTES", "with several --path [1M]");
  add(kWhere, "--weights", to.weights, "W:W|auto", "share of each --path; auto: measured [equal]");

  constexpr const char* kWhat = "What";
  add(kWhat, "--mode", to.mode, "MODE",
      "read, write, mixed, randread, or all: read, write, mixed [read]");
  add(kWhat, "--block-size", to.block_size, "BYTES", "of one request, a multiple of 4096 [1M]");
  add(kWhat, "--queue-depth", to.queue_depth, "N", "requests in flight of each thread [32]");
  add(kWhat, "--threads", to.threads, "N", "io_uring rings; posix: N x depth threads [1]");
  add(kWhat, "--backend", to.backend, "NAME", "uring, posix, or auto: uring if it works [auto]");
  add_flag(kWhat, "--single-submit", to.single_submit, "one system call a request, no batches");
  add_flag(kWhat, "--verify", to.verify,
           "write a pattern and check every byte read; slower than without");

  constexpr const char* kHow = "How long";
  add(kHow, "--seconds", to.seconds, "S", "of one run [5; sweep: 1]");
  add(kHow, "--ramp", to.ramp, "S", "of running before it counts [0.25 or 5% of --seconds]");
  add(kHow, "--runs", to.runs, "N", "of each mode, the median is shown [3; sweep: 2]");
  add(kHow, "--seed", to.seed, "N", "of offsets and data [1]");

  constexpr const char* kResult = "Results";
  add(kResult, "--json", to.json, "FILE", "results for programs; - is standard output");
  add_flag(kResult, "--sweep", to.sweep,
           "try block sizes, depths and threads (those not given) in --mode [mixed]");
  add(kResult, "--out", to.out, "FILE",
      "with --sweep: the best as \"aio\" section [aio_sweep.json]");
}

// CLI11 takes "-1" for an option: "--runs -1" becomes "--runs=-1", so that the complaint is about
// the number.
std::vector<std::string> joined_negatives(int argc, const char* const* argv) {
  std::vector<std::string> words;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const bool negative =
        word.size() > 1 && word[0] == '-' && word.find_first_of("0123456789.") == 1;
    if (negative && !words.empty() && words.back().compare(0, 2, "--") == 0 &&
        words.back().find('=') == std::string::npos)
      words.back() += "=" + word;
    else
      words.push_back(word);
  }
  return words;
}

}  // namespace

Result<std::optional<AioArguments>> parse_command_line(int argc, const char* const* argv) {
  AioArguments arguments;
  CLI::App app(kDescription, "aio_bench");
  app.set_version_flag("--version", "aio_bench " + std::string(kVersion));
  app.footer(kExamples);
  app.get_formatter()->column_width(26);
  app.get_formatter()->label("OPTIONS", "options");
  add_options(app, arguments);
  std::vector<std::string> words = joined_negatives(argc, argv);
  std::reverse(words.begin(), words.end());
  try {
    app.parse(std::move(words));
  } catch (const CLI::Success& help_or_version) {
    app.exit(help_or_version);
    return std::optional<AioArguments>();
  } catch (const CLI::ArgumentMismatch& error) {
    const std::string text = error.what();
    const bool is_flag = text.find("flag override") != std::string::npos;
    const std::string name = text.substr(0, text.find_first_of(": "));
    return Error(ErrorCode::kInvalidArgument,
                 (name[0] == '-' ? name : "--" + name) +
                     (is_flag ? ": takes no value" : ": give exactly one value") +
                     "; aio_bench --help lists the options");
  } catch (const CLI::ParseError& error) {
    std::string text = error.what();
    while (!text.empty() && (text.back() == '\n' || text.back() == '.')) text.pop_back();
    for (char& letter : text)
      if (letter == '\n') letter = ' ';
    return Error(ErrorCode::kInvalidArgument, text + "; aio_bench --help lists the options");
  }
  return std::optional<AioArguments>(std::move(arguments));
}

std::string command_text(int argc, const char* const* argv) {
  std::string text = "aio_bench";
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const bool plain =
        !word.empty() && word.find_first_of(" \t\n'\"\\$*?<>|&;()#~`") == std::string::npos;
    if (plain) {
      text += " " + word;
      continue;
    }
    text += " '";
    for (const char letter : word) text += letter == '\'' ? "'\\''" : std::string(1, letter);
    text += "'";
  }
  return text;
}

}  // namespace sluice::bench
