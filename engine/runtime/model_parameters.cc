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

constexpr std::uint64_t kTileElements = std::uint64_t{1} << 20;  // that are read at once

// Only for finite values: reading refuses others.
Error too_large(const UnitLayout& unit) {
  return {ErrorCode::kCorrupt, "unit " + unit.name +
                                   " has a weight that is too large to be encoded: set "
                                   "recipe.lora.base_bits to 16"};
}

// Codes and scales of a chunk.
struct EncodedChunk {
  std::array<std::byte, offload::kCodecChunk> codes;
  alignas(float) std::array<std::byte, offload::kCodecChunk / 64 * sizeof(float)> scales;
  offload::ScaleGroup group;
};

}  // namespace

// Consecutive values of a parameter, and of the gap after it.
struct BaseParameters::Tile {
  const UnitLayout& unit;
  const ParameterSpec& parameter;
  std::uint64_t first = 0;  // in the unit's flat order
  std::span<const float> values;
  float offset = 0;  // ScaleMean

  Tile part(std::uint64_t begin, std::uint64_t end) const {
    return {unit, parameter, first + begin, values.subspan(begin, end - begin), offset};
  }
  // ScaleMean of values from `at` on.
  offload::ScaleMean mean(std::uint64_t at) const {
    const std::uint64_t gap = parameter.first_element + parameter.elements;
    return {.offset = offset, .elements = gap - std::min(gap, first + at)};
  }
};

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

// The consecutive bytes of a unit that this rank's host has.
class BaseParameters::HostPart {
 public:
  HostPart(std::span<std::byte> part, std::uint64_t first) : part_(part), first_(first) {}

