// The project's log: one line per message on standard error, level and time first.
//
// Messages are finished strings: the formatting library stays out of this header, because
// LibTorch's wheel ships another version of it on the include path (see aio/log.cc).
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

// Logs a message the first time its key is seen in this process, and never again.
void warning_once(std::string_view key, std::string_view message);
void info_once(std::string_view key, std::string_view message);

// Sends messages to `sink` instead (tests read them there); an empty one restores standard error.
// Also forgets which once-only messages were logged. Called from any thread that logs.
using Sink = std::function<void(Level, std::string_view)>;
void set_sink(Sink sink);

// Gets every message besides, wherever it goes: a run keeps its warnings. An empty one ends that.
// Called from any thread that logs, so it must not block.
void set_listener(Sink listener);

}  // namespace sluice::log
