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

// The dtype of the moments in a run's checkpoints: the same as in the run.
DType stored_moments(const NumberTypes& types);
// Logs how moments are converted if this run stores them in another dtype than the checkpoint it
// resumes from.
void report_moments(DType stored, DType now);

std::string precision_name(config::Precision precision);  // StoredRun::precision

StoredPosition stored_position(const TrainState& state);
TrainState train_state(const StoredPosition& position);

// `data_order`: RunData::order(). `base`: for a run of adapters; otherwise null.
StoredRun stored_run(const config::Config& config, const ModelLayout& model,
                     const std::string& data_order, const BaseFingerprint* base);

// kInvalidArgument lists every difference that prevents `now` from resuming `stored`. For data, it
// lists the configuration changes that matter.
Status check_same_run(const CheckpointState& stored, const CheckpointState& now);
// Warns of differences that do not prevent resuming but may change last bits, such as another
// number of CPU threads or another order of additions.
void warn_of_other_bits(const CheckpointState& stored, const CheckpointState& now);
// kInvalidArgument if the stored adapters were trained on a base other than that of `path` (empty:
// random weights). The base is given as `values`, or read from `path` as a sample.
Status check_base(const StoredRun& stored, const BaseFingerprint& values, const std::string& path);
Status check_base(aio::IoQueue& queue, const StoredRun& stored, const ModelShape& shape,
                  const std::string& path);

}  // namespace sluice::engine
