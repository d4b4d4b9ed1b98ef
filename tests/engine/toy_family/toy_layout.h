// Layout and costs of the toy family's units. Without LibTorch.
#pragma once

#include "engine/model/model_layout.h"
#include "engine/model/model_shape.h"

namespace sluice::engine {

namespace toy_attention {
enum : int { kQkv, kProjection, kNorm };
}
namespace toy_feed_forward {
enum : int { kUp, kDown, kNorm };
}
namespace toy_head {
enum : int { kOutput, kNorm };
}

inline bool toy_attends(std::int64_t layer) { return layer % 2 == 0; }
double toy_epsilon(const ModelShape& shape);
ModelLayout toy_layout(const ModelOptions& options);

}  // namespace sluice::engine
