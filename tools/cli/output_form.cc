#include "tools/cli/output_form.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <functional>
#include <iostream>
#include <iterator>
#include <mutex>
#include <nlohmann/json.hpp>
#include <streambuf>
#include <string>
#include <utility>

#include "aio/log.h"
#include "aio/log_style.h"
#include "aio/terminal_line.h"
#include "engine/observe/event_log.h"

namespace sluice::tools {
namespace {

constexpr std::string_view kErrorPrefix = "sluice: ";  // main() prints errors with it
// Prefixes of errors, of other ranks' warnings, and of LibTorch's warnings and errors.
constexpr std::string_view kOfWhatIsWrong[] = {kErrorPrefix, "rank ", "[W", "[E"};
constexpr std::string_view kWarningEvent = R"({"event":"warning")";
constexpr std::size_t kMostOfALine = std::size_t{1} << 20;

std::mutex write_mutex;

// Writes all of `text`, or as much as the reader accepts.
void write_out(std::string_view text) {
  const std::lock_guard lock(write_mutex);
  while (!text.empty()) {
    const ssize_t written = ::write(STDOUT_FILENO, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

void write_text(const char* kind, std::string_view text) {
  nlohmann::ordered_json json = {
      {"event", kind}, {"unix_s", engine::unix_seconds()}, {"text", text}};
  write_out(json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

void write_said(std::string_view line) {
  const bool is_error = line.starts_with(kErrorPrefix);
  if (is_error) line.remove_prefix(kErrorPrefix.size());
  if (!line.empty()) write_text(is_error ? "error" : "text", line);
}

const char* name_of(log::Level level) {
  if (level == log::Level::kInfo) return "info";
  return level == log::Level::kWarning ? "warning" : "error";
}

}  // namespace

// A stream buffer that passes its text on line by line.
class OutputForm::Lines final : public std::streambuf {
 public:
  using Take = std::function<void(const std::string& line, std::streambuf& before)>;
  Lines(std::ostream& stream, Take take)
      : stream_(stream), before_(stream.rdbuf()), take_(std::move(take)) {
    stream_.flush();
    stream_.rdbuf(this);
  }
  ~Lines() final {
    if (!begun_.empty() && take_) take_(begun_, *before_);
    stream_.rdbuf(before_);
  }
  Lines(const Lines&) = delete;
  Lines& operator=(const Lines&) = delete;

 protected:
  int_type overflow(int_type letter) override {
    if (!traits_type::eq_int_type(letter, traits_type::eof())) {
      const char one = traits_type::to_char_type(letter);
      xsputn(&one, 1);
    }
    return traits_type::not_eof(letter);
  }
  std::streamsize xsputn(const char* text, std::streamsize count) override {
    const std::lock_guard lock(mutex_);
    for (std::streamsize i = 0; i < count; ++i) {
      if (text[i] != '\n' && begun_.size() < kMostOfALine) {
        begun_ += text[i];
        continue;
      }
      take_(begun_, *before_);
      begun_.clear();
      if (text[i] != '\n') begun_ += text[i];
    }
    return count;
  }

 private:
  std::ostream& stream_;
  std::streambuf* const before_;
  const Take take_;
  std::mutex mutex_;
  std::string begun_;  // guarded by mutex_
};

OutputForm::OutputForm(Kind kind) : kind_(kind) {
  if (kind == Kind::kPlain) return;
  TerminalLine::hide_all();
  if (kind == Kind::kQuiet) {
    log::show_from(log::Level::kWarning);
    // The further lines of an error are indented.
    const auto wrong_only = [is_wrong = false](const std::string& line,
                                               std::streambuf& before) mutable {
      const auto begins = [&](std::string_view with) { return line.starts_with(with); };
      if (!begins("  "))
        is_wrong = std::any_of(std::begin(kOfWhatIsWrong), std::end(kOfWhatIsWrong), begins);
      if (is_wrong) std::ostream(&before) << line << "\n" << std::flush;
    };
    out_ = std::make_unique<Lines>(
        std::cout, [this](const auto& line, auto&) { kept_.append(line).append("\n"); });
    err_ = std::make_unique<Lines>(std::cerr, wrong_only);
    return;
  }
  const auto as_json = [](const std::string& line, std::streambuf&) { write_said(line); };
  out_ = std::make_unique<Lines>(std::cout, as_json);
  err_ = std::make_unique<Lines>(std::cerr, as_json);
  log::set_sink([](log::Level level, std::string_view text) { write_text(name_of(level), text); });
}

OutputForm::~OutputForm() {
  if (kind_ == Kind::kJsonLines) log::set_sink({});
}

void OutputForm::work_is_done() {
  if (kind_ != Kind::kQuiet) return;
  out_.reset();
  err_.reset();
  std::cout << std::exchange(kept_, {}) << std::flush;
}

void OutputForm::step(std::string_view metrics_line) const {
  if (kind_ == Kind::kJsonLines)
    write_out(std::string(R"({"event":"step",)").append(metrics_line.substr(1)));
}

void OutputForm::event(std::string_view event_line) const {
  // Warnings already arrive through the log.
  if (kind_ == Kind::kJsonLines && !event_line.starts_with(kWarningEvent)) write_out(event_line);
}

void add_output_options(CLI::App& command, OutputOptions& options) {
  auto* const quiet = command.add_flag("--quiet", options.quiet,
                                       "Shows only warnings, errors and the summary at the end");
  command
      .add_flag("--json-lines", options.json_lines,
                "Writes all output as JSON objects to standard output, one per line: metrics of "
                "each step, events, warnings and texts (sluice metrics --keys)")
      ->excludes(quiet);
}

}  // namespace sluice::tools
