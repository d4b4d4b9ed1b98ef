// Batch sizes: train = micro x accumulation x world size, completed by DeepSpeed's rules.
#include <algorithm>
#include <optional>

#include "engine/config/derive.h"
#include "offload/sum_order.h"

namespace sluice::config {
namespace {

constexpr std::string_view kTrain = "train_batch_size";
constexpr std::string_view kMicro = "train_micro_batch_size_per_gpu";
constexpr std::string_view kAccumulation = "gradient_accumulation_steps";

using Size = std::optional<std::int64_t>;

std::string name_and_value(std::string_view name, std::int64_t value) {
  return std::string(name) + " " + std::to_string(value);
}

class Batch {
 public:
  explicit Batch(Derivation& derivation)
      : derivation_(derivation), world_(derivation.config.world_size) {
    const BatchSizes& sizes = derivation.config.batch;
    if (derivation.given(kTrain)) train_ = sizes.train;
    if (derivation.given(kMicro)) micro_ = sizes.micro;
    if (derivation.given(kAccumulation)) accumulation_ = sizes.accumulation;
  }

  void complete() {
    if (train_ && micro_ && accumulation_ && !agrees()) drop_the_overruled();
    if (train_ && micro_ && accumulation_) return check();
    if (train_ && micro_) return divide(kMicro, *micro_, kAccumulation, accumulation_);
    if (train_ && accumulation_) return divide(kAccumulation, *accumulation_, kMicro, micro_);
    if (train_) {
      set(kAccumulation, accumulation_, 1, "1 where only the train batch is given");
      return divide(kAccumulation, 1, kMicro, micro_);
    }
    if (!micro_) {
      if (!derivation_.is_auto(kTrain) && !derivation_.is_auto(kMicro)) return reject_empty();
      set(kMicro, micro_, 1, "\"auto\", and nothing sets it");
    }
    if (!accumulation_) set(kAccumulation, accumulation_, 1, "1 unless something asks for more");
    multiply();
  }

 private:
  bool agrees() const { return product() == *train_; }

  // 0 on overflow.
  std::int64_t product() const {
    std::int64_t micros = 0;
    std::int64_t all = 0;
    if (__builtin_mul_overflow(*micro_, *accumulation_, &micros)) return 0;
    return __builtin_mul_overflow(micros, world_, &all) ? 0 : all;
  }

  // A source that gives two of the three sizes overrides an earlier source's third.
  void drop_the_overruled() {
    const int train = derivation_.rank(kTrain);
    const int micro = derivation_.rank(kMicro);
    const int accumulation = derivation_.rank(kAccumulation);
    const std::string reason = "a later source gives the other two batch sizes";
    if (train < std::min(micro, accumulation)) {
      derivation_.drop(kTrain, reason);
      train_.reset();
    } else if (micro < std::min(train, accumulation)) {
      derivation_.drop(kMicro, reason);
      micro_.reset();
    } else if (accumulation < std::min(train, micro)) {
      derivation_.drop(kAccumulation, reason);
      accumulation_.reset();
    }
  }

  void check() {
    if (agrees()) return;
    derivation_.reject(
        name_and_value(kTrain, *train_) + " is not " + name_and_value(kMicro, *micro_) + " x " +
        name_and_value(kAccumulation, *accumulation_) + " x world size " + std::to_string(world_) +
        " = " + std::to_string(product()) +
        ": leave one of the three out, or set train_batch_size to " + std::to_string(product()));
  }

  void divide(std::string_view divisor_name, std::int64_t divisor, std::string_view name,
              Size& size) {
    const std::int64_t step = divisor * world_;
    if (*train_ % step == 0) {
      return set(name, size, *train_ / step,
                 name_and_value(kTrain, *train_) + " / (" + name_and_value(divisor_name, divisor) +
                     " x world size " + std::to_string(world_) + ")");
    }
    const std::int64_t below = *train_ / step * step;
    derivation_.reject(name_and_value(kTrain, *train_) + " cannot be divided by " +
                       name_and_value(divisor_name, divisor) + " x world size " +
                       std::to_string(world_) + ": set it to " +
                       (below > 0 ? std::to_string(below) + " or " : "") +
                       std::to_string(below + step));
  }

