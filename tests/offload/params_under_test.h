// An offloader of parameters, and a byte-for-byte model of its units.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "offload/params/param_offloader.h"
#include "tests/aio/backends_under_test.h"

namespace sluice::offload {

using Access = ParamOffloader::Access;

// Odd sizes: one unit larger than the others, a small one, two in memory.
inline std::vector<ParamUnit> test_units() {
  return {{"embedding", 50'000, Tier::kNvme},
          {"h.0", 20'001, Tier::kNvme},
          {"h.1", 20'001, Tier::kNvme},
          {"h.2", 19'000, Tier::kNvme},
          {"h.3", 20'001, Tier::kNvme},
          {"h.4", 20'001, Tier::kNvme},
          {"tiny", 3, Tier::kCpu},
          {"ln_f", 700, Tier::kNvme},
          {"bias", 5'000, Tier::kCpu}};
}

inline std::vector<ParamUnit> equal_units(int count, std::uint64_t bytes, Tier tier = Tier::kNvme) {
  std::vector<ParamUnit> units;
  for (int i = 0; i < count; ++i) units.push_back({"u" + std::to_string(i), bytes / 2, tier});
  return units;
}

struct ParamsUnderTestOptions {
  std::vector<ParamUnit> units = test_units();
  int cache_buffers = 2;
  int read_ahead = 2;
  aio::IoQueue::Options queue{.block_bytes = 64 * kKiB, .queue_depth = 16, .max_retries = 2};
  bool two_queues = true;
  aio::Executor* executor = nullptr;
};

class ParamsUnderTest {
 public:
  ParamsUnderTest(aio::IoBackend& backend, const std::vector<std::string>& folders,
                  const ParamsUnderTestOptions& options)
      : reads_(aio::make_queue_or_die(backend, options.queue)),
        writes_(aio::make_queue_or_die(backend, options.queue)) {
    options_.units = options.units;
    options_.cache_buffers = options.cache_buffers;
    options_.read_ahead = options.read_ahead;
    options_.store.paths = folders;
    options_.store.run = "test";
    options_.store.stripe_bytes = 32 * kKiB;
    options_.huge_pages = false;
    options_.lock = aio::MemoryLock::kNone;
    auto made = ParamOffloader::create(options_,
                                       {.reads = reads_.get(),
                                        .writes = options.two_queues ? writes_.get() : reads_.get(),
                                        .executor = options.executor});
    if (!made.ok()) throw std::runtime_error(made.error().message());
    params_ = std::move(*made);
    model_.resize(units());
    versions_.resize(units());
  }
  ~ParamsUnderTest() {
    if (params_ != nullptr) {
      EXPECT_OK(params_->remove());
    }
  }
  ParamsUnderTest(const ParamsUnderTest&) = delete;
  ParamsUnderTest& operator=(const ParamsUnderTest&) = delete;

  ParamOffloader& params() { return *params_; }
  const ParamOffloader::Options& options() const { return options_; }
  std::size_t units() const { return options_.units.size(); }
  aio::IoStats read_stats() const { return reads_->stats(); }
  void close() { params_.reset(); }

  Status replace(int unit, std::uint64_t seed) {
    SLUICE_ASSIGN_OR_RETURN(const auto lease, params_->acquire(unit, Access::kReplace));
    EXPECT_TRUE(std::ranges::all_of(lease.bytes(), [](std::byte b) { return b == std::byte{0}; }));
    auto& model = model_[static_cast<std::size_t>(unit)];
    model = aio::random_bytes(lease.bytes().size(), seed);
    std::ranges::copy(model, lease.bytes().begin());
    return {};
  }
  void fill() {
    for (int unit = 0; unit < static_cast<int>(units()); ++unit)
      ASSERT_OK(replace(unit, 1000 + static_cast<std::uint64_t>(unit)));
  }

  void expect_as_modelled(const ParamOffloader::Lease& lease) const {
    const auto& unit = options_.units[static_cast<std::size_t>(lease.unit())];
    ASSERT_EQ(lease.bytes().size(), unit.elements * 2);
    ASSERT_EQ(reinterpret_cast<std::uintptr_t>(lease.bytes().data()) % 4096, 0U);
    ASSERT_TRUE(aio::same_bytes(lease.bytes(), model_[static_cast<std::size_t>(lease.unit())]))
        << unit.name;
  }
  void change(const ParamOffloader::Lease& lease) {
    const auto unit = static_cast<std::size_t>(lease.unit());
    const std::uint64_t version = ++versions_[unit];
    aio::change_bytes(lease.bytes(), 0, version);
    aio::change_bytes(model_[unit], 0, version);
  }
  Status read(int unit) {
    SLUICE_ASSIGN_OR_RETURN(const auto lease, params_->acquire(unit, Access::kRead));
    expect_as_modelled(lease);
    return {};
  }
  Status update(int unit) {
    SLUICE_ASSIGN_OR_RETURN(const auto lease, params_->acquire(unit, Access::kUpdate));
    expect_as_modelled(lease);
    change(lease);
    return {};
  }
  void expect_all() {
    for (int unit = 0; unit < static_cast<int>(units()); ++unit) ASSERT_OK(read(unit));
  }

 private:
  std::unique_ptr<aio::IoQueue> reads_;
  std::unique_ptr<aio::IoQueue> writes_;
  ParamOffloader::Options options_;
  std::unique_ptr<ParamOffloader> params_;
  std::vector<std::vector<std::byte>> model_;
  std::vector<std::uint64_t> versions_;
};

inline std::vector<int> ascending(int count) {
  std::vector<int> units(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) units[static_cast<std::size_t>(i)] = i;
  return units;
}
inline std::vector<int> descending(int count) {
  std::vector<int> units = ascending(count);
  std::ranges::reverse(units);
  return units;
}

// One thread that does anything the contract allows.
inline void access_at_random(ParamsUnderTest& test, std::uint64_t seed, int actions) {
  std::mt19937_64 random(seed);
  ParamOffloader& params = test.params();
  const auto any_unit = [&] { return static_cast<int>(random() % test.units()); };
  for (int i = 0; i < actions && !testing::Test::HasFailure(); ++i) {
    const std::uint64_t what = random() % 20;
    if (what < 7) {
      ASSERT_OK(test.read(any_unit()));
    } else if (what < 13) {
      ASSERT_OK(test.update(any_unit()));
    } else if (what == 13) {
      ASSERT_OK(test.replace(any_unit(), random()));
    } else if (what == 14) {
      std::vector<int> order(random() % 30);
      for (int& unit : order) unit = any_unit();
      params.expect(order);
    } else if (what == 15 && random() % 4 == 0) {
      ASSERT_OK(params.drain());
    } else if (what < 18) {
      params.prefetch(any_unit());
    } else {
      const int first = any_unit();
      const int second = any_unit();
      if (first == second) continue;
      auto read = params.acquire(first, Access::kRead);
      ASSERT_OK(read.status());
      ASSERT_OK(test.update(second));
      test.expect_as_modelled(*read);
    }
  }
  test.expect_all();
}

}  // namespace sluice::offload
