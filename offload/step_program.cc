#include "offload/step_program.h"

namespace sluice::offload {
namespace {

void fetch_lenders(const ProgramUnits& units, int unit, StepProgram& program) {
  for (const int lender : units.lenders(unit)) program.push_back({StepOp::kFetchAgain, lender});
}

void compute(const ProgramUnits& units, int unit, StepProgram& program) {
  program.push_back({StepOp::kFetch, unit});
  fetch_lenders(units, unit, program);
  program.push_back({unit + 1 < units.count ? StepOp::kForward : StepOp::kHead, unit});
}

}  // namespace

StepProgram training_step(const ProgramUnits& units, bool overlap_update) {
  constexpr std::size_t kOperationsOfUnit = 6;
  StepProgram program;
  program.reserve(kOperationsOfUnit * static_cast<std::size_t>(units.count) + 4);
  if (!overlap_update) program.push_back({StepOp::kAwaitUpdates, 0});
  for (int unit = 0; unit < units.count; ++unit) {
    program.push_back({StepOp::kAwaitUpdate, unit});
    compute(units, unit, program);
  }
  const int head = units.count - 1;
  program.push_back({StepOp::kSendGradient, head});
  program.push_back({StepOp::kReadState, head});
  for (int unit = head - 1; unit >= 0; --unit) {
    if (unit > 0) {
      program.push_back({StepOp::kFetchAgain, unit});
      fetch_lenders(units, unit, program);
    }
    program.push_back({StepOp::kBackward, unit});
    program.push_back({StepOp::kSendGradient, unit});
  }
  program.push_back({StepOp::kNorm, 0});
  program.push_back({StepOp::kUpdate, 0});
  return program;
}

StepProgram forward_pass(const ProgramUnits& units) {
  StepProgram program;
  for (int unit = 0; unit < units.count; ++unit) compute(units, unit, program);
  return program;
}

std::vector<int> host_order(const StepProgram& program, bool updates_too,
                            const std::function<bool(int unit)>& keeps) {
  std::vector<int> order;
  order.reserve(program.size());
  for (const auto& [op, unit] : program) {
    const bool asks = op == StepOp::kFetch || (op == StepOp::kAwaitUpdate && updates_too) ||
                      (op == StepOp::kFetchAgain && !keeps(unit));
    if (asks) order.push_back(unit);
  }
  return order;
}

std::vector<int> update_order(const StepProgram& program) {
  std::vector<int> order;
  for (const auto& [op, unit] : program)
    if (op == StepOp::kAwaitUpdate) order.push_back(unit);
  return order;
}

}  // namespace sluice::offload
