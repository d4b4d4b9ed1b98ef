// Runs that are stopped and continue.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include "engine/run/run_checkpoints.h"
#include "tests/engine/run/run_under_test.h"

namespace sluice::engine {

constexpr int kStop = 7;
constexpr int kSteps = 12;

struct Trained {
  std::vector<float> state;  // masters and moments
  std::vector<double> losses;
  TrainState position;
};

// The result does not depend on how the state is cut into ranges.
inline std::vector<float> state_of(TrainingRun& run) {
  std::array<std::vector<float>, offload::kStateFields.size()> fields;
  const Status taken =
      run.take_state([&](const ParameterSpec&, const offload::ConstStateSlice& state) -> Status {
        for (std::size_t i = 0; i < fields.size(); ++i)
          fields[i].insert(fields[i].end(), state.fields[i].begin(), state.fields[i].end());
        return {};
      });
  EXPECT_TRUE(taken.ok()) << taken.error().message();
  std::vector<float> all;
  for (const auto& field : fields) all.insert(all.end(), field.begin(), field.end());
  return all;
}

inline void train(TrainingRun& run, int steps, Trained& trained) {
  for (int i = 0; i < steps; ++i) trained.losses.push_back(run.step().loss);
  trained.state = state_of(run);
  trained.position = run.trainer().state();
}

inline std::unique_ptr<RunCheckpoints> checkpoints_of(TrainingRun& run,
                                                      RunCheckpoints::Options options) {
  options.directory = run.config().run.dir;
  auto checkpoints = RunCheckpoints::create(run, *run.drives().saves, options);
  EXPECT_TRUE(checkpoints.ok());
  return std::move(*checkpoints);
}

inline std::string save(TrainingRun& run, bool background) {
  const auto checkpoints = checkpoints_of(run, {.background = background});
  EXPECT_TRUE(checkpoints->save({.loss = 1.5}).ok());
  checkpoints->wait();
  const auto saved = checkpoints->finished();
  EXPECT_EQ(saved.size(), 1U);
  EXPECT_TRUE(saved.at(0).status.ok()) << saved.at(0).status.error().message();
  return saved.at(0).path;
}

inline Status resume(TrainingRun& run, const std::string& path) {
  auto reader = CheckpointReader::open(*run.drives().reads, path, {});
  if (!reader.ok()) return std::move(reader).error();
  return run.resume(**reader, {});
}

inline void expect_equal(const Trained& expected, const Trained& got) {
  ASSERT_EQ(expected.state.size(), got.state.size());
  EXPECT_EQ(0, std::memcmp(expected.state.data(), got.state.data(),
                           expected.state.size() * sizeof(float)))
      << "weights or moments differ";
  EXPECT_EQ(expected.losses, got.losses);
  EXPECT_EQ(expected.position.global_step, got.position.global_step);
  EXPECT_EQ(expected.position.applied_step, got.position.applied_step);
  EXPECT_EQ(expected.position.samples_drawn, got.position.samples_drawn);
  EXPECT_EQ(expected.position.loss_scale, got.position.loss_scale);
}

}  // namespace sluice::engine
