#include "tools/tune/tune_dimensions.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>

#include "aio/units.h"
#include "offload/sum_order.h"

namespace sluice::tools {
namespace {

constexpr std::string_view kMicro = "train_micro_batch_size_per_gpu";
constexpr std::string_view kAccumulation = "gradient_accumulation_steps";
constexpr std::string_view kFractions = "placement.optimizer_fractions";
constexpr std::string_view kSubGroup = "zero_optimization.sub_group_size";
constexpr std::string_view kRecompute = "placement.recompute";
constexpr std::string_view kUnitInputs = "placement.unit_inputs_to_cpu";
constexpr std::string_view kOverlap = "placement.overlap_update";
constexpr std::string_view kPrefetch = "placement.prefetch_units";
constexpr std::string_view kWave = "placement.wave_micro_batches";
constexpr std::string_view kRecord = "placement.record_elements";
constexpr std::string_view kBuffers = "placement.swap_buffers";
constexpr std::string_view kBlock = "aio.block_size";
constexpr std::string_view kDepth = "aio.queue_depth";
constexpr std::string_view kThreads = "aio.intra_op_parallelism";

struct Tunable {
  std::string_view key;
  bool is_wish = false;  // not varied if the configuration sets it
};

constexpr std::array<Tunable, 13> kTunables = {{{kMicro},
                                                {kWave, true},
                                                {kRecompute, true},
                                                {kUnitInputs, true},
                                                {kFractions, true},
                                                {kPrefetch, true},
                                                {kOverlap, true},
                                                {kSubGroup},
                                                {kRecord, true},
                                                {kBuffers, true},
                                                {kBlock},
                                                {kDepth},
                                                {kThreads}}};

constexpr std::int64_t kRecordGranule = 65'536;
constexpr std::int64_t kLargestRecord = 16 << 20;

bool contains(const std::vector<std::string>& list, std::string_view word) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

bool is_given(const config::Resolved& resolved, std::string_view key) {
  return std::any_of(resolved.reports.begin(), resolved.reports.end(),
                     [&](const auto& report) { return report.path == key && report.given; });
}

struct Steps {
  std::int64_t least = 1;
  std::int64_t most = 1;
};

// Halves and doubles of `value`, up to three of each.
std::vector<std::int64_t> doublings(std::int64_t value, const Steps& range) {
  constexpr int kEachWay = 3;
  std::vector<std::int64_t> values;
  std::int64_t low = value;
  for (int i = 0; i < kEachWay && low / 2 >= range.least; ++i) low /= 2;
  for (std::int64_t at = low; at < value; at *= 2) values.push_back(at);
  values.push_back(value);
  std::int64_t high = value;
  for (int i = 0; i < kEachWay && high <= range.most / 2; ++i) values.push_back(high *= 2);
  return values;
}

std::vector<std::int64_t> divisors(std::int64_t number) {
  std::vector<std::int64_t> found;
  for (std::int64_t small = 1; small <= number / small; ++small) {
    if (number % small != 0) continue;
    found.push_back(small);
    if (small != number / small) found.push_back(number / small);
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::string short_number(std::string_view key, std::int64_t value) {
  return key == kBlock ? format_bytes(static_cast<std::uint64_t>(value)) : std::to_string(value);
}

// `value`: the current one. Its choice sets no key, so that "0: the plan's" stays in effect.
Dimension numbers(std::string_view key, std::int64_t value, std::vector<std::int64_t> values) {
  if (std::find(values.begin(), values.end(), value) == values.end()) values.push_back(value);
  std::sort(values.begin(), values.end());
  Dimension dimension{.name = std::string(key.substr(key.find('.') + 1))};
  for (const std::int64_t one : values) {
    if (one == value) {
      dimension.start = static_cast<int>(dimension.choices.size());
      dimension.choices.push_back({.label = short_number(key, one), .keys = {}});
    } else {
      dimension.choices.push_back(
          {.label = short_number(key, one), .keys = {{std::string(key), std::to_string(one)}}});
    }
  }
  return dimension;
}

Dimension switches(std::string_view key, Tristate value) {
  constexpr std::array<const char*, 3> kWords = {"auto", "on", "off"};
  Dimension dimension{.name = std::string(key.substr(key.find('.') + 1)),
                      .start = static_cast<int>(value),
                      .ordered = false};
  for (const char* const word : kWords)
    dimension.choices.push_back(
        {.label = word, .keys = {{std::string(key), "\"" + std::string(word) + "\""}}});
  dimension.choices[static_cast<std::size_t>(value)].keys.clear();
  return dimension;
}

class Space {
 public:
  Space(const config::Resolved& resolved, const PlanFacts& facts, const VaryOptions& options)
      : resolved_(resolved), config_(resolved.config), facts_(facts), options_(options) {}

  TuneSpace build() && {
    if (may_vary(kMicro) && !contains(options_.keep, kAccumulation)) batch();
    if (config_.batch.accumulation > 1 && facts_.wave_micro_batches > 0 && may_vary(kWave)) waves();
    if (may_vary(kRecompute)) add(switches(kRecompute, config_.placement.recompute));
    if (facts_.cuda && may_vary(kUnitInputs))
      add(switches(kUnitInputs, config_.placement.unit_inputs_to_cpu));
    const bool several_tiers =
        (facts_.gpu_fraction > 0) + (facts_.cpu_fraction > 0) + (facts_.nvme_fraction > 0) > 1;
    if (config_.zero.offload_optimizer.device == config::OffloadDevice::kAuto && several_tiers &&
        may_vary(kFractions))
      fractions();
    if ((facts_.cuda || facts_.params_on_nvme) && may_vary(kPrefetch)) prefetch();
    if (may_vary(kOverlap)) overlap();
    if (facts_.state_on_nvme) state_on_nvme();
    if (facts_.nvme()) drives();
    return std::move(space_);
  }

 private:
  void add(Dimension dimension) {
    if (dimension.choices.size() > 1) space_.dimensions.push_back(std::move(dimension));
  }

  // Call only for keys with an effect: it records kept keys as ones that would be varied.
  bool may_vary(std::string_view key) {
    if (contains(options_.keep, key)) return false;
    if (contains(options_.vary, key) || contains(options_.vary, "all")) return true;
    const auto* const tunable = std::find_if(kTunables.begin(), kTunables.end(),
                                             [&](const Tunable& one) { return one.key == key; });
    if (!tunable->is_wish || !is_given(resolved_, key)) return true;
    space_.kept.emplace_back(key);
    return false;
  }

  void batch() {
    const std::int64_t product = config_.batch.micro * config_.batch.accumulation;
    Dimension dimension{.name = "micro-batch"};
    for (const std::int64_t micro : divisors(product)) {
      if (!offload::SumOrder::divides({.micro_batches = product / micro,
                                       .lanes = config_.run.lanes,
                                       .rounds = config_.run.rounds}))
        continue;
      const std::string accumulation = std::to_string(product / micro);
      Choice choice{.label = std::to_string(micro) + " x " + accumulation};
      if (micro == config_.batch.micro)
        dimension.start = static_cast<int>(dimension.choices.size());
      else
        choice.keys = {{std::string(kMicro), std::to_string(micro)},
                       {std::string(kAccumulation), accumulation}};
      dimension.choices.push_back(std::move(choice));
    }
    add(std::move(dimension));
  }

  // All of a step's micro-batches in one wave, half of them, ..., one.
  void waves() {
    std::vector<std::int64_t> values;
    for (std::int64_t wave = config_.batch.accumulation; wave > 1; wave = (wave + 1) / 2)
      values.push_back(wave);
    values.push_back(1);
    add(numbers(kWave, facts_.wave_micro_batches, std::move(values)));
  }

  void shift(std::string name, Shift shifts) {
    constexpr std::array<double, 5> kShares = {-0.1, -0.05, 0, 0.05, 0.1};
    Dimension dimension{.name = std::move(name), .start = 2, .shifts = shifts};
    for (const double share : kShares) {
      std::string percent = std::to_string(static_cast<int>(share * 100)) + "%";
      if (share > 0) percent.insert(0, "+");
      dimension.choices.push_back({.label = std::move(percent), .keys = {}, .shift = share});
    }
    add(std::move(dimension));
  }

  void fractions() {
    if (facts_.cuda && (facts_.gpu_fraction > 0 || facts_.cpu_fraction > 0))
      shift("state on the GPU", Shift::kToGpu);
    if (facts_.nvme_fraction > 0) shift("state in RAM", Shift::kToCpu);
  }

  void prefetch() {
    std::vector<std::int64_t> values;
    for (const std::int64_t ahead : {1, 2, 3, 4, 6, 8, 12, 16})
      if (ahead < facts_.units) values.push_back(ahead);
    add(numbers(kPrefetch, std::max<std::int64_t>(facts_.prefetch_units, 1), std::move(values)));
  }

  void overlap() {
    const bool now = config_.placement.overlap_update;
    add({.name = "overlap_update",
         .choices = {{.label = now ? "true" : "false", .keys = {}},
                     {.label = now ? "false" : "true",
                      .keys = {{std::string(kOverlap), now ? "false" : "true"}}}},
         .start = 0,
         .ordered = false});
  }

  void state_on_nvme() {
    const std::int64_t largest = std::max(facts_.largest_unit_elements, kRecordGranule);
    const std::int64_t sub_group = std::min(config_.zero.sub_group_elements, largest);
    if (may_vary(kSubGroup))
      add(numbers(kSubGroup, sub_group, doublings(sub_group, {kRecordGranule, largest})));
    const std::int64_t record = std::min(facts_.record_elements, sub_group);
    const std::int64_t most = std::min(kLargestRecord, largest);
    if (may_vary(kRecord)) add(numbers(kRecord, record, doublings(record, {kRecordGranule, most})));
    if (may_vary(kBuffers))
      add(numbers(kBuffers, facts_.swap_buffers, {3, 4, 6, 8, 12, 16, 24, 32}));
  }

  void drives() {
    const config::Aio& aio = config_.aio;
    if (may_vary(kBlock))
      add(numbers(kBlock, aio.block_bytes, doublings(aio.block_bytes, {64 << 10, 16 << 20})));
    if (may_vary(kDepth))
      add(numbers(kDepth, aio.queue_depth, doublings(aio.queue_depth, {1, 256})));
    if (may_vary(kThreads)) add(numbers(kThreads, aio.threads, doublings(aio.threads, {1, 8})));
  }

  const config::Resolved& resolved_;
  const config::Config& config_;
  const PlanFacts& facts_;
  const VaryOptions& options_;
  TuneSpace space_;
};

Status check_keys(const std::vector<std::string>& keys, std::string_view option) {
  for (const std::string& key : keys) {
    const bool known = (key == "all" && option == "--vary") || key == kAccumulation ||
                       std::any_of(kTunables.begin(), kTunables.end(),
                                   [&](const Tunable& one) { return one.key == key; });
    if (known) continue;
    std::string list;
    for (const std::string& one : tunable_keys()) list.append(list.empty() ? "" : ", ").append(one);
    return Error(ErrorCode::kInvalidArgument, std::string(option)
                                                  .append(" ")
                                                  .append(key)
                                                  .append(": the keys that can be varied are ")
                                                  .append(list));
  }
  return {};
}

}  // namespace

std::vector<std::string> tunable_keys() {
  std::vector<std::string> keys;
  keys.reserve(std::size(kTunables));
  for (const Tunable& one : kTunables) keys.emplace_back(one.key);
  return keys;
}

Result<TuneSpace> tune_space(const config::Resolved& resolved, const PlanFacts& facts,
                             const VaryOptions& options) {
  SLUICE_RETURN_IF_ERROR(check_keys(options.vary, "--vary"));
  SLUICE_RETURN_IF_ERROR(check_keys(options.keep, "--keep"));
  for (const std::string& key : options.keep) {
    if (contains(options.vary, key))
      return Error(ErrorCode::kInvalidArgument, "--vary and --keep both name " + key);
  }
  return Space(resolved, facts, options).build();
}

namespace {

constexpr double kNothing = 1e-9;

// Moves a share from `below` to `tier`, or back. No share falls below zero.
bool move(double& tier, double& below, double share) {
  const double moved = std::clamp(share, -tier, below);
  tier += moved;
  below -= moved;
  return moved > kNothing || moved < -kNothing;
}

}  // namespace

std::optional<config::TierFractions> shifted(const config::TierFractions& from, Shift shifts,
                                             double share, bool has_drives) {
  config::TierFractions to = from;
  bool has_moved = false;
  if (shifts == Shift::kToGpu)
    has_moved = move(to.gpu, from.cpu > kNothing || !has_drives ? to.cpu : to.nvme, share);
  else if (shifts == Shift::kToCpu && has_drives)
    has_moved = move(to.cpu, to.nvme, share);
  if (!has_moved) return std::nullopt;
  return to;
}

KeyValue fractions_key(const config::TierFractions& fractions) {
  const auto rounded = [](double share) { return std::round(share * 1e4) / 1e4; };
  const double gpu = rounded(fractions.gpu);
  const double nvme = rounded(fractions.nvme);
  const nlohmann::ordered_json json{
      {"gpu", gpu}, {"cpu", std::max(0.0, rounded(1 - gpu - nvme))}, {"nvme", nvme}};
  return {.key = "placement.optimizer_fractions", .json = json.dump()};
}

}  // namespace sluice::tools
