// Shared by the main programs of all benches. Covers the path from the command line to an exit
// code, the outputs for table and JSON, error sentences, and the end of an interrupted run.
#pragma once

#include <cstdio>
#include <exception>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "aio/machine_info.h"
#include "aio/result.h"
#include "bench/aio_workload.h"
#include "bench/result_file.h"
#include "tools/support/command_line.h"
#include "tools/support/interrupt.h"
#include "tools/support/progress_line.h"

namespace sluice::bench {

inline constexpr int kOurError = 1;
inline constexpr int kUserError = 2;

struct BenchCommand {
  std::string program;  // "swap_bench"
  std::string text;     // the command line as it could be typed again
};

// Threads: one at a time.
class BenchProgram {
 public:
  // json: the value of --json. Empty: no JSON; "-": JSON on standard output, and the table on
  // standard error.
  BenchProgram(BenchCommand command, const std::string& json);

  const std::string& command() const { return command_.text; }
  const aio::MachineInfo& machine() const { return machine_; }
  std::FILE* out() const { return out_; }  // for tables
  tools::ProgressLine& progress() { return progress_; }
  // Shows the progress of `what` on the progress line. The program must outlive the returned
  // function.
  OnProgress showing(std::string what);

  // Prints to the table immediately.
  void show(std::string_view text);
  // Prints the program, the machine, and the file system of each path.
  void show_machine(const std::vector<std::string>& paths = {});

  // Whether finish() can write the JSON; called before anything is measured.
  Status check_json() const;

  // Each of the following reports how the run ended, and returns its exit code.
  int fail(const Error& error, int code);
  int fail_interrupted();    // before there was a result
  int results_incomplete();  // the table is incomplete because of an interrupt
  // All results are in the table. Gets the JSON and writes it if --json was given.
  int finish(const std::function<std::string()>& json, bool interrupted = false);

 private:
  const BenchCommand command_;
  const bool wants_json_;
  const ResultFile json_;
  std::FILE* const out_;
  const aio::MachineInfo machine_ = aio::machine_info();
  tools::ProgressLine progress_;
};

// Prints "program: text" on standard error; returns the code.
int complain(std::string_view program, std::string_view text, int code);

// A bench's whole main(). parse(argc, argv) returns a Result of optional options, which are empty
// after --help; run(options, command) returns the exit code.
template <typename Parse, typename Run>
int bench_main(std::string_view program, int argc, const char* const* argv, Parse parse, Run run) {
  const tools::SignalThread signals;
  tools::fail_writes_beyond_limits();
  try {
    auto options = parse(argc, argv);
    if (!options.ok()) return complain(program, options.error().message(), kUserError);
    if (!options->has_value()) return 0;
    return run(std::move(**options),
               BenchCommand{std::string(program), tools::command_text(program, argc, argv)});
  } catch (const std::exception& error) {
    return complain(program, error.what(), kOurError);
  }
}

}  // namespace sluice::bench
