// Converts between the training loop's terms and those of a checkpoint.
#pragma once

#include <string>

#include "aio/io_queue.h"
#include "aio/result.h"
#include "engine/budget/run_spec.h"
#include "engine/checkpoint/checkpoint_state.h"
#include "engine/config/config.h"
#include "engine/exchange/base_fingerprint.h"
#include "engine/model/model_layout.h"
#include "engine/model/model_shape.h"
#include "engine/step/update_rules.h"
#include "engine/weights/dtype.h"

namespace sluice::engine {

// How a run's checkpoints store its moments: as the run does.
DType stored_moments(const NumberTypes& types);
// Says what becomes of moments that a run stores otherwise than the checkpoint that it continues
// from.
void report_moments(DType stored, DType now);

std::string precision_name(config::Precision precision);  // StoredRun::precision

StoredPosition stored_position(const TrainState& state);
TrainState train_state(const StoredPosition& position);

// `data_order`: RunData::order(). `base`: of a run of adapters; else null.
StoredRun stored_run(const config::Config& config, const ModelLayout& model,
                     const std::string& data_order, const BaseFingerprint* base);

// kInvalidArgument names everything that keeps `now` from continuing where `stored` stopped; for
// data, what changed between the two configurations.
Status check_same_run(const CheckpointState& stored, const CheckpointState& now);
// Of what keeps no run from continuing, but may change last bits: a different number of CPU
// threads, another order of additions.
void warn_of_other_bits(const CheckpointState& stored, const CheckpointState& now);
// kInvalidArgument: its adapters were trained beside other weights than those of `path` (empty:
// random ones), of which these are the values, or a sample that is read for it.
Status check_base(const StoredRun& stored, const BaseFingerprint& values, const std::string& path);
Status check_base(aio::IoQueue& queue, const StoredRun& stored, const ModelShape& shape,
                  const std::string& path);

}  // namespace sluice::engine
