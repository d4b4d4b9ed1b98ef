// Experts in one tensor: read as each expert's matrices from all orders and from MXFP4, and
// written so again.
#include "engine/weights/stacked_weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/weights/stacked_writer.h"
#include "tests/engine/weights/weights_under_test.h"

namespace sluice::engine {
namespace {

using Order = ExpertStack::Order;

constexpr ExpertStack kRowStacks[] = {
    {.name = "mlp.experts.gate_up", .experts = "mlp.experts", .parts = {"gate", "up"}},
    {.name = "mlp.experts.down", .experts = "mlp.experts", .parts = {"down"}}};
constexpr ExpertStack kTurnStacks[] = {{.name = "mlp.experts.gate_up",
                                        .experts = "mlp.experts",
                                        .parts = {"gate", "up"},
                                        .order = Order::kInTurn},
                                       {.name = "mlp.experts.down",
                                        .experts = "mlp.experts",
                                        .parts = {"down"},
                                        .order = Order::kInTurn}};

ParameterNames names(std::span<const ExpertStack> stacks) {
  return {.prefix = "model.",
          .prefixes_exports = true,
          .head = "lm_head.weight",
          .token_embedding = "embed.weight",
          .stacks = stacks,
          .exports_stacks = true};
}

// Tensors in memory, which counts what is read.
class Tensors final : public WeightSource {
 public:
  void add(const std::string& name, DType dtype, std::vector<std::uint64_t> shape,
           std::vector<float> values) {
    TensorInfo info;
    info.name = name;
    info.dtype = dtype;
    info.shape = std::move(shape);
    info.elements = values.size();
    infos_.push_back(info);
    values_[name] = std::move(values);
  }
  // The values of value_at().
  void add(std::uint64_t number, const std::string& name, std::vector<std::uint64_t> shape) {
    const std::uint64_t elements = elements_of({name, DType::kF32, shape});
    add(name, DType::kF32, std::move(shape), values_of(number, elements));
  }

  std::span<const TensorInfo> tensors() const override { return infos_; }
  const TensorInfo* find(std::string_view name) const override {
    const auto found = std::find_if(infos_.begin(), infos_.end(),
                                    [&](const TensorInfo& info) { return info.name == name; });
    return found == infos_.end() ? nullptr : &*found;
  }
  Status read(std::string_view name, std::uint64_t first_element,
              std::span<float> values) override {
    const std::vector<float>& all = values_.at(std::string(name));
    if (first_element + values.size() > all.size())
      return Error(ErrorCode::kInvalidArgument, "out of bounds");
    std::copy_n(all.begin() + static_cast<std::ptrdiff_t>(first_element), values.size(),
                values.begin());
    elements_read += values.size();
    return {};
  }
  std::string place_of(std::string_view name) const override {
    return "memory/" + std::string(name);
  }

  std::uint64_t elements_read = 0;

