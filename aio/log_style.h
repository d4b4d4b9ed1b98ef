// How the log appears on standard error. Set by main, before it starts other threads.
#pragma once

#include "aio/log.h"

namespace sluice::log {

// The lowest level shown; a sink and a listener still get all messages. Default: kInfo.
void show_from(Level least);

// Turns colours off. By default levels are coloured if standard error is a terminal with colours.
void show_without_colours();

}  // namespace sluice::log
