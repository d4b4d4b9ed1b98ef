// The only file that includes spdlog: LibTorch's wheel contains a newer fmt, and a file that
// includes both does not compile.
#include "aio/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "aio/log_style.h"

namespace sluice::log {
namespace {

struct State {
  std::mutex mutex;
  Sink sink;                                // guarded by mutex
  Sink listener;                            // guarded by mutex
  std::set<std::string, std::less<>> said;  // guarded by mutex
  std::shared_ptr<spdlog::sinks::stderr_color_sink_mt> terminal =
      std::make_shared<spdlog::sinks::stderr_color_sink_mt>();
  std::shared_ptr<spdlog::logger> logger;

  State() : logger(std::make_shared<spdlog::logger>("sluice", terminal)) {
    logger->set_pattern("%^[%H:%M:%S %l]%$ %v");
  }
};

// The log is the only global object, because any code may need to log. It is never destroyed, so
// that threads may log while the process exits.
State& state() {
  static State* const instance = new State;
  return *instance;
}

spdlog::level::level_enum to_spdlog(Level level) {
  switch (level) {
    case Level::kInfo:
      return spdlog::level::info;
    case Level::kWarning:
      return spdlog::level::warn;
    case Level::kError:
      break;
  }
  return spdlog::level::err;
}

void say(Level level, std::string_view message) {
  Sink sink;
  Sink listener;
  {
    const std::lock_guard lock(state().mutex);
    sink = state().sink;
    listener = state().listener;
  }
  if (sink) {
    sink(level, message);
  } else {
    state().logger->log(to_spdlog(level), message);
  }
  if (listener) listener(level, message);
}

bool first_time(std::string_view key) {
  const std::lock_guard lock(state().mutex);
  return state().said.emplace(key).second;
}

}  // namespace

void info(std::string_view message) { say(Level::kInfo, message); }
void warning(std::string_view message) { say(Level::kWarning, message); }
void error(std::string_view message) { say(Level::kError, message); }

void warning_once(std::string_view key, std::string_view message) {
  if (first_time(key)) warning(message);
}
void info_once(std::string_view key, std::string_view message) {
  if (first_time(key)) info(message);
}

void show_from(Level least) { state().logger->set_level(to_spdlog(least)); }
void show_without_colours() { state().terminal->set_color_mode(spdlog::color_mode::never); }

void set_sink(Sink sink) {
  const std::lock_guard lock(state().mutex);
  state().sink = std::move(sink);
  state().said.clear();
}

void set_listener(Sink listener) {
  const std::lock_guard lock(state().mutex);
  state().listener = std::move(listener);
}

}  // namespace sluice::log
