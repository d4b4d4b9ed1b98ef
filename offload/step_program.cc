#include "offload/step_program.h"

#include <utility>

namespace sluice::offload {
namespace {

class Builder {
 public:
  explicit Builder(const ProgramUnits& units) : units_(units) {}

  // Forward of one unit, or both passes of the last. `fetch`: kFetch or kFetchAgain.
  void forward(int unit, StepOp fetch, bool adds = false) {
    add(fetch, unit);
    fetch_lenders(unit);
    if (adds) add(StepOp::kFetchSum, unit);
    add(unit < head() ? StepOp::kForward : StepOp::kHead, unit);
  }

  // One wave: all passes of its micro-batches. Its position decides what is updated and what is
  // sent.
  void wave(bool is_first, bool is_last) {
    all_forward(is_first, /*adds=*/!is_first);
    const StepOp close = is_last ? StepOp::kSendGradient : StepOp::kKeepSum;
    add(close, head());
    if (is_last) add(StepOp::kReadState, head());
    all_backward(is_first, close);
    ++wave_;
  }

  // `adds`: the head adds to the sums of earlier waves.
  void all_forward(bool is_first, bool adds) {
    for (int unit = 0; unit < units_.count; ++unit) {
      if (is_first) add(StepOp::kAwaitUpdate, unit);
      forward(unit, is_first ? StepOp::kFetch : StepOp::kFetchAgain, unit == head() && adds);
    }
  }

  // Backward of all units but the last.
  void all_backward(bool is_first, StepOp close) {
    for (int unit = head() - 1; unit >= 0; --unit) {
      if (unit > 0) {
        add(StepOp::kFetchAgain, unit);
        fetch_lenders(unit);
      }
      if (!is_first) add(StepOp::kFetchSum, unit);
      add(StepOp::kBackward, unit);
      add(close, unit);
    }
  }

  // Only the last unit, with updated parameters.
  void only_head() {
    add(StepOp::kAwaitUpdate, head());
    for (const int lender : units_.lenders(head())) add(StepOp::kAwaitUpdate, lender);
    forward(head(), StepOp::kFetch);
  }

  // Operations added from now on belong to this wave.
  void begin_wave(int wave) { wave_ = wave; }
  std::size_t size() const { return program_.size(); }
  int head() const { return units_.count - 1; }
  void reserve(std::size_t operations) { program_.reserve(operations); }
  void add(StepOp op, int unit) { program_.push_back({op, unit, wave_}); }
  StepProgram take() { return std::move(program_); }

 private:
  void fetch_lenders(int unit) {
    for (const int lender : units_.lenders(unit)) add(StepOp::kFetchAgain, lender);
  }

  const ProgramUnits& units_;
  int wave_ = 0;
  StepProgram program_;
};

}  // namespace

StepProgram training_step(const ProgramUnits& units, bool overlap_update, int waves) {
  constexpr int kOperationsOfUnit = 7;
  Builder builder(units);
  builder.reserve(static_cast<std::size_t>(kOperationsOfUnit) *
                      static_cast<std::size_t>(units.count) * static_cast<std::size_t>(waves) +
                  4);
  if (!overlap_update) builder.add(StepOp::kAwaitUpdates, 0);
  for (int wave = 0; wave < waves; ++wave) builder.wave(wave == 0, wave == waves - 1);
  StepProgram program = builder.take();
  program.push_back({StepOp::kNorm, 0, waves - 1});
  program.push_back({StepOp::kUpdate, 0, waves - 1});
  return program;
}

StepProgram forward_pass(const ProgramUnits& units) {
  Builder builder(units);
  for (int unit = 0; unit < units.count; ++unit) builder.forward(unit, StepOp::kFetch);
  return builder.take();
}

SplitProgram micro_batch_passes(const ProgramUnits& units, const MicroBatch& micro_batch) {
  Builder builder(units);
  const bool is_first = micro_batch.number == 0;
  builder.begin_wave(micro_batch.number);
  builder.all_forward(is_first, /*adds=*/false);
  SplitProgram split{.program = {}, .backward = builder.size()};
  if (micro_batch.has_backward) {
    const StepOp close = micro_batch.sends ? StepOp::kSendGradient : StepOp::kKeepSum;
    if (micro_batch.reads_state) builder.add(StepOp::kReadState, builder.head());
    builder.forward(builder.head(), StepOp::kFetchAgain, /*adds=*/!is_first);
    builder.add(close, builder.head());
    builder.all_backward(is_first, close);
  }
  split.program = builder.take();
  return split;
}

StepProgram head_pass(const ProgramUnits& units) {
  Builder builder(units);
  builder.only_head();
  return builder.take();
}

std::vector<int> host_order(const StepProgram& program, bool updates_too, const KeepsUnit& keeps) {
  std::vector<int> order;
  order.reserve(program.size());
  auto direction = PassDirection::kForward;
  int wave = 0;
  for (const StepOperation& it : program) {
    if (std::exchange(wave, it.wave) != it.wave) direction = PassDirection::kForward;
    if (it.op == StepOp::kHead) direction = PassDirection::kBackward;
    const bool asks = it.op == StepOp::kFetch || (it.op == StepOp::kAwaitUpdate && updates_too) ||
                      (it.op == StepOp::kFetchAgain && !keeps(it.unit, direction));
    if (asks) order.push_back(it.unit);
  }
  return order;
}

std::vector<int> update_order(const StepProgram& program) {
  std::vector<int> order;
  for (const StepOperation& it : program)
    if (it.op == StepOp::kAwaitUpdate) order.push_back(it.unit);
  return order;
}

}  // namespace sluice::offload
