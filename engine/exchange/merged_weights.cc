#include "engine/exchange/merged_weights.h"

#include <algorithm>
#include <vector>

#include "engine/exchange/base_fingerprint.h"

namespace sluice::engine {
namespace {

constexpr std::uint64_t kElementsAtOnce = std::uint64_t{1} << 22;
constexpr std::string_view kWeight = ".weight";

// The adapter of one matrix [rows, columns].
struct WholeAdapter {
  std::vector<float> a;  // [rank, columns]
  std::vector<float> b;  // [rows, rank]
};

bool is_target(const LoraRecipe& recipe, std::string_view module) {
  const std::string_view last = module.substr(module.rfind('.') + 1);
  return std::find(recipe.targets.begin(), recipe.targets.end(), last) != recipe.targets.end();
}

Result<WholeAdapter> read_adapter(CheckpointReader& checkpoint, const std::string& module,
                                  const TensorSpec& matrix, std::uint64_t rank) {
  WholeAdapter adapter;
  adapter.a.resize(rank * matrix.shape[1]);
  adapter.b.resize(matrix.shape[0] * rank);
  SLUICE_RETURN_IF_ERROR(checkpoint.read_master(module + ".lora_A.weight", 0, adapter.a));
  SLUICE_RETURN_IF_ERROR(checkpoint.read_master(module + ".lora_B.weight", 0, adapter.b));
  return adapter;
}

// One row of the product, added to `row`.
void add_row(const WholeAdapter& adapter, std::uint64_t index, std::uint64_t rank, float scale,
             std::span<float> row, std::span<float> sum) {
  std::fill(sum.begin(), sum.end(), 0.0F);
  for (std::uint64_t k = 0; k < rank; ++k) {
    const float factor = adapter.b[index * rank + k];
    const float* const a = adapter.a.data() + k * row.size();
    for (std::size_t i = 0; i < row.size(); ++i) sum[i] += factor * a[i];
  }
  for (std::size_t i = 0; i < row.size(); ++i) row[i] += scale * sum[i];
}

void add_rows(const MergedWeights& merged, const WholeAdapter& adapter, std::uint64_t first_row,
              std::uint64_t columns, std::span<float> values) {
  const auto rank = static_cast<std::uint64_t>(merged.recipe.rank);
  const auto scale = static_cast<float>(merged.recipe.scale());
  const std::uint64_t rows = values.size() / columns;
  const auto pieces = std::min(static_cast<std::uint64_t>(merged.executor.threads()),
                               std::max(rows, std::uint64_t{1}));
  merged.executor.run(static_cast<int>(pieces), [&](int piece) {
    const auto index = static_cast<std::uint64_t>(piece);
    std::vector<float> sum(columns);
    for (std::uint64_t row = rows * index / pieces; row < rows * (index + 1) / pieces; ++row)
      add_row(adapter, first_row + row, rank, scale, values.subspan(row * columns, columns), sum);
  });
}

}  // namespace

Status merge_weights(const MergedWeights& merged, const TakeValues& take) {
  BaseFingerprint fingerprint;
  std::vector<float> values;
  for (std::size_t i = 0; i < merged.base.parameters.size(); ++i) {
    const TensorSpec& spec = merged.base.parameters[i];
    const std::string& in_file = merged.base.names[i];
    const std::uint64_t elements = merged.base.reader->find(in_file)->elements;
    const std::string module = spec.name.substr(0, spec.name.size() - kWeight.size());
    const bool adapted =
        spec.name.ends_with(kWeight) && spec.shape.size() == 2 && is_target(merged.recipe, module);
    WholeAdapter adapter;
    std::uint64_t at_once = kElementsAtOnce;
    if (adapted) {  // whole rows
      SLUICE_ASSIGN_OR_RETURN(adapter,
                              read_adapter(merged.adapters, module, spec,
                                           static_cast<std::uint64_t>(merged.recipe.rank)));
      at_once = std::max(at_once / spec.shape[1], std::uint64_t{1}) * spec.shape[1];
    }
    for (std::uint64_t first = 0; first < elements; first += at_once) {
      values.resize(std::min(at_once, elements - first));
      SLUICE_RETURN_IF_ERROR(merged.base.reader->read(in_file, first, values));
      fingerprint.add(elements, first, values);
      if (adapted) add_rows(merged, adapter, first / spec.shape[1], spec.shape[1], values);
      SLUICE_RETURN_IF_ERROR(take(spec.name, values));
    }
  }
  const auto& stored = merged.adapters.state().run.adapters;
  return stored && stored->base == fingerprint.all() ? Status() : other_base(merged.asked);
}

}  // namespace sluice::engine
