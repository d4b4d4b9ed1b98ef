// Parameters that lie one behind the other in a slot, as one: the weights of queries, keys and
// values are one product then, and so are their gradients.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "engine/model/unit_views.h"

namespace sluice::engine {

// `count` parameters of `views` from `first` on, joined along their first dimension: a view, where
// each begins at the end of the one before (UnitLayout leaves gaps behind those of odd sizes) and
// the other dimensions are the same; otherwise nothing. The layout alone decides.
std::optional<at::Tensor> joined_rows(const UnitViews& views, int first, int count);

}  // namespace sluice::engine
