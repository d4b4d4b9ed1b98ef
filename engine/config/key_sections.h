// The key table's parts, one per file: all_keys() joins them. Private to this folder.
#pragma once

#include <span>

#include "engine/config/key_table.h"

namespace sluice::config {

std::span<const Key> training_keys();   // batch, optimizer, precision, clipping, logging
std::span<const Key> scheduler_keys();  // scheduler
std::span<const Key> zero_keys();       // zero_optimization
std::span<const Key> io_keys();         // aio, activation_checkpointing
std::span<const Key> model_keys();      // model, recipe
std::span<const Key> run_keys();        // of our own: data, run, budget, placement
std::span<const Key> foreign_keys();    // sections of DeepSpeed's that have no meaning here

inline constexpr Range kPositive = {.minimum = 1};
inline constexpr Range kNotNegative = {.minimum = 0};
inline constexpr Range kShare = {.minimum = 0, .maximum = 1};

}  // namespace sluice::config

// The accessor of a (nested) member of Config: a pointer to member reaches only one level down.
#define SLUICE_FIELD(member) \
  [](Config & config) -> auto& { return config.member; }
