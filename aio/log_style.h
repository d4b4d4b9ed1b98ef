// How the log shows itself on standard error. Set by main, before other threads are there.
#pragma once

#include "aio/log.h"

namespace sluice::log {

// Messages below it are not shown; a sink and a listener get them all the same. Else kInfo.
void show_from(Level least);

// By default a level is coloured where standard error is a terminal that can.
void show_without_colours();

}  // namespace sluice::log