  bool has_of(std::uint64_t at, std::uint64_t count) const {
    return count > 0 && at < first_ + part_.size() && at + count > first_;
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

// The state of a load of all units.
struct BaseParameters::Load {
  ReadParameter read;
  std::function<void(const ParameterSpec&, std::uint64_t first, std::span<const float>)> count;
  const std::function<Status(std::uint64_t done)>& progress;
  std::vector<float> values = {};
  std::vector<std::byte> packed = {};  // for units that live on the device
  std::uint64_t done = 0;
};

// Writes the tile as far as it is in this rank's bytes of the unit. False if a codec cannot hold
// one of the values.
bool BaseParameters::put(const Tile& tile, std::span<std::byte> to) const {
  const offload::UnitShard shard = form_.shard(tile.unit);
  const std::uint64_t first = tile.first;
  const std::uint64_t end = first + tile.values.size();
  if (!form_.is_encoded()) {
    const std::uint64_t from = std::clamp(shard.first_element, first, end);
    const std::uint64_t until = std::clamp(shard.end(), from, end);
    if (from < until)
      offload::pack_parameters(form_.form, tile.values.subspan(from - first, until - from),
                               to.data() + (from - shard.first_element) * form_.host_width());
    return true;
  }
  const offload::EncodedUnit unit = form_.encoded(tile.unit);
  const HostPart part(to, shard.first_element);
  if (first < unit.elements) return put_encoded(tile, unit, part);
  std::vector<std::byte> plain(tile.values.size() * unit.plain_bytes);
  offload::pack_parameters(form_.form, tile.values, plain.data());
  part.put(unit.plain_offset() + (first - unit.elements) * unit.plain_bytes, plain);
  return true;
}

bool BaseParameters::put_encoded(const Tile& tile, const offload::EncodedUnit& unit,
                                 const HostPart& part) const {
  const offload::EncodedRun run = form_.run_from(tile.unit, tile.first);
  const auto chunk = std::make_unique<EncodedChunk>();
  const std::span groups(&chunk->group, form_.row().group > 0 ? 1U : 0U);
  for (std::uint64_t at = 0; at < tile.values.size(); at += offload::kCodecChunk) {
    const auto values =
        tile.values.subspan(at, std::min(offload::kCodecChunk, tile.values.size() - at));
    const auto codes = std::span(chunk->codes).first(unit.code_bytes(values.size()));
    const auto scales = std::span(chunk->scales).first(unit.scale_bytes(values.size()));
    const std::uint64_t of_codes = unit.code_bytes(run.first + at);
    const std::uint64_t of_scales = unit.scales_offset() + unit.scale_bytes(run.first + at);
    const std::uint64_t of_group =
        unit.groups_offset() +
        (run.first_group + at / offload::kCodecChunk) * sizeof(offload::ScaleGroup);
    if (!part.has_of(of_codes, codes.size()) && !part.has_of(of_scales, scales.size()) &&
        !part.has_of(of_group, groups.size_bytes()))
      continue;
    if (!offload::encode(form_.codec, values, tile.mean(at),
                         {codes.data(), scales.data(), &chunk->group}))
      return false;
    part.put(of_codes, codes);
    part.put(of_scales, scales);
    part.put(of_group, std::as_bytes(groups));
  }
  return true;
}

// Writes the tile in the type it is computed with, which is how a unit that lives on the device
// stores it.
bool BaseParameters::put_computed(const Tile& tile, std::byte* to) const {
  const auto width = static_cast<std::uint64_t>(offload::param_bytes_per_element(form_.form));
  if (!form_.is_encoded() || tile.first >= form_.encoded(tile.unit).elements) {
    offload::pack_parameters(form_.form, tile.values, to);
    return true;
  }
  const auto chunk = std::make_unique<EncodedChunk>();
  std::array<float, kParameterAlignment> rounded{};  // whole blocks of every codec
  for (std::uint64_t at = 0; at < tile.values.size(); at += offload::kCodecChunk) {
    const auto values =
        tile.values.subspan(at, std::min(offload::kCodecChunk, tile.values.size() - at));
    if (!offload::encode(form_.codec, values, tile.mean(at),
                         {chunk->codes.data(), chunk->scales.data(), &chunk->group}))
      return false;
    for (std::uint64_t done = 0; done < values.size(); done += rounded.size()) {
      offload::decode(form_.codec, {chunk->codes.data(), chunk->scales.data(), &chunk->group},
                      done / form_.row().block, rounded);
      offload::pack_parameters(form_.form, rounded, to + (at + done) * width);
    }
  }
  return true;
}

// Runs work(begin, end) on all threads, in whole chunks. False if any of these calls returns false.
bool BaseParameters::in_pieces(std::uint64_t elements, const PieceWork& work) const {
  const std::uint64_t most = elements / offload::kCodecChunk;
  const int pieces = executor_ == nullptr
                         ? 1
                         : static_cast<int>(std::clamp<std::uint64_t>(
                               most, 1, static_cast<std::uint64_t>(executor_->threads())));
  if (pieces == 1) return work(0, elements);
  std::atomic<bool> done{true};
  executor_->run(pieces, [&](int piece) {
    const auto at = [&](int index) {
      return most * static_cast<std::uint64_t>(index) / static_cast<std::uint64_t>(pieces) *
             offload::kCodecChunk;
    };
    if (!work(at(piece), piece + 1 == pieces ? elements : at(piece + 1))) done = false;
  });
  return done;
}

// Visits a parameter's values, and zeros in the gap after it, tile by tile. Tiles are whole chunks.
Status BaseParameters::visit_tiles(const UnitLayout& unit, const ParameterSpec& parameter,
                                   Load& load, const TileWork& visit) const {
  static_assert(kTileElements % offload::kCodecChunk == 0);
  const std::uint64_t elements =
      (parameter.elements + kParameterAlignment - 1) / kParameterAlignment * kParameterAlignment;
  for (std::uint64_t first = 0; first < elements; first += kTileElements) {
    load.values.assign(std::min(kTileElements, elements - first), 0);
    const auto values =
        std::span(load.values)
            .first(std::min<std::uint64_t>(
                load.values.size(), parameter.elements - std::min(first, parameter.elements)));
    if (!values.empty()) SLUICE_RETURN_IF_ERROR(load.read(parameter, first, values));
    SLUICE_RETURN_IF_ERROR(
        visit({unit, parameter, parameter.first_element + first, load.values}, values));
  }
  return {};
}

// With double quantisation a parameter is read twice: first for the mean of its scales.
Result<float> BaseParameters::scale_offset(const UnitLayout& unit, const ParameterSpec& parameter,
                                           Load& load) const {
  if (form_.row().group == 0 || parameter.first_element >= form_.encoded(unit).elements) return 0;
  double sum = 0;
  SLUICE_RETURN_IF_ERROR(
      visit_tiles(unit, parameter, load, [&](const Tile& tile, std::span<const float> /*values*/) {
        sum += offload::sum_of_absmax(form_.codec, tile.values);
        return Status();
      }));
  const std::uint64_t blocks = (parameter.elements + form_.row().block - 1) / form_.row().block;
  return static_cast<float>(sum / static_cast<double>(blocks));
}

Status BaseParameters::load_unit(int unit, Load& load) {
  const bool on_host = params_->on_host(unit);
  ParamOffloader::Lease lease;
  if (on_host) {
    SLUICE_ASSIGN_OR_RETURN(lease, params_->acquire(unit, ParamOffloader::Access::kReplace));
  }
  const UnitLayout& layout = layout_.layout(unit);
  const auto width = static_cast<std::uint64_t>(offload::param_bytes_per_element(form_.form));
  for (const ParameterSpec& parameter : layout.parameters) {
    SLUICE_ASSIGN_OR_RETURN(const float offset, scale_offset(layout, parameter, load));
    const auto visit = [&](Tile tile, std::span<const float> values) -> Status {
      tile.offset = offset;
      load.count(parameter, tile.first - parameter.first_element, values);
      if (!on_host) load.packed.resize(tile.values.size() * width);
      const bool done = in_pieces(tile.values.size(), [&](std::uint64_t begin, std::uint64_t end) {
        const Tile piece = tile.part(begin, end);
        return on_host ? put(piece, lease.bytes())
                       : put_computed(piece, load.packed.data() + begin * width);
      });
      if (!done) return too_large(layout);
      if (!on_host)
        SLUICE_RETURN_IF_ERROR(device_->fill_resident(unit, tile.first * width, load.packed));
      load.done += tile.values.size();
      return load.progress ? load.progress(load.done) : Status();
    };
    SLUICE_RETURN_IF_ERROR(visit_tiles(layout, parameter, load, visit));
  }
  return {};
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
  Load load{
      .read = [&](const ParameterSpec& parameter, std::uint64_t first,
                  std::span<float> values) -> Status {
        if (weights)
          SLUICE_RETURN_IF_ERROR(weights->read(parameter, first, values));
        else if (executor_ != nullptr)
          fill_initial(parameter, seed, first, values, *executor_);
        else
          fill_initial(parameter, seed, first, values);
        return {};
      },
      .count =
          [&](const ParameterSpec& parameter, std::uint64_t first, std::span<const float> values) {
            if (!values.empty()) fingerprint_.add(parameter.elements, first, values);
          },
      .progress = progress};
  for (int unit = 0; unit < layout_.units(); ++unit) SLUICE_RETURN_IF_ERROR(load_unit(unit, load));
  device_->invalidate();
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
