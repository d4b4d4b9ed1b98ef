// Shared by tests of configurations: resolving text, and looking up the report on a key.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "engine/config/resolve.h"

namespace sluice::config {

inline std::string data_file(const std::string& name) {
  return std::string(CONFIG_TEST_DATA) + "/" + name;
}

// A run file with a batch size and `more` in it.
inline std::string run_with(const std::string& more) {
  return R"({"train_batch_size": 8, )" + more + "}";
}

inline Result<Resolved> resolve_run(std::string text, std::vector<std::string> overrides = {},
                                    std::int64_t world_size = 1) {
  return resolve({.run_file = Source{"run.json", std::move(text)},
                  .overrides = std::move(overrides),
                  .world_size = world_size});
}

inline Result<Resolved> resolve_deepspeed(std::string text) {
  return resolve({.deepspeed = Source{"ds.json", std::move(text)}});
}

inline Result<Resolved> resolve_both(std::string run, std::string deepspeed,
                                     std::vector<std::string> overrides = {}) {
  return resolve({.run_file = Source{"run.json", std::move(run)},
                  .deepspeed = Source{"ds.json", std::move(deepspeed)},
                  .overrides = std::move(overrides)});
}

// The configuration of a result that must succeed; an error fails the test.
inline Resolved accepted(Result<Resolved> result) {
  EXPECT_TRUE(result.ok()) << (result.ok() ? "" : result.error().message());
  return result.ok() ? std::move(*result) : Resolved{};
}

// The error sentence of a result that must fail.
inline std::string refusal(const Result<Resolved>& result) {
  EXPECT_FALSE(result.ok()) << "it resolved";
  if (result.ok()) return {};
  EXPECT_EQ(result.error().code(), ErrorCode::kInvalidArgument);
  return result.error().message();
}

inline std::vector<KeyReport> reports_on(const Resolved& resolved, const std::string& path) {
  std::vector<KeyReport> found;
  for (const KeyReport& report : resolved.reports) {
    if (report.path == path) found.push_back(report);
  }
  return found;
}

// The only report on a key; a failure and an empty one otherwise.
inline KeyReport report_on(const Resolved& resolved, const std::string& path) {
  const auto found = reports_on(resolved, path);
  EXPECT_EQ(found.size(), 1U) << "reports on " << path;
  return found.size() == 1 ? found.front() : KeyReport{};
}

}  // namespace sluice::config
