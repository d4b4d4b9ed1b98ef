#include "offload/planner/step_link.h"

#include <algorithm>
#include <cmath>

namespace sluice::offload {

StepLink::StepLink(const StepInputs& inputs, StepTasks& tasks) : inputs_(inputs), tasks_(tasks) {
  if (!is_used()) return;
  copied_.assign(inputs.units.size(), false);
  sums_.assign(inputs.units.size(), 1);
  for (const UnitCost& unit : inputs.units)
    for (const int lender : unit.lenders) ++sums_[static_cast<std::size_t>(lender)];
}

void StepLink::add(StepTask kind, int unit, double work, TaskId first, TaskId second) {
  const TaskId caller = blocks() ? tasks_.last_compute() : kNoTask;
  last_ = tasks_.add(kind, unit, work, {last_, first, second, caller});
}

void StepLink::update(int unit, TaskId gate) {
  const std::uint64_t elements = inputs_.place(unit).gpu_elements;
  if (elements == 0) return;
  add(StepTask::kShardAdamw, unit,
      static_cast<double>(elements) / inputs_.speeds.gpu_adamw_elements_per_s, gate, kNoTask);
}

// The ranks that a unit is gathered from: of all hosts, or of this one.
Topology StepLink::ranks_with(bool has_copy) const {
  const Topology& all = inputs_.options.ranks;
  if (!has_copy || !inputs_.options.keeps_host_copies) return all;
  return {.world = all.local_world, .local_world = all.local_world};
}

void StepLink::change(int unit) {
  if (is_used()) copied_[static_cast<std::size_t>(unit)] = false;
}

TaskId StepLink::gather(int unit, TaskId ready, TaskId free) {
  const auto index = static_cast<std::size_t>(unit);
  const auto sent = static_cast<double>(inputs_.unit(unit).sent_bytes);
  const double whole = inputs_.whole_elements(unit) * inputs_.options.bytes.param;
  const bool has_copy = copied_[index];
  // Adapters are gathered once, or are few.
  copied_[index] = !inputs_.unit(unit).is_frozen();
  return gather_bytes(unit, sent > 0 ? sent : whole, ranks_with(has_copy), ready, free);
}

TaskId StepLink::gather_frozen(int unit, TaskId ready, TaskId free) {
  constexpr bool kHasCopy = true;  // since the first step
  return gather_bytes(unit, static_cast<double>(inputs_.unit(unit).gathered_frozen_bytes),
                      ranks_with(kHasCopy), ready, free);
}

TaskId StepLink::gather_bytes(int unit, double bytes, const Topology& ranks, TaskId ready,
                              TaskId free) {
  if (bytes == 0) return kNoTask;
  tasks_.count_received(received_bytes(ranks, bytes));
  add(StepTask::kGather, unit, gather_s(inputs_.speeds.link, ranks, bytes), ready, free);
  return last_;
}

TaskId StepLink::reduce(int unit, TaskId computed, TaskId stage) {
  const Topology& ranks = inputs_.options.ranks;
  const double bytes = inputs_.whole_elements(unit) * inputs_.options.bytes.sum;
  if (bytes == 0) return computed;
  const auto at_once = static_cast<double>(inputs_.options.exchanged_bytes);
  const double calls = at_once > 0 ? std::max(std::ceil(bytes / at_once), 1.0) : 1;
  const int sums = sums_[static_cast<std::size_t>(unit)];
  const int exchanges = std::max(inputs_.options.sums.exchanges(), 1);
  const int of_hosts = std::max(inputs_.options.sums.host_exchanges(), 1);
  const LinkSpeeds& link = inputs_.speeds.link;
  const SumCodec codec = inputs_.options.sums.codec();
  const double sent = bytes * static_cast<double>(encoded_sum_bytes(codec, kSumCodecBlock)) /
                      static_cast<double>(encoded_sum_bytes(SumCodec::kFp32, kSumCodecBlock));
  // Encoding and decoding move about as much memory as the additions.
  const int passes = codec == SumCodec::kFp32 ? 1 : 2;
  tasks_.count_received(sums * (exchanges * exchanged_bytes(ranks, sent) +
                                of_hosts * host_exchanged_bytes(ranks, sent)));
  add(StepTask::kReduce, unit,
      sums * (exchanges * exchange_s(link, ranks, sent, calls) +
              of_hosts * host_exchange_s(link, ranks, sent, calls)),
      computed, kNoTask);
  add(StepTask::kAddSums, unit, sums * exchanges * passes * inputs_.unit(unit).reduce_s, stage,
      kNoTask);
  return last_;
}

}  // namespace sluice::offload
