// What TrainingRun does only where there are several ranks: how they begin, follow the first one,
// and share what they count.
#include <array>
#include <cstddef>
#include <span>
#include <string>

#include "engine/device/gpu.h"
#include "engine/run/training_run.h"
#include "engine/step/cuda_step.h"
#include "engine/step/train_error.h"

namespace sluice::engine {

Status check_ranks(const config::Config& config, int world) {
  if (world == 1) return {};
  const auto refused = [](const std::string& what) {
    return Error(ErrorCode::kInvalidArgument, what + " on several ranks is not possible yet");
  };
  if (config.lora.rank > 0) return refused("training adapters (recipe.lora)");
  if (config.run.hash_units) return refused("run.hash_units");
  if (config.run.rounds > 1) return refused("run.rounds above 1");
  return {};
}

// One rank of a host removes what killed runs have left there, before any makes a store.
Status TrainingRun::open_drives_in_turn() {
  const bool is_alone = ranks_.is_alone();
  const bool is_first = is_alone || ranks_.link->rank(ProcessGroup::kNode) == 0;
  if (!is_first) SLUICE_RETURN_IF_ERROR(ranks_.link->barrier(ProcessGroup::kNode));
  SLUICE_ASSIGN_OR_RETURN(drives_, open_drives(config_, plan_, &io_trace_,
                                               is_first ? Leftovers::kRemove : Leftovers::kLeave));
  if (is_first && !is_alone) SLUICE_RETURN_IF_ERROR(ranks_.link->barrier(ProcessGroup::kNode));
  return {};
}

// From here on what the ranks' GPUs exchange goes by NCCL, all else as before.
Status TrainingRun::connect_gpus() {
  if (ranks_.is_alone() || !plan_.cuda) return {};
  SLUICE_ASSIGN_OR_RETURN(gpu_link_, make_gpu_communicator(*ranks_.link));
  ranks_.link = gpu_link_.get();
  cuda_ranks_ = make_cuda_rank_link(ranks_);
  return {};
}

Status TrainingRun::lead(Order order) {
  if (ranks_.is_alone()) return {};
  auto told = static_cast<std::byte>(order);
  return ranks_.link->broadcast(std::span(&told, 1), /*root=*/0);
}

Status TrainingRun::begin_together() {
  if (!ranks_.is_alone()) SLUICE_RETURN_IF_ERROR(ranks_.link->barrier());
  is_in_step_ = true;
  return {};
}

Status TrainingRun::follow() {
  is_in_step_ = false;
  for (;;) {
    std::byte told{};
    SLUICE_RETURN_IF_ERROR(ranks_.link->broadcast(std::span(&told, 1), /*root=*/0));
    switch (static_cast<Order>(told)) {
      case Order::kStep:
        static_cast<void>(one_step());
        break;
      case Order::kEvaluate:
        static_cast<void>(evaluate_all());
        break;
      case Order::kTakeState:
        trainer_->drain();
        // What the first rank could not write is for that one to judge.
        if (const Status taken = take_gathered_state({});
            !taken.ok() && taken.error().code() != ErrorCode::kCancelled)
          return taken;
        SLUICE_RETURN_IF_ERROR(ranks_.link->health());
        break;
      case Order::kEnd:
        is_in_step_ = true;
        return {};
    }
  }
}

Status TrainingRun::share_traffic() {
  if (ranks_.is_alone()) return {};
  const Traffic own = own_traffic();
  std::array<std::int64_t, 4> sums = {static_cast<std::int64_t>(own.nvme_read_bytes),
                                      static_cast<std::int64_t>(own.nvme_write_bytes),
                                      static_cast<std::int64_t>(own.h2d_bytes),
                                      static_cast<std::int64_t>(own.d2h_bytes)};
  SLUICE_RETURN_IF_ERROR(ranks_.link->sum(sums));
  all_traffic_ = {.nvme_read_bytes = static_cast<std::uint64_t>(sums[0]),
                  .nvme_write_bytes = static_cast<std::uint64_t>(sums[1]),
                  .h2d_bytes = static_cast<std::uint64_t>(sums[2]),
                  .d2h_bytes = static_cast<std::uint64_t>(sums[3])};
  return {};
}

}  // namespace sluice::engine
