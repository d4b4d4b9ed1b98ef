// How a TrainingRun of several ranks begins, follows the first rank, and combines its figures.
#include <algorithm>
#include <cstddef>
#include <exception>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "aio/bounded_json.h"
#include "aio/clock.h"
#include "engine/device/gpu.h"
#include "engine/run/gathered_state.h"
#include "engine/run/joint_save.h"
#include "engine/run/stored_state.h"
#include "engine/run/training_run.h"
#include "engine/step/train_error.h"

namespace sluice::engine {

Status TrainingRun::lead(Order order) {
  auto told = static_cast<std::byte>(order);
  return ranks().link->broadcast(std::span(&told, 1), /*root=*/0);
}

// What each rank announces before the first step. All entries must be equal and without an error.
nlohmann::json TrainingRun::beginning(const Status& own) const {
  nlohmann::json told = {
      {"Sluice's version", SLUICE_VERSION},
      {"the training data (data.train)", data_->order()},
      {"the base model's weights (model.path)",
       own.ok() && base() != nullptr ? base()->fingerprint().all() : std::string()}};
  if (!own.ok()) told["error"] = {static_cast<int>(own.error().code()), own.error().message()};
  return told;
}

Status TrainingRun::begin_together(const Status& own) {
  // An error may contain a path that is not valid UTF-8.
  const std::string mine =
      beginning(own).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  SLUICE_ASSIGN_OR_RETURN(const auto texts, ranks().link->all_gather_text(mine));
  if (is_first_rank() && !own.ok()) return own;
  const auto refused = [this](ErrorCode code, const std::string& text) {
    return Error(is_first_rank() ? code : ErrorCode::kCancelled, text);
  };
  SLUICE_ASSIGN_OR_RETURN(const auto first, read_json<nlohmann::json>(texts.front()));
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    SLUICE_ASSIGN_OR_RETURN(const auto told, read_json<nlohmann::json>(texts[rank]));
    const std::string name = "rank " + std::to_string(rank);
    if (const auto error = told.find("error"); error != told.end())
      return refused(static_cast<ErrorCode>(error->at(0).get<int>()),
                     (rank == 0 ? "" : name + ": ") + error->at(1).get<std::string>());
    const auto items = first.items();
    const auto other = std::find_if(items.begin(), items.end(), [&told](const auto& item) {
      return item.value() != told.at(item.key());
    });
    if (other != items.end())
      return refused(ErrorCode::kInvalidArgument,
                     other.key() + " differs between " + name +
                         " and rank 0: all hosts need the same files at the same paths");
  }
  is_in_step_ = true;
  return {};
}

Status TrainingRun::follow() {
  is_in_step_ = false;
  std::exception_ptr failure;  // of the last step, on all ranks; a save may still have to be ended
  for (;;) {
    std::byte told{};
    const Status received = ranks().link->broadcast(std::span(&told, 1), /*root=*/0);
    if (failure && (!received.ok() || static_cast<Order>(told) == Order::kEnd)) {
      is_in_step_ = received.ok();
      std::rethrow_exception(failure);
    }
    SLUICE_RETURN_IF_ERROR(received);
    switch (static_cast<Order>(told)) {
      case Order::kStep:
        trace().begin_step(trainer_->state().global_step + 1, SteadyClock().now_ns());
        try {
          static_cast<void>(one_step());
        } catch (const NonFiniteGradient&) {
          failure = std::current_exception();
        }
        break;
      case Order::kEvaluate:
        static_cast<void>(evaluate_all());
        break;
      case Order::kFeed:
        static_cast<void>(feed_all({}, /*begins=*/false));
        break;
      case Order::kTakeState:
        trainer_->drain();
        // A failed write is the first rank's error to handle.
        if (const Status taken = take_gathered_state(parts_->state(), ranks(), {});
            !taken.ok() && taken.error().code() != ErrorCode::kCancelled)
          return taken;
        SLUICE_RETURN_IF_ERROR(ranks().link->health());
        break;
      case Order::kSave: {
        trainer_->drain();
        JointSave save(model(), ranks(), *parts_->drives().saves, stored_moments(plan_.types));
        // The first rank reports a failed save.
        static_cast<void>(save.follow(source_of(parts_->state())));
        SLUICE_RETURN_IF_ERROR(ranks().link->health());
        break;
      }
      case Order::kMakeCopies:
        SLUICE_RETURN_IF_ERROR(make_own_copy());
        break;
      case Order::kCopy:
        SLUICE_RETURN_IF_ERROR(copies_->copy());
        break;
      case Order::kBeginSave:
        static_cast<void>(copies_->begin(""));
        SLUICE_RETURN_IF_ERROR(ranks().link->health());
        break;
      case Order::kEndSave:
        static_cast<void>(copies_->end(nullptr));
        SLUICE_RETURN_IF_ERROR(ranks().link->health());
        break;
      case Order::kTrace: {
        TraceProcess own;
        SLUICE_RETURN_IF_ERROR(gather_traces(own).status());
        break;
      }
      case Order::kEnd:
        is_in_step_ = true;
        return {};
    }
  }
}

