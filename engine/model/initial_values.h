// The initial values of a parameter. The model's are GPT-2's: normal with deviation 0.02
// (projections into the residual stream: divided by sqrt(2 * layers)), norms 1, biases 0. Decays of
// a delta rule are Qwen3.5's: the logarithms of uniform rates. Adapters start as in PEFT: A uniform
// within 1 / sqrt(columns), B 0.
//
// Element i of a parameter is a function of (seed, name, i), independent of threads, units and
// placement. Values are made by range, so a model larger than memory can be initialised. Without
// LibTorch.
//
// Threads: any.
#pragma once

#include <cstdint>
#include <span>

#include "aio/executor.h"
#include "engine/model/unit_layout.h"

namespace sluice::engine {

// Fills `values` with the parameter's elements from `first_element` on.
void fill_initial(const ParameterSpec& parameter, std::uint64_t seed, std::uint64_t first_element,
                  std::span<float> values);
// The same values, made by all threads of the executor, which must be idle.
void fill_initial(const ParameterSpec& parameter, std::uint64_t seed, std::uint64_t first_element,
                  std::span<float> values, aio::Executor& executor);

// The standard normal quantile of `probability` in (0, 1), with a relative error of 1e-7.
double normal_quantile(double probability);

}  // namespace sluice::engine
