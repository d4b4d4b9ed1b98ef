#include "engine/runtime/model_parameters.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "aio/check.h"
#include "aio/log.h"
#include "engine/model/initial_values.h"
#include "engine/runtime/load_parameters.h"
#include "engine/runtime/weights_file.h"
#include "engine/step/unit_parameters.h"

namespace sluice::engine {
namespace {

// Parameters of units that train adapters on a frozen model. The base is fetched and released but
// never changes; the adapters are trained. Each is a UnitParameters with its own layout. Passes get
// both (with_adapters()); the optimizer sees only the adapters.
class AdaptedUnitParameters final : public UnitParameters {
 public:
  AdaptedUnitParameters(const ModelLayout& model, std::unique_ptr<UnitParameters> base,
                        std::unique_ptr<UnitParameters> adapters)
      : model_(model),
        base_(std::move(base)),
        adapters_(std::move(adapters)),
        views_(static_cast<std::size_t>(model.units())) {}

  Status prefetch(int unit) override {
    if (is_adapted(unit)) SLUICE_RETURN_IF_ERROR(adapters_->prefetch(unit));
    return base_->prefetch(unit);
  }
  bool prefetch_gathers() const override {
    return base_->prefetch_gathers() || adapters_->prefetch_gathers();
  }

  Result<const UnitViews*> acquire(int unit) override {
    SLUICE_ASSIGN_OR_RETURN(const UnitViews* const base, base_->acquire(unit));
    if (!is_adapted(unit)) return base;
    auto adapters = adapters_->acquire(unit);
    if (!adapters.ok()) {
      base_->release(unit);
      return std::move(adapters).error();
    }
    UnitViews& views = views_[static_cast<std::size_t>(unit)];  // both parts are fixed for the run
    if (views.size() == 0) views = with_adapters(*base, **adapters);
    return &views;
  }

  void release(int unit) override {
    if (is_adapted(unit)) adapters_->release(unit);
    base_->release(unit);
  }

  bool keeps(int unit, offload::PassDirection direction) const override {
    return base_->keeps(unit, direction);
  }
  void* shard_place(int unit) const override {
    return is_adapted(unit) ? adapters_->shard_place(unit) : nullptr;
  }
  Status read_shard(int unit, std::span<std::byte> to) const override {
    return adapters_->read_shard(unit, to);
  }
  void expect_base(std::span<const int> order) override { base_->expect_base(order); }
  void invalidate() override { adapters_->invalidate(); }
  std::uint64_t copied_bytes() const override {
    return base_->copied_bytes() + adapters_->copied_bytes();
  }

 private:
  bool is_adapted(int unit) const { return model_.layout(unit).elements > 0; }

  const ModelLayout& model_;
  const std::unique_ptr<UnitParameters> base_;
  const std::unique_ptr<UnitParameters> adapters_;
  std::vector<UnitViews> views_;  // by unit; empty until first acquired
};

// `model` must outlive it. `base` has the layout model.base(), `adapters` the layout `model`.
std::unique_ptr<UnitParameters> make_adapted_unit_parameters(
    const ModelLayout& model, std::unique_ptr<UnitParameters> base,
    std::unique_ptr<UnitParameters> adapters) {
  return std::make_unique<AdaptedUnitParameters>(model, std::move(base), std::move(adapters));
}

}  // namespace

using offload::ParamOffloader;

namespace {

// Elements that are read at once, and the least work for which a thread is woken.
constexpr std::uint64_t kTileElements = std::uint64_t{1} << 20;
constexpr std::uint64_t kLeastPiece = std::uint64_t{1} << 14;

// How many of a unit's elements [first, first + count) are in 8 bits; the others follow them.
std::uint64_t quantised_of(const offload::Int8Blocks& blocks, std::uint64_t first,
                           std::uint64_t count) {
  return std::clamp(blocks.elements, first, first + count) - first;
}

// The consecutive bytes of a unit that this rank's host has.
class HostPart {
 public:
  HostPart(std::span<std::byte> part, std::uint64_t first) : part_(part), first_(first) {}

  bool has_of(std::uint64_t at, std::uint64_t count) const {
    return at < first_ + part_.size() && at + count > first_;
  }
  void put(std::uint64_t at, std::span<const std::byte> bytes) const {
    if (!has_of(at, bytes.size())) return;
    const std::uint64_t begin = std::max(at, first_);
    const std::uint64_t end = std::min(at + bytes.size(), first_ + part_.size());
    std::copy_n(bytes.data() + (begin - at), end - begin, part_.data() + (begin - first_));
  }

