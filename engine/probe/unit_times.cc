#include "engine/probe/unit_times.h"

#include "aio/check.h"

namespace sluice::engine {

UnitTimes estimate_units(const GptShape& shape, std::int64_t padded_vocab, const PassShape& pass,
                         const EstimateRates& rates) {
  SLUICE_CHECK(rates.matmul_flops_per_s > 0 && rates.copy_bytes_per_s > 0 && rates.efficiency > 0,
               "an estimate needs rates");
  const double rows = static_cast<double>(pass.micro_batch) * static_cast<double>(pass.tokens);
  const double flops_per_s = rates.efficiency * rates.matmul_flops_per_s;
  const auto seconds = [&](const Flops& per_token) {
    return UnitSeconds{.forward_s = rows * per_token.forward / flops_per_s,
                       .recompute_s = rows * per_token.recompute / flops_per_s,
                       .backward_s = rows * per_token.backward / flops_per_s};
  };
  // Forward reads a token's and a position's row and writes their sum; backward reads the gradient
  // and adds it to fp32 rows of both.
  const double numbers = rows * static_cast<double>(shape.hidden);
  const auto number_bytes = static_cast<double>(pass.number_bytes);
  constexpr double kFp32Bytes = 4;
  return {.embedding = {.forward_s = numbers * 3 * number_bytes / rates.copy_bytes_per_s,
                        .recompute_s = 0,
                        .backward_s =
                            numbers * (2 * number_bytes + 4 * kFp32Bytes) / rates.copy_bytes_per_s},
          .block = seconds(block_flops(shape, pass.tokens)),
          .head = seconds(head_flops(shape, padded_vocab))};
}

}  // namespace sluice::engine