 private:
  std::vector<TensorInfo> infos_;
  std::map<std::string, std::vector<float>> values_;
};

std::vector<float> read_all(WeightSource& source, const std::string& name, std::uint64_t range) {
  const TensorInfo* const info = source.find(name);
  EXPECT_NE(info, nullptr) << name;
  if (info == nullptr) return {};
  std::vector<float> values(info->elements);
  for (std::uint64_t first = 0; first < values.size(); first += range) {
    const std::uint64_t count = std::min(range, values.size() - first);
    EXPECT_OK(source.read(name, first, std::span(values).subspan(first, count)));
  }
  return values;
}

constexpr std::uint64_t kExperts = 3;
constexpr std::uint64_t kOut = 5;
constexpr std::uint64_t kIn = 7;

std::string matrix(std::uint64_t expert, const char* part) {
  return "model.layers.2.mlp.experts." + std::to_string(expert) + "." + part + ".weight";
}

TEST(StackedWeights, InRowsAreRangesOfTheTensor) {
  auto tensors = std::make_unique<Tensors>();
  tensors->add(1, "model.layers.2.mlp.experts.gate_up", {kExperts, 2 * kOut, kIn});
  tensors->add(2, "model.norm.weight", {kIn});
  const ParameterNames rules = names(kRowStacks);
  const auto source = StackedWeights::over(std::move(tensors), rules);
  EXPECT_EQ(source->tensors().size(), 2 * kExperts + 1);
  EXPECT_EQ(read_all(*source, "model.norm.weight", 100), values_of(2, kIn));
  for (std::uint64_t expert = 0; expert < kExperts; ++expert)
    for (const bool is_up : {false, true}) {
      const std::string name = matrix(expert, is_up ? "up" : "gate");
      ASSERT_NE(source->find(name), nullptr);
      EXPECT_EQ(source->find(name)->shape, (std::vector<std::uint64_t>{kOut, kIn}));
      const std::vector<float> values = read_all(*source, name, 4);
      for (std::uint64_t i = 0; i < values.size(); ++i)
        EXPECT_EQ(values[i], value_at(1, (2 * expert + (is_up ? 1 : 0)) * kOut * kIn + i));
    }
}

TEST(StackedWeights, InTurnAreTransposedAndReadOncePerExpert) {
  auto tensors = std::make_unique<Tensors>();
  const Tensors& counted = *tensors;
  tensors->add(1, "model.layers.2.mlp.experts.gate_up", {kExperts, kIn, 2 * kOut});
  tensors->add(2, "model.layers.2.mlp.experts.down", {kExperts, kOut, kIn});
  const ParameterNames rules = names(kTurnStacks);
  const auto source = StackedWeights::over(std::move(tensors), rules);
  for (std::uint64_t expert = 0; expert < kExperts; ++expert)
    for (const std::uint64_t part : {0, 1}) {
      const std::vector<float> values =
          read_all(*source, matrix(expert, part == 1 ? "up" : "gate"), 6);
      for (std::uint64_t row = 0; row < kOut; ++row)
        for (std::uint64_t column = 0; column < kIn; ++column)
          EXPECT_EQ(values[row * kIn + column],
                    value_at(1, (expert * kIn + column) * 2 * kOut + 2 * row + part));
    }
  EXPECT_EQ(counted.elements_read, 2 * kExperts * kOut * kIn);
  const std::vector<float> down = read_all(*source, matrix(1, "down"), 100);
  for (std::uint64_t row = 0; row < kIn; ++row)
    for (std::uint64_t column = 0; column < kOut; ++column)
      EXPECT_EQ(down[row * kOut + column], value_at(2, (kOut + column) * kIn + row));
}

// A family's own names for the experts' home go for what stands next to them, too.
TEST(StackedWeights, OfAnotherHomeBringItsOtherMatricesAlong) {
  constexpr ExpertStack kMoved[] = {
      {.name = "mlp.experts.down", .experts = "moe.experts", .parts = {"w2"}}};
  auto tensors = std::make_unique<Tensors>();
  tensors->add(1, "model.layers.0.mlp.gate.weight", {kExperts, kIn});
  tensors->add(2, "model.layers.0.mlp.experts.down", {kExperts, kOut, kIn});
  tensors->add(3, "model.mlpx.weight", {2, 2});
  const ParameterNames rules = names(kMoved);
  const auto source = StackedWeights::over(std::move(tensors), rules);
  EXPECT_EQ(source->tensors().size(), kExperts + 2);
  EXPECT_EQ(read_all(*source, "model.layers.0.moe.gate.weight", 4), values_of(1, kExperts * kIn));
  EXPECT_EQ(source->find("model.layers.0.mlp.gate.weight"), nullptr);
  EXPECT_NE(source->find("model.layers.0.moe.experts.2.w2.weight"), nullptr);
  EXPECT_EQ(read_all(*source, "model.mlpx.weight", 4), values_of(3, 4));
}

// More than a piece of an expert is read at once.
TEST(StackedWeights, InTurnOfManyPiecesAreTransposed) {
  constexpr std::uint64_t kLarge = 1500;
  auto tensors = std::make_unique<Tensors>();
  tensors->add(1, "layers.0.mlp.experts.down", {1, kLarge, kLarge});
  const ParameterNames rules = names(kTurnStacks);
  const auto source = StackedWeights::over(std::move(tensors), rules);
  const auto values = read_all(*source, "layers.0.mlp.experts.0.down.weight", 1 << 20);
  for (std::uint64_t row = 0; row < kLarge; row += 7)
    for (std::uint64_t column = 0; column < kLarge; ++column)
      ASSERT_EQ(values[row * kLarge + column], value_at(1, column * kLarge + row));
}

// All 256 bytes with scales from the smallest to the largest, against numbers that are written out.
TEST(StackedWeights, OfMxfp4AreDecodedExactly) {
  constexpr std::uint64_t kRows = 8;
  constexpr std::uint64_t kBlocks = 2;
  std::vector<float> bytes(2 * kRows * kBlocks * 16);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<float>(i * 5 % 256);
  std::vector<float> scales(2 * kRows * kBlocks);
  for (std::size_t i = 0; i < scales.size(); ++i) scales[i] = static_cast<float>(i * 8);
  auto tensors = std::make_unique<Tensors>();
  tensors->add("model.layers.2.mlp.experts.gate_up_blocks", DType::kU8, {2, kRows, kBlocks, 16},
               bytes);
  tensors->add("model.layers.2.mlp.experts.gate_up_scales", DType::kU8, {2, kRows, kBlocks},
               scales);
  const ParameterNames rules = names(kTurnStacks);
  const auto source = StackedWeights::over(std::move(tensors), rules);
  ASSERT_EQ(source->tensors().size(), 4U);
  constexpr double kNumbers[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6, -0., -0.5, -1, -1.5, -2, -3, -4, -6};
  for (std::uint64_t expert = 0; expert < 2; ++expert)
    for (const std::uint64_t part : {0, 1}) {
      const std::string name = matrix(expert, part == 1 ? "up" : "gate");
      EXPECT_EQ(source->find(name)->dtype, DType::kBF16);
      const std::vector<float> values = read_all(*source, name, 50);
      for (std::uint64_t row = 0; row < kRows / 2; ++row)
        for (std::uint64_t column = 0; column < 32 * kBlocks; ++column) {
          const std::uint64_t in_file = expert * kRows + 2 * row + part;
          const std::uint64_t block = in_file * kBlocks + column / 32;
          const auto byte = static_cast<unsigned>(bytes[block * 16 + column % 32 / 2]);
          const unsigned bits = column % 2 == 0 ? byte % 16 : byte / 16;
          const double exact =
              kNumbers[bits] * std::pow(2.0, static_cast<double>(scales[block]) - 127);
          EXPECT_EQ(values[row * 32 * kBlocks + column], static_cast<float>(exact));
        }
    }
}

TEST(StackedWeights, ThatDoNotFitStayAsTheyAre) {
  const auto count = [](const std::string& name, DType dtype, std::vector<std::uint64_t> shape,
                        bool has_scales = false) {
    auto tensors = std::make_unique<Tensors>();
    tensors->add(name, dtype, shape, {});
    if (has_scales) {
      shape.back() += 1;
      tensors->add("layers.0.mlp.experts.down_scales", DType::kU8, shape, {});
    }
    const ParameterNames rules = names(kTurnStacks);
    const auto source = StackedWeights::over(std::move(tensors), rules);
    return source->find(name) != nullptr;
  };
  EXPECT_TRUE(count("layers.0.mlp.experts.gate_up", DType::kF32, {3, 4, 5}));  // odd
  EXPECT_TRUE(count("layers.0.mlp.experts.gate_up", DType::kF32, {3, 4}));
  EXPECT_TRUE(count("layers.0.mlp.experts.gate_up", DType::kI32, {3, 4, 6}));
  EXPECT_TRUE(count("layers.0.xmlp.experts.down", DType::kF32, {3, 4, 6}));
  EXPECT_TRUE(count("layers.0.mlp.experts.down", DType::kF32, {1 << 20, 1, 2}));
  EXPECT_TRUE(count("layers.0.mlp.experts.down_blocks", DType::kU8, {3, 4, 2, 16}));
  EXPECT_TRUE(count("layers.0.mlp.experts.down_blocks", DType::kU8, {3, 4, 2, 16}, true));
  EXPECT_FALSE(count("layers.0.mlp.experts.down", DType::kF32, {3, 4, 6}));
}

class StackedWriting : public testing::Test {
 protected:
  const aio::TemporaryFolder folder_;
  const std::unique_ptr<aio::IoBackend> backend_ =
      aio::make_backend_or_die(aio::BackendKind::kPosix);
  const std::unique_ptr<aio::IoQueue> queue_ = aio::make_queue_or_die(*backend_, {});
};

TEST_F(StackedWriting, IsReadBackAsTheSameMatrices) {
  std::vector<TensorSpec> parameters = {{"layers.0.q.weight", DType::kF32, {11, 13}}};
  for (const int layer : {0, 1}) {
    const std::string block = "layers." + std::to_string(layer) + ".mlp.experts.";
    for (std::uint64_t e = 0; e < kExperts; ++e)
      for (const char* const part : {".gate.weight", ".up.weight"})
        parameters.push_back({block + std::to_string(e) + part, DType::kF32, {kOut, kIn}});
    for (std::uint64_t e = 0; e < kExperts; ++e)
      parameters.push_back({block + std::to_string(e) + ".down.weight", DType::kF32, {kIn, kOut}});
  }
  parameters.push_back({"lm_head.weight", DType::kF32, {4, 4}});
  for (const auto& stacks : {std::span(kTurnStacks), std::span(kRowStacks)}) {
    const ParameterNames rules = names(stacks);
    const std::string path = folder_.file("model.safetensors");
    SafetensorsWriter::Options options;
    options.path = path;
    auto writer = StackedWriter::create(*queue_, options, parameters, rules);
    ASSERT_OK(writer);
    for (std::size_t t = 0; t < parameters.size(); ++t) {
      const auto values = values_of(t, elements_of(parameters[t]));
      for (std::size_t first = 0; first < values.size(); first += 9)
        ASSERT_OK((*writer)->append(
            parameters[t].name,
            std::span(values).subspan(first, std::min<std::size_t>(9, values.size() - first))));
    }
    ASSERT_OK((*writer)->finish());
    auto reader = SafetensorsReader::open(*queue_, path);
    ASSERT_OK(reader);
    EXPECT_EQ((*reader)->tensors().size(), 6U);
    const bool in_turn = stacks[0].order == Order::kInTurn;
    EXPECT_EQ((*reader)->find("model.layers.1.mlp.experts.gate_up")->shape,
              in_turn ? (std::vector<std::uint64_t>{kExperts, kIn, 2 * kOut})
                      : (std::vector<std::uint64_t>{kExperts, 2 * kOut, kIn}));
    const auto source = StackedWeights::over(*std::move(reader), rules);
    for (std::size_t t = 0; t < parameters.size(); ++t) {
      const std::string prefix = parameters[t].name == "lm_head.weight" ? "" : "model.";
      EXPECT_EQ(read_all(*source, prefix + parameters[t].name, 1000),
                values_of(t, elements_of(parameters[t])));
    }
  }
}

TEST_F(StackedWriting, RefusesParametersOutOfOrderAndTooManyValues) {
  const std::vector<TensorSpec> parameters = {
      {"layers.0.mlp.experts.0.down.weight", DType::kF32, {2, 2}},
      {"layers.0.mlp.experts.1.down.weight", DType::kF32, {2, 2}}};
  const ParameterNames rules = names(kTurnStacks);
  SafetensorsWriter::Options options;
  options.path = folder_.file("model.safetensors");
  auto writer = StackedWriter::create(*queue_, options, parameters, rules);
  ASSERT_OK(writer);
  const std::vector<float> values(5);
  EXPECT_FALSE((*writer)->append(parameters[1].name, values).ok());
  EXPECT_FALSE((*writer)->append(parameters[0].name, values).ok());
  EXPECT_FALSE((*writer)->finish().ok());
}

}  // namespace
}  // namespace sluice::engine