 private:
  const std::span<std::byte> part_;
  const std::uint64_t first_;
};

// Only for finite values: reading refuses others.
Error too_large(const UnitLayout& unit) {
  return {ErrorCode::kCorrupt, "unit " + unit.name +
                                   " has a weight that is too large to store in 8 bits with a "
                                   "scale: set recipe.lora.base_bits to 16"};
}

}  // namespace

BaseParameters::BaseParameters(const MemoryPlan& plan, const ModelLayout& model,
                               aio::Executor* executor)
    : model_(model), layout_(model.base()), form_(plan.base->form), executor_(executor) {
  for (int unit = 0; unit < layout_.units(); ++unit) elements_ += layout_.layout(unit).elements;
}

Result<std::unique_ptr<BaseParameters>> BaseParameters::create(const MemoryPlan& plan,
                                                               const ModelLayout& model,
                                                               const Environment& environment) {
  std::unique_ptr<BaseParameters> base(new BaseParameters(plan, model, environment.executor));
  SLUICE_ASSIGN_OR_RETURN(
      base->params_,
      ParamOffloader::create(base_param_options(plan), {.reads = environment.drives->reads.get(),
                                                        .writes = environment.drives->writes.get(),
                                                        .executor = environment.executor}));
  SLUICE_ASSIGN_OR_RETURN(
      base->made_, make_base_unit_parameters(plan, base->layout_, *base->params_, environment.ranks,
                                             environment.cuda_ranks, environment.trace));
  base->device_ = base->made_.get();
  return base;
}

BaseParameters::~BaseParameters() {
  made_.reset();
  const Status removed = params_ ? params_->remove() : Status();
  if (!removed.ok()) log::warning(removed.error().message());
}

std::unique_ptr<UnitParameters> BaseParameters::beside(std::unique_ptr<UnitParameters> adapters) {
  SLUICE_CHECK(made_ != nullptr, "a base is given to one set of adapters");
  return make_adapted_unit_parameters(model_, std::move(made_), std::move(adapters));
}

// The state of a load of all units.
struct BaseParameters::Load {
  ReadParameter read;
  const std::function<Status(std::uint64_t done)>& progress;
  std::vector<float> values = {};
  std::vector<std::byte> packed = {};  // for units that live on the device
  std::uint64_t done = 0;
};

// Writes elements [first, first + values.size()) of the unit, as far as they are in this rank's
// bytes of it. False if 8 bits cannot hold one of them.
bool BaseParameters::put(const UnitLayout& unit, std::uint64_t first, std::span<const float> values,
                         std::span<std::byte> to) const {
  const offload::UnitShard shard = form_.shard(unit);
  const std::uint64_t end = first + values.size();
  if (!form_.is_int8) {
    const std::uint64_t from = std::clamp(shard.first_element, first, end);
    const std::uint64_t until = std::clamp(shard.end(), from, end);
    if (from < until)
      offload::pack_parameters(form_.form, values.subspan(from - first, until - from),
                               to.data() + (from - shard.first_element) * form_.host_width());
    return true;
  }
  const offload::Int8Blocks blocks = form_.blocks(unit);
  const std::uint64_t quantised = quantised_of(blocks, first, values.size());
  const HostPart part(to, shard.first_element);
  std::array<std::int8_t, offload::kInt8Block> numbers{};
  float scale = 0;
  for (std::uint64_t at = 0; at < quantised; at += offload::kInt8Block) {
    const std::uint64_t number = first + at;
    const std::uint64_t of_scale =
        blocks.scales_offset() + number / offload::kInt8Block * sizeof(float);
    if (!part.has_of(number, sizeof(numbers)) && !part.has_of(of_scale, sizeof(scale))) continue;
    if (!offload::quantise_int8(values.subspan(at, numbers.size()), numbers.data(), &scale))
      return false;
    part.put(number, std::as_bytes(std::span(numbers)));
    part.put(of_scale, std::as_bytes(std::span(&scale, 1)));
  }
  if (quantised == values.size()) return true;
  std::vector<std::byte> plain((values.size() - quantised) * blocks.plain_bytes);
  offload::pack_parameters(form_.form, values.subspan(quantised), plain.data());
  part.put(blocks.plain_offset() + (first + quantised - blocks.elements) * blocks.plain_bytes,
           plain);
  return true;
}

// Writes the same elements in the type they are computed with, which is how a unit that lives on
// the device stores them.
bool BaseParameters::put_computed(const UnitLayout& unit, std::uint64_t first,
                                  std::span<const float> values, std::byte* to) const {
  const auto width = static_cast<std::uint64_t>(offload::param_bytes_per_element(form_.form));
  const std::uint64_t quantised =
      form_.is_int8 ? quantised_of(form_.blocks(unit), first, values.size()) : 0;
  std::array<std::int8_t, offload::kInt8Block> numbers{};
  std::array<float, offload::kInt8Block> rounded{};
  float scale = 0;
  for (std::uint64_t at = 0; at < quantised; at += offload::kInt8Block) {
    if (!offload::quantise_int8(values.subspan(at, rounded.size()), numbers.data(), &scale))
      return false;
    offload::dequantise_int8(numbers.data(), &scale, rounded);
    offload::pack_parameters(form_.form, rounded, to + at * width);
  }
  offload::pack_parameters(form_.form, values.subspan(quantised), to + quantised * width);
  return true;
}

// Runs work(begin, end) on all threads, in whole blocks. False if any of these calls returns false.
bool BaseParameters::in_pieces(std::uint64_t elements, const PieceWork& work) const {
  const std::uint64_t most = elements / kLeastPiece;
  const int pieces = executor_ == nullptr
                         ? 1
                         : static_cast<int>(std::clamp<std::uint64_t>(
                               most, 1, static_cast<std::uint64_t>(executor_->threads())));
  if (pieces == 1) return work(0, elements);
  const std::uint64_t blocks = elements / offload::kInt8Block;
  std::atomic<bool> done{true};
  executor_->run(pieces, [&](int piece) {
    const auto at = [&](int index) {
      return blocks * static_cast<std::uint64_t>(index) / static_cast<std::uint64_t>(pieces) *
             offload::kInt8Block;
    };
    if (!work(at(piece), piece + 1 == pieces ? elements : at(piece + 1))) done = false;
  });
  return done;
}

Status BaseParameters::load_unit(int unit, Load& load) {
  const bool on_host = params_->on_host(unit);
  ParamOffloader::Lease lease;
  if (on_host) {
    SLUICE_ASSIGN_OR_RETURN(lease, params_->acquire(unit, ParamOffloader::Access::kReplace));
  }
  const UnitLayout& layout = layout_.layout(unit);
  const auto width = static_cast<std::uint64_t>(offload::param_bytes_per_element(form_.form));
  const auto visit = [&](std::uint64_t first, std::span<const float> values) -> Status {
    if (!on_host) load.packed.resize(values.size() * width);
    const bool done = in_pieces(values.size(), [&](std::uint64_t begin, std::uint64_t end) {
      const auto piece = values.subspan(begin, end - begin);
      return on_host
                 ? put(layout, first + begin, piece, lease.bytes())
                 : put_computed(layout, first + begin, piece, load.packed.data() + begin * width);
    });
    if (!done) return too_large(layout);
    if (!on_host) SLUICE_RETURN_IF_ERROR(device_->fill_resident(unit, first * width, load.packed));
    load.done += values.size();
    return load.progress ? load.progress(load.done) : Status();
  };
  return read_unit(layout, load.read, load.values, visit, kTileElements);
}

Status BaseParameters::load(const config::Config& config, aio::IoQueue& queue,
                            const ModelShape& shape,
                            const std::function<Status(std::uint64_t done)>& progress) {
  std::optional<WeightsFile> weights;
  if (!config.model.init_from.empty()) {
    auto opened = WeightsFile::open(queue, config.model.init_from, shape);
    if (!opened.ok()) return std::move(opened).error().with_context("model.init_from");
    weights = *std::move(opened);
  }
  const auto seed = static_cast<std::uint64_t>(config.model.init_seed);
  fingerprint_ = BaseFingerprint();
  Load load{.read = [&](const ParameterSpec& parameter, std::uint64_t first,
                        std::span<float> values) -> Status {
              if (weights)
                SLUICE_RETURN_IF_ERROR(weights->read(parameter, first, values));
              else if (executor_ != nullptr)
                fill_initial(parameter, seed, first, values, *executor_);
              else
                fill_initial(parameter, seed, first, values);
              fingerprint_.add(parameter.elements, first, values);
              return {};
            },
            .progress = progress};
  for (int unit = 0; unit < layout_.units(); ++unit) SLUICE_RETURN_IF_ERROR(load_unit(unit, load));
  return params_->drain();
}

Result<std::unique_ptr<ModelParameters>> ModelParameters::create(const MemoryPlan& plan,
                                                                 const ModelLayout& model,
                                                                 const Environment& environment) {
  std::unique_ptr<ModelParameters> made(new ModelParameters());
  if (plan.base) {
    SLUICE_ASSIGN_OR_RETURN(made->base_,
                            BaseParameters::create(plan, model,
                                                   {.drives = environment.drives,
                                                    .executor = environment.base_executor,
                                                    .trace = environment.trace,
                                                    .ranks = environment.ranks,
                                                    .cuda_ranks = environment.cuda_ranks}));
  }
  SLUICE_ASSIGN_OR_RETURN(
      made->trained_,
      ParamOffloader::create(param_options(plan), {.reads = environment.drives->reads.get(),
                                                   .writes = environment.drives->writes.get(),
                                                   .executor = environment.executor}));
  SLUICE_ASSIGN_OR_RETURN(made->units_,
                          make_unit_parameters(plan, model, *made->trained_, environment.ranks,
                                               environment.cuda_ranks, environment.trace));
  if (made->base_) made->units_ = made->base_->beside(std::move(made->units_));
  return made;
}

ModelParameters::~ModelParameters() {
  end_passes();
  const Status removed = trained_ ? trained_->remove() : Status();
  if (!removed.ok()) log::warning(removed.error().message());
}

}  // namespace sluice::engine
