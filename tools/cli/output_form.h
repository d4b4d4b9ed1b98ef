// OutputForm: what a long-running command shows, and in which form.
//
// - kPlain      text: results on standard output, everything else on standard error
// - kQuiet      warnings and errors; after work_is_done() the results so far and all later output
// - kJsonLines  only JSON objects on standard output, one per line:
//               {"event":"step", and the line's keys of metrics.jsonl}
//               {"event":"begin"|"checkpoint"|"end", and the event's keys of events.jsonl}
//               {"event":"info"|"warning"|"error"|"text","unix_s":...,"text":...}, where "text" is
//               a line of what would be shown otherwise
//
// While an OutputForm exists, everything written to std::cout, std::cerr or the log goes through
// it.
//
// Threads: any, except for construction and destruction. A line is written at once.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace CLI {  // NOLINT(readability-identifier-naming): named by CLI11
class App;
}

namespace sluice::tools {

class OutputForm {
 public:
  enum class Kind : std::uint8_t { kPlain, kQuiet, kJsonLines };
  explicit OutputForm(Kind kind);
  ~OutputForm();
  OutputForm(const OutputForm&) = delete;
  OutputForm& operator=(const OutputForm&) = delete;

  Kind kind() const { return kind_; }
  bool shows_progress() const { return kind_ == Kind::kPlain; }
  // All output from here on is the summary.
  void work_is_done();

  // Lines of the run's files, including line ends; shown only as JSON lines.
  void step(std::string_view metrics_line) const;
  void event(std::string_view event_line) const;

 private:
  class Lines;

  const Kind kind_;
  std::string kept_;            // for work_is_done()
  std::unique_ptr<Lines> out_;  // replace the buffers of std::cout and std::cerr
  std::unique_ptr<Lines> err_;
};

// --quiet and --json-lines.
struct OutputOptions {
  bool quiet = false;
  bool json_lines = false;

  OutputForm::Kind kind() const {
    if (json_lines) return OutputForm::Kind::kJsonLines;
    return quiet ? OutputForm::Kind::kQuiet : OutputForm::Kind::kPlain;
  }
};
void add_output_options(CLI::App& command, OutputOptions& options);

}  // namespace sluice::tools
