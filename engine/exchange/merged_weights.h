// A model's weights with what adapters add to them: W + scale * B A, in fp32, for programs that
// know nothing of adapters.
//
// Memory:  the adapters of one product, and some MiB. Threads: one, which works with all cores.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "aio/executor.h"
#include "aio/result.h"
#include "engine/checkpoint/checkpoint_reader.h"
#include "engine/exchange/base_fingerprint.h"
#include "engine/exchange/model_weights.h"
#include "engine/model/lora_recipe.h"

namespace sluice::engine {

struct MergedWeights {
  ModelWeights& base;
  AskedBase asked;  // where it is
  CheckpointReader& adapters;
  LoraRecipe recipe;
  aio::Executor& executor;
};

// Every parameter of the base in its order, range by range. After the last: kInvalidArgument where
// the base has not the fingerprint of the weights that the adapters were trained beside.
using TakeValues = std::function<Status(const std::string& parameter, std::span<const float>)>;
Status merge_weights(const MergedWeights& merged, const TakeValues& take);

}  // namespace sluice::engine
