// Between the training loop's own words and those of a checkpoint.
#pragma once

#include <string>

#include "aio/result.h"
#include "engine/checkpoint/checkpoint_state.h"
#include "engine/config/config.h"
#include "engine/step/trainer.h"

namespace sluice::engine {

StoredPosition stored_position(const TrainState& state);
TrainState train_state(const StoredPosition& position);

// `data_order`: RunData::order().
StoredRun stored_run(const config::Config& config, const std::string& data_order);

// kInvalidArgument names everything that keeps `now` from going on where `stored` stopped; of data
// what changed, by the two configurations. Another number of CPU threads does not: it is warned of,
// because it may change the last bits.
Status check_same_run(const CheckpointState& stored, const CheckpointState& now);

}  // namespace sluice::engine
