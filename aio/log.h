// The project's log: one line per message on standard error, level and time first.
//
// Messages are finished strings. The formatting library stays out of this header, because
// LibTorch's wheel has another version of it on the include path (see aio/log.cc).
//
// Threads: any. Set-up (set_sink, set_listener) belongs to main and to tests.
#pragma once

#include <functional>
#include <string_view>

namespace sluice::log {

enum class Level { kInfo, kWarning, kError };

void info(std::string_view message);
void warning(std::string_view message);
void error(std::string_view message);

// Logs a message the first time that its key is used in this process, and never again.
void warning_once(std::string_view key, std::string_view message);
void info_once(std::string_view key, std::string_view message);

// Sends messages to `sink` instead (tests read them there); an empty sink restores standard error.
// Also forgets which once-only messages were logged. The sink is called from any thread that logs.
using Sink = std::function<void(Level, std::string_view)>;
void set_sink(Sink sink);

// The listener also gets every message, wherever messages go, so that a run can keep its warnings.
// An empty one removes it. It is called from any thread that logs, so it must not block.
void set_listener(Sink listener);

}  // namespace sluice::log
