// OutputForm: what a long command shows, and how.
//
//   kPlain      text: results on standard output, everything else on standard error
//   kQuiet      warnings and errors; once work_is_done() the results so far, and what is said then
//   kJsonLines  JSON objects on standard output, one a line, and nothing else:
//               {"event":"step", and the line's keys of metrics.jsonl}
//               {"event":"begin"|"checkpoint"|"end", and the event's keys of events.jsonl}
//               {"event":"info"|"warning"|"error"|"text","unix_s":...,"text":...}, where "text" is
//               a line of what would be shown otherwise
//
// Whoever writes to std::cout, std::cerr or the log while this exists is subject to it.
//
// Threads: any, but for making and destroying it. A line is written at once.
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
  // What follows is the summary.
  void work_is_done();

  // Lines of a run's files, with their ends; shown as JSON lines alone.
  void step(std::string_view metrics_line) const;
  void event(std::string_view event_line) const;

 private:
  class Lines;

  const Kind kind_;
  std::string kept_;            // for work_is_done()
  std::unique_ptr<Lines> out_;  // in place of std::cout's buffer, and of std::cerr's
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