// Has the other ranks do the same. They stay in step as long as the link is healthy.
template <typename Do>
auto TrainingRun::led(Order order, const Do& act) -> decltype(act()) {
  is_in_step_ = false;
  SLUICE_RETURN_IF_ERROR(lead(order));
  auto done = act();
  is_in_step_ = ranks().link->health().ok();
  return done;
}

Result<std::uint64_t> TrainingRun::save_together(const std::string& folder,
                                                 const CheckpointState& state) {
  return led(Order::kSave, [&] {
    trainer_->drain();
    JointSave save(model(), ranks(), *parts_->drives().saves, stored_moments(plan_.types));
    return save.lead(folder, state, source_of(parts_->state()));
  });
}

Status TrainingRun::make_own_copy() {
  SLUICE_ASSIGN_OR_RETURN(copies_, JointCopySave::create(*this, ranks(), *parts_->drives().saves));
  return {};
}

Status TrainingRun::make_copies() {
  return led(Order::kMakeCopies, [this] { return make_own_copy(); });
}
Status TrainingRun::copy() {
  return led(Order::kCopy, [this] { return copies_->copy(); });
}
Status TrainingRun::begin(const std::string& folder) {
  Status begun = led(Order::kBeginSave, [&] { return copies_->begin(folder); });
  all_->is_saved = !begun.ok();
  return begun;
}
Result<std::uint64_t> TrainingRun::end(const CheckpointState& state) {
  // After a failure the others are not waiting for an order.
  if (!is_in_step_) return Error(ErrorCode::kCancelled, "the run ended during the save");
  return led(Order::kEndSave, [&] { return copies_->end(&state); });
}

Status TrainingRun::share_figures(StepOutcome& outcome) {
  if (!all_) return {};
  const StepFigures own{.traffic = parts_->traffic(),
                        .memory = parts_->memory(),
                        .gpu_use = own_gpu_use(),
                        .times = outcome.times,
                        .is_saved = copies_ == nullptr || copies_->is_written()};
  std::vector<StepFigures> by_rank(static_cast<std::size_t>(ranks().part.world));
  SLUICE_RETURN_IF_ERROR(ranks().link->all_gather_values(own, std::span(by_rank)));
  StepFigures& all = all_.emplace();
  all.times = outcome.times;
  std::vector<GpuUse> uses;
  StepTimes& times = all.times;
  for (const StepFigures& of_rank : by_rank) {
    all.traffic.nvme_read_bytes += of_rank.traffic.nvme_read_bytes;
    all.traffic.nvme_write_bytes += of_rank.traffic.nvme_write_bytes;
    all.traffic.h2d_bytes += of_rank.traffic.h2d_bytes;
    all.traffic.d2h_bytes += of_rank.traffic.d2h_bytes;
    all.memory.gpu_peak_bytes = std::max(all.memory.gpu_peak_bytes, of_rank.memory.gpu_peak_bytes);
    all.memory.pinned_bytes += of_rank.memory.pinned_bytes;
    all.memory.resident_bytes += of_rank.memory.resident_bytes;
    all.is_saved = all.is_saved && of_rank.is_saved;
    uses.push_back(of_rank.gpu_use);
    times.forward_ns = std::max(times.forward_ns, of_rank.times.forward_ns);
    times.backward_ns = std::max(times.backward_ns, of_rank.times.backward_ns);
    times.update_ns = std::max(times.update_ns, of_rank.times.update_ns);
    times.update_exposed_ns = std::max(times.update_exposed_ns, of_rank.times.update_exposed_ns);
    if (times.passes && of_rank.times.passes) {
      for (std::size_t phase = 0; phase < kPassPhases; ++phase)
        (*times.passes)[phase] = std::max((*times.passes)[phase], (*of_rank.times.passes)[phase]);
    }
  }
  all.gpu_use = use_of_all(uses);
  outcome.times = times;
  return {};
}

