// Plans that do not depend on each other, made at the same time.
//
// Threads: one for each plan, up to the number of cores; blocks until all are made.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "aio/executor.h"
#include "aio/result.h"

namespace sluice::offload {

// The results of make(0), ..., make(count - 1), in this order, or the error of the first that has
// one. make() returns Result<T> and is called from several threads.
template <typename T, typename Make>
Result<std::vector<T>> made_at_once(std::size_t count, const Make& make) {
  const auto cores = std::max<std::size_t>(std::thread::hardware_concurrency(), 1);
  const std::size_t threads = std::clamp<std::size_t>(count, 1, cores);
  SLUICE_ASSIGN_OR_RETURN(const auto executor, aio::make_executor(static_cast<int>(threads)));
  std::vector<std::optional<Result<T>>> made(count);
  executor->run(static_cast<int>(count), [&](int piece) {
    const auto i = static_cast<std::size_t>(piece);
    made[i].emplace(make(i));
  });
  std::vector<T> all;
  for (auto& one : made) {
    SLUICE_ASSIGN_OR_RETURN(T value, *std::move(one));
    all.push_back(std::move(value));
  }
  return all;
}

}  // namespace sluice::offload
