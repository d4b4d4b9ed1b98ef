// ModuleRun: the functions for several ranks.
#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/module/module_run.h"
#include "engine/run/joint_save.h"
#include "engine/run/stored_state.h"
#include "engine/step/train_error.h"

namespace sluice::engine {

void ModuleRun::fail(const std::string& reason) { ranks().link->abort(reason); }

void ModuleRun::check_order() {
  struct Told {
    std::uint64_t order;
    std::uint64_t is_saved;
  };
  const Told own{engine_->order(), copies_ == nullptr || copies_->is_written() ? 1U : 0U};
  std::vector<Told> all(static_cast<std::size_t>(ranks().part.world));
  throw_if_error(ranks().link->all_gather_values(own, std::span(all)));
  is_saved_ = std::all_of(all.begin(), all.end(), [](const Told& it) { return it.is_saved == 1; });
  const auto other = std::find_if(all.begin(), all.end(),
                                  [&](const Told& it) { return it.order != all.front().order; });
  if (other == all.end()) return;
  const std::string text =
      "rank " + std::to_string(other - all.begin()) +
      " used other units of the module than rank 0, or another order: units are gathered from all "
      "ranks, which must run the same blocks in the same order, also when they evaluate or read "
      "parameters. No weight has changed";
  fail(text);
  throw TrainError(text);
}

GradientTotals ModuleRun::over_stages(const GradientTotals& own) const {
  if (stages_ == nullptr || stages_->world_size() == 1) return own;
  const auto stages = static_cast<std::size_t>(stages_->world_size());
  std::vector<std::uint64_t> counts(stages);
  throw_if_error(stages_->all_gather_values(std::uint64_t{own.square_sums.size()}, counts));
  // Equal pieces, as collectives take them.
  const std::size_t most = *std::max_element(counts.begin(), counts.end());
  std::vector<double> mine = own.square_sums;
  mine.resize(most);
  std::vector<double> all(stages * most);
  throw_if_error(
      stages_->all_gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all))));
  const std::string unit =
      own.first_not_finite ? model().layout(*own.first_not_finite).name : std::string();
  const auto units = value_or_throw(stages_->all_gather_text(own.finite ? "" : "-" + unit));
  GradientTotals totals = own;
  totals.square_sum = 0;
  totals.square_sums.clear();
  for (std::size_t stage = 0; stage < stages; ++stage) {
    for (std::size_t i = 0; i < counts[stage]; ++i) {
      totals.square_sums.push_back(all[stage * most + i]);
      totals.square_sum += totals.square_sums.back();  // in the order of one stage
    }
    if (units[stage].empty()) continue;
    totals.finite = false;
    totals.not_finite_elsewhere = units[stage].substr(1);
  }
  return totals;
}

Result<std::string> ModuleRun::agree(const Result<std::string>& own) const {
  // A code and a text; the text may contain a path that is not UTF-8.
  const std::string mine =
      own.ok() ? "+" + *own
               : std::to_string(static_cast<int>(own.error().code())) + "-" + own.error().message();
  SLUICE_ASSIGN_OR_RETURN(const auto texts, ranks().link->all_gather_text(mine));
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    if (texts[rank].starts_with('+')) continue;
    if (static_cast<int>(rank) == ranks().part.rank) return own;
    const std::size_t minus = texts[rank].find('-');
    return Error(static_cast<ErrorCode>(std::stoi(texts[rank].substr(0, minus))),
                 "rank " + std::to_string(rank) + ": " + texts[rank].substr(minus + 1));
  }
  return texts.front().substr(1);
}

// ---- checkpoints

Status ModuleRun::lead(SaveOrder order) {
  auto told = static_cast<std::byte>(order);
  return ranks().link->broadcast(std::span(&told, 1), /*root=*/0);
}

Result<std::uint64_t> ModuleRun::save_together(const std::string& folder,
                                               const CheckpointState& state) {
  SLUICE_RETURN_IF_ERROR(lead(SaveOrder::kSave));
  SLUICE_RETURN_IF_ERROR(parts_->optimizer().drain());
  JointSave save(model(), ranks(), *parts_->drives().saves, stored_moments(plan_.types));
  return save.lead(folder, state, source_of(parts_->state()));
}

// Saves into another directory use the same memory.
Status ModuleRun::make_own_copy() {
  if (copies_ != nullptr) return {};
  SLUICE_ASSIGN_OR_RETURN(copies_, JointCopySave::create(*this, ranks(), *parts_->drives().saves));
  return {};
}

Status ModuleRun::make_copies() {
  SLUICE_RETURN_IF_ERROR(lead(SaveOrder::kMakeCopies));
  return make_own_copy();
}
Status ModuleRun::copy() {
  SLUICE_RETURN_IF_ERROR(lead(SaveOrder::kCopy));
  return copies_->copy();
}
Status ModuleRun::begin(const std::string& folder) {
  SLUICE_RETURN_IF_ERROR(lead(SaveOrder::kBegin));
  return copies_->begin(folder);
}
Result<std::uint64_t> ModuleRun::end(const CheckpointState& state) {
  if (!is_saving_together()) return Error(ErrorCode::kCancelled, "the run ended during the save");
  SLUICE_RETURN_IF_ERROR(lead(SaveOrder::kEnd));
  return copies_->end(&state);
}

void ModuleRun::wait_for_saves_together() {
  if (!is_saving_together()) return;
  if (!is_first()) return static_cast<void>(follow_save());
  end_saves();
  static_cast<void>(lead(SaveOrder::kDone));
}

// The first rank reports failures of a save.
Result<std::string> ModuleRun::follow_save() {
  for (;;) {
    std::byte told{};
    SLUICE_RETURN_IF_ERROR(ranks().link->broadcast(std::span(&told, 1), /*root=*/0));
    switch (static_cast<SaveOrder>(told)) {
      case SaveOrder::kSave: {
        SLUICE_RETURN_IF_ERROR(parts_->optimizer().drain());
        JointSave save(model(), ranks(), *parts_->drives().saves, stored_moments(plan_.types));
        static_cast<void>(save.follow(source_of(parts_->state())));
        break;
      }
      case SaveOrder::kMakeCopies:
        static_cast<void>(make_own_copy());
        break;
      case SaveOrder::kCopy:
        static_cast<void>(copies_->copy());
        break;
      case SaveOrder::kBegin:
        static_cast<void>(copies_->begin(""));
        break;
      case SaveOrder::kEnd:
        static_cast<void>(copies_->end(nullptr));
        break;
      case SaveOrder::kDone:
        return std::string();
    }
    SLUICE_RETURN_IF_ERROR(ranks().link->health());
  }
}

}  // namespace sluice::engine