Status TrainingRun::write_trace(const std::string& path) {
  SLUICE_RETURN_IF_ERROR(lead(Order::kTrace));
  TraceProcess own;
  SLUICE_ASSIGN_OR_RETURN(const TraceLog::Others others, gather_traces(own));
  return trace().write_json(path, own, others);
}

// Hosts have separate clocks: they are compared when all ranks leave a barrier. Only the first rank
// uses the result.
Result<TraceLog::Others> TrainingRun::gather_traces(TraceProcess& own) {
  const SteadyClock clock;
  trace().end_steps(clock.now_ns());
  Communicator& link = *ranks().link;
  const int rank = link.rank();
  std::vector<int> of_host(static_cast<std::size_t>(link.world_size(ProcessGroup::kNode)));
  SLUICE_RETURN_IF_ERROR(link.all_gather_values(rank, std::span(of_host), ProcessGroup::kNode));
  SLUICE_RETURN_IF_ERROR(link.barrier());
  struct Begin {
    std::int64_t now_ns;
    std::int64_t first_ns;
    std::uint64_t dropped_spans;
    int host;  // first rank of this rank's host
  };
  const Begin mine{.now_ns = clock.now_ns(),
                   .first_ns = trace().first_ns(),
                   .dropped_spans = trace().dropped_spans(),
                   .host = of_host.front()};
  std::vector<Begin> all(static_cast<std::size_t>(link.world_size()));
  SLUICE_RETURN_IF_ERROR(link.all_gather_values(mine, std::span(all)));
  const auto ahead_ns = [&](const Begin& it) {
    return it.host == all.front().host ? 0 : it.now_ns - all.front().now_ns;
  };
  std::int64_t origin_ns = TraceLog::kNever;
  TraceLog::Others others;
  for (const Begin& it : all) {
    if (it.first_ns != TraceLog::kNever)
      origin_ns = std::min(origin_ns, it.first_ns - ahead_ns(it));
    if (&it != all.data()) others.dropped_spans += it.dropped_spans;
  }
  if (has_other_ranks())
    own = {.number = rank, .name = "rank " + std::to_string(rank), .of_several = true};
  own.origin_ns = origin_ns;
  if (origin_ns != TraceLog::kNever) own.origin_ns += ahead_ns(mine);
  std::string text = rank == 0 ? std::string() : trace().events(own);
  std::vector<std::uint64_t> sizes(all.size());
  SLUICE_RETURN_IF_ERROR(link.all_gather_values(std::uint64_t{text.size()}, std::span(sizes)));
  for (int from = 1; from < link.world_size(); ++from) {
    std::string received;
    if (rank == from) received.swap(text);
    received.resize(sizes[static_cast<std::size_t>(from)]);
    SLUICE_RETURN_IF_ERROR(link.broadcast(std::as_writable_bytes(std::span(received)), from));
    if (rank == 0) others.events.push_back(std::move(received));
  }
  return others;
}

}  // namespace sluice::engine
