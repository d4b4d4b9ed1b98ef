// A gradient sink in isolation: its sums follow SumOrder, element by element.
#include "engine/step/gradient_sink.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "aio/executor.h"
#include "engine/budget/configured_model.h"
#include "engine/model/torch_types.h"
#include "tests/engine/run/run_under_test.h"

namespace sluice::engine {
namespace {

using Values = std::vector<float>;

Values added(const Values& a, const Values& b) {
  Values sum(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) sum[i] = a[i] + b[i];
  return sum;
}

// `gradients`: by micro-batch. Computes the definition, level by level, in fp32.
Values sum_of(const std::vector<Values>& gradients, const offload::SumOrder::Parts& parts) {
  const auto of_a_lane = gradients.size() / static_cast<std::size_t>(parts.lanes * parts.rounds);
  Values sum;
  std::size_t m = 0;
  for (std::int64_t round = 0; round < parts.rounds; ++round) {
    std::vector<Values> nodes;
    for (std::int64_t lane = 0; lane < parts.lanes; ++lane) {
      Values of_lane = gradients[m++];
      for (std::size_t i = 1; i < of_a_lane; ++i) of_lane = added(of_lane, gradients[m++]);
      nodes.push_back(of_lane);
    }
    while (nodes.size() > 1) {
      std::vector<Values> above;
      for (std::size_t i = 0; i < nodes.size(); i += 2)
        above.push_back(i + 1 < nodes.size() ? added(nodes[i], nodes[i + 1]) : nodes[i]);
      nodes = above;
    }
    sum = sum.empty() ? nodes[0] : added(sum, nodes[0]);
  }
  return sum;
}

class Step {
 public:
  Step(const ModelLayout& model, const offload::SumOrder::Parts& parts, std::int64_t of_a_wave)
      : model_(model),
        parts_(parts),
        waves_{.micro_batches = parts.micro_batches, .of_a_wave = of_a_wave},
        executor_(*aio::make_executor(1)) {
    const offload::SumOrder order(parts);
    sink_ = *CpuGradientSink::create(model, *executor_,
                                     {.type = offload::GradType::kFp32,
                                      .isa = offload::Isa::kScalar,
                                      .huge_pages = false,
                                      .order = order,
                                      .sums = order.held(waves_)});
  }

  void run() {
    for (int wave = 0; wave < waves_.count(); ++wave)
      for (int unit = model_.units() - 1; unit >= 0; --unit) pass(unit, wave);
  }

  void check() const {
    for (int unit = 0; unit < model_.units(); ++unit) {
      const auto* const got = static_cast<const float*>(sink_->host_gradient(unit));
      const std::vector<ParameterSpec>& parameters = model_.layout(unit).parameters;
      const auto frozen = static_cast<int>(model_.frozen(unit).parameters.size());
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        Values expected = sum_of(gradients_.at({unit, frozen + static_cast<int>(i)}), parts_);
        for (int borrower = 0; borrower < model_.units(); ++borrower) {
          const auto& borrowed = model_.borrowed(borrower);
          const auto own = static_cast<int>(model_.layout(borrower).parameters.size());
          for (std::size_t b = 0; b < borrowed.size(); ++b) {
            if (!model_.has_frozen() && borrowed[b].unit == unit &&
                borrowed[b].parameter == static_cast<int>(i))
              expected = added(
                  expected, sum_of(gradients_.at({borrower, own + static_cast<int>(b)}), parts_));
          }
        }
        const float* const first = got + parameters[i].first_element;
        ASSERT_EQ(Values(first, first + expected.size()), expected)
            << model_.layout(unit).name << ", " << parameters[i].name;
      }
    }
  }

 private:
  // Like a backward: a lane's first micro-batch writes products, everything else is added.
  void pass(int unit, int wave) {
    ASSERT_OK(sink_->open(unit));
    const std::int64_t end = waves_.first(wave) + waves_.size(wave);
    for (std::int64_t m = waves_.first(wave); m < end; ++m) {
      const GradientSink::Target target = sink_->target(unit, m);
      for (int i = 0; i < target.sums.size(); ++i)
        if (target.sums[i].defined()) add(unit, i, target);
      sink_->added(unit, m);
    }
    ASSERT_OK(wave + 1 < waves_.count() ? sink_->keep(unit) : sink_->finish(unit));
  }

  void add(int unit, int parameter, const GradientSink::Target& target) {
    const at::Tensor& sum = target.sums[parameter];
    Values values(static_cast<std::size_t>(sum.numel()));
    for (float& value : values) value = normal_(random_);
    const std::vector<ParameterSpec>& own = model_.layout(unit).parameters;
    const auto i = static_cast<std::size_t>(parameter) - model_.frozen(unit).parameters.size();
    const bool is_product = i < own.size() && own[i].gradient_is_product;
    auto* const to = static_cast<float*>(sum.data_ptr());
    for (std::size_t e = 0; e < values.size(); ++e)
      to[e] = target.overwrites && is_product ? values[e] : to[e] + values[e];
    gradients_[{unit, parameter}].push_back(std::move(values));
  }

  const ModelLayout& model_;
  const offload::SumOrder::Parts parts_;
  const offload::Waves waves_;
  const std::unique_ptr<aio::Executor> executor_;
  std::unique_ptr<CpuGradientSink> sink_;
  std::mt19937 random_{5};
  std::normal_distribution<float> normal_;
  std::map<std::pair<int, int>, std::vector<Values>> gradients_;  // by micro-batch
};

TEST(GradientSink, AddsUpAsTheOrderSaysInAnyWaves) {
  const SmallRun small({"run.device=cpu"});  // its head borrows the embedding's parameter
  const ModelLayout model = configured_layout(small.config(), /*on_gpu=*/false);
  for (const auto& [lanes, rounds] : {std::pair{1, 1}, {4, 1}, {3, 2}, {1, 6}, {12, 1}}) {
    for (const std::int64_t of_a_wave : {12, 5, 1}) {
      SCOPED_TRACE(std::to_string(lanes) + " lanes, " + std::to_string(rounds) +
                   " rounds, waves of " + std::to_string(of_a_wave));
      Step step(model, {.micro_batches = 12, .lanes = lanes, .rounds = rounds}, of_a_wave);
      step.run();
      step.check();
    }
  }
}

// A tied head uses the frozen embedding, which has no sums to add to.
TEST(GradientSink, AddsUpAdaptersOfATiedHeadsModel) {
  const SmallRun small(of_adapters({"run.device=cpu", "model.tied_head=on"}));
  const ModelLayout model = configured_layout(small.config(), /*on_gpu=*/false);
  ASSERT_TRUE(model.has_frozen() && model.has_borrowers(0));
  EXPECT_TRUE(BorrowedSums::borrowers(model, 0).empty());
  for (const std::int64_t of_a_wave : {4, 1}) {
    Step step(model, {.micro_batches = 4, .lanes = 2, .rounds = 1}, of_a_wave);
    step.run();
    step.check();
  }
}

}  // namespace
}  // namespace sluice::engine
