// The parts of the key table, one per file; all_keys() joins them. Private to this folder.
#pragma once

#include <span>

#include "engine/config/key_table.h"

namespace sluice::config {

std::span<const Key> training_keys();   // batch, optimizer, precision, clipping, logging
std::span<const Key> scheduler_keys();  // scheduler
std::span<const Key> zero_keys();       // zero_optimization
std::span<const Key> io_keys();         // aio, activation_checkpointing
std::span<const Key> model_keys();      // model, recipe
std::span<const Key> run_keys();        // Sluice's own: data, run, budget, placement
std::span<const Key> foreign_keys();    // DeepSpeed sections without meaning here

inline constexpr Range kPositive = {.minimum = 1};
inline constexpr Range kNotNegative = {.minimum = 0};
inline constexpr Range kShare = {.minimum = 0, .maximum = 1};

}  // namespace sluice::config

// Accesses a nested member of Config: a pointer to member reaches only one level.
#define SLUICE_FIELD(member) \
  [](Config & config) -> auto& { return config.member; }
