#include "tests/engine/toy_family/toy_layout.h"

#include <memory>
#include <string>
#include <utility>

namespace sluice::engine {
namespace {

constexpr float kStd = 0.02F;
constexpr double kTwo = 2;  // operations of a multiply-add

ParameterSpec matrix(std::string name, std::int64_t rows, std::int64_t columns, bool product) {
  return {.name = std::move(name),
          .shape = {rows, columns},
          .group = kDecayed,
          .initial_std = kStd,
          .gradient_is_product = product};
}

ParameterSpec gain(std::string name, std::int64_t elements) {
  return {.name = std::move(name), .shape = {elements}, .group = kUndecayed, .initial_value = 1};
}

// Generous: a test's model is small.
std::uint64_t peak(const PassShape& pass, std::int64_t numbers) {
  constexpr std::int64_t kCopies = 12;
  constexpr std::int64_t kFp32Bytes = 4;
  return static_cast<std::uint64_t>(kCopies * kFp32Bytes * pass.rows() * numbers);
}

class ToyEmbeddingKind final : public UnitKind {
 public:
  explicit ToyEmbeddingKind(const ModelShape& shape)
      : UnitKind("embedding", UnitRole::kEmbedding), hidden_(shape.hidden) {}
  Flops flops(std::int64_t /*tokens*/) const override { return {}; }
  std::uint64_t peak_bytes(const PassShape& pass, const PeakOptions& /*options*/) const override {
    return peak(pass, hidden_);
  }

 private:
  std::int64_t hidden_;
};

class ToyBlockKind final : public UnitKind {
 public:
  ToyBlockKind(const ModelShape& shape, bool attends)
      : UnitKind(attends ? "attention block" : "feed-forward block", UnitRole::kBlock),
        shape_(shape),
        attends_(attends) {}

  Flops flops(std::int64_t tokens) const override {
    const auto hidden = static_cast<double>(shape_.hidden);
    const double products = attends_ ? hidden * (4 * hidden + static_cast<double>(tokens))
                                     : 2 * hidden * static_cast<double>(shape_.ffn());
    return {.forward = kTwo * products,
            .backward = 2 * kTwo * products,
            .recompute = kTwo * products / 2};
  }
  std::uint64_t saved_bytes(const PassShape& pass) const override {
    constexpr std::int64_t kFp32Bytes = 4;
    const std::int64_t statistics = attends_ ? 1 + shape_.heads : 1;
    const std::int64_t numbers = attends_ ? 4 * shape_.hidden : shape_.ffn();
    return static_cast<std::uint64_t>(pass.rows() *
                                      (numbers * pass.number_bytes + statistics * kFp32Bytes));
  }
  KvShape kv_shape() const override {
    if (!attends_) return {};
    return {.heads = shape_.heads, .head_dim = shape_.hidden / shape_.heads};
  }
  std::uint64_t peak_bytes(const PassShape& pass, const PeakOptions& /*options*/) const override {
    return peak(pass, shape_.hidden + shape_.ffn() + shape_.heads * pass.tokens);
  }

 private:
  ModelShape shape_;
  bool attends_;
};

class ToyHeadKind final : public UnitKind {
 public:
  explicit ToyHeadKind(const ModelShape& shape)
      : UnitKind("head", UnitRole::kHead), shape_(shape) {}
  Flops flops(std::int64_t /*tokens*/) const override {
    const double products = static_cast<double>(shape_.hidden) * static_cast<double>(shape_.vocab);
    return {.forward = kTwo * products, .backward = 2 * kTwo * products, .recompute = 0};
  }
  std::uint64_t peak_bytes(const PassShape& pass, const PeakOptions& /*options*/) const override {
    return peak(pass, shape_.hidden + shape_.vocab);
  }

 private:
  ModelShape shape_;
};

UnitLayout block_layout(const ModelShape& shape, std::int64_t layer) {
  const std::string prefix = "layers." + std::to_string(layer);
  UnitLayout layout{.name = prefix};
  if (toy_attends(layer)) {
    layout.add(matrix(prefix + ".qkv", shape.hidden, 3 * shape.hidden, true));
    layout.add(matrix(prefix + ".projection", shape.hidden, shape.hidden, true));
  } else {
    layout.add(matrix(prefix + ".up", shape.ffn(), shape.hidden, true));  // [out, in]
    layout.add(matrix(prefix + ".down", shape.hidden, shape.ffn(), true));
  }
  layout.add(gain(prefix + ".norm", shape.hidden));
  return layout;
}

}  // namespace

double toy_epsilon(const ModelShape& shape) { return shape.numbers.at("toy_epsilon"); }

ModelLayout toy_layout(const ModelOptions& options) {
  const ModelShape& shape = options.shape;
  std::vector<ModelLayout::Unit> units;
  UnitLayout embedding{.name = "embedding"};
  embedding.add(matrix("embedding", shape.vocab, shape.hidden, false));
  units.push_back({.kind = std::make_shared<ToyEmbeddingKind>(shape),
                   .layout = std::move(embedding),
                   .borrowed = {}});
  const auto attention = std::make_shared<ToyBlockKind>(shape, true);
  const auto feed_forward = std::make_shared<ToyBlockKind>(shape, false);
  for (std::int64_t layer = 0; layer < shape.layers; ++layer)
    units.push_back({.kind = toy_attends(layer) ? attention : feed_forward,
                     .layout = block_layout(shape, layer),
                     .borrowed = {}});
  UnitLayout head{.name = "head"};
  head.add(matrix("output", shape.vocab, shape.hidden, false));
  head.add(gain("norm", shape.hidden));
  units.push_back(
      {.kind = std::make_shared<ToyHeadKind>(shape), .layout = std::move(head), .borrowed = {}});
  return {{.hidden = shape.hidden, .vocab = shape.vocab}, std::move(units)};
}

}  // namespace sluice::engine