  void multiply() {
    const std::int64_t train = product();
    if (train <= 0 || static_cast<double>(train) > find_key(kTrain)->range.maximum) {
      return derivation_.reject(name_and_value(kMicro, *micro_) + " x " +
                                name_and_value(kAccumulation, *accumulation_) + " x world size " +
                                std::to_string(world_) + " is larger than any run can train on");
    }
    set(kTrain, train_, train,
        name_and_value(kMicro, *micro_) + " x " + name_and_value(kAccumulation, *accumulation_) +
            " x world size " + std::to_string(world_));
  }

  void set(std::string_view name, Size& size, std::int64_t value, std::string reason) {
    size = value;
    BatchSizes& sizes = derivation_.config.batch;
    (name == kTrain ? sizes.train : name == kMicro ? sizes.micro : sizes.accumulation) = value;
    derivation_.note(name, std::move(reason));
  }

  void reject_empty() {
    derivation_.reject(
        "no batch size is given: set train_batch_size, or train_micro_batch_size_per_gpu (and "
        "gradient_accumulation_steps if it is not 1)");
  }

  Derivation& derivation_;
  std::int64_t world_;
  Size train_;
  Size micro_;
  Size accumulation_;
};

// The divisors of a number nearest to another number, below and above it.
std::string nearest_divisors(std::int64_t number, std::int64_t to) {
  std::int64_t below = 1;
  std::int64_t above = number;
  for (std::int64_t it = 1; it <= number / it; ++it) {
    if (number % it != 0) continue;
    for (const std::int64_t divisor : {it, number / it}) {
      if (divisor <= to) below = std::max(below, divisor);
      if (divisor >= to) above = std::min(above, divisor);
    }
  }
  return below == above || above < to ? std::to_string(below)
                                      : std::to_string(below) + " or " + std::to_string(above);
}

}  // namespace

void derive_batch_sizes(Derivation& derivation) { Batch(derivation).complete(); }

// Every rank must have the same number of lanes.
void check_lanes_of_ranks(Derivation& derivation) {
  const std::int64_t world = derivation.config.world_size;
  Run& run = derivation.config.run;
  if (world == 1) return;
  if (!derivation.given("run.lanes")) {
    run.lanes = world;
    derivation.note("run.lanes", "one for each of " + std::to_string(world) + " ranks");
    return;
  }
  if (run.lanes % world == 0) return;
  const std::int64_t below = std::max(run.lanes / world, std::int64_t{1}) * world;
  derivation.reject("run.lanes " + std::to_string(run.lanes) + " cannot be divided equally among " +
                    std::to_string(world) + " ranks: set it to " + std::to_string(below) + " or " +
                    std::to_string(below + world));
}

void check_lanes(Derivation& derivation) {
  check_lanes_of_ranks(derivation);
  const BatchSizes& batch = derivation.config.batch;
  const Run& run = derivation.config.run;
  const std::int64_t micro_batches = batch.accumulation * derivation.config.world_size;
  if (micro_batches <= 0 ||
      offload::SumOrder::divides(
          {.micro_batches = micro_batches, .lanes = run.lanes, .rounds = run.rounds}))
    return;
  const std::string of_rounds =
      run.rounds > 1 ? " x run.rounds " + std::to_string(run.rounds) : std::string();
  const std::string advice =
      micro_batches % run.rounds == 0
          ? "set run.lanes to " + nearest_divisors(micro_batches / run.rounds, run.lanes)
          : "set run.rounds to " + nearest_divisors(micro_batches, run.rounds);
  derivation.reject("run.lanes " + std::to_string(run.lanes) + of_rounds +
                    (run.rounds > 1 ? " do" : " does") + " not divide the " +
                    std::to_string(micro_batches) +
                    " micro-batches of a step (gradient_accumulation_steps): " + advice);
}

}  // namespace sluice::config
