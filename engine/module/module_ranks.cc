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
  std::vector<std::uint64_t> all(static_cast<std::size_t>(ranks().part.world));
  throw_if_error(ranks().link->all_gather_values(engine_->order(), std::span(all)));
  const auto other =
      std::find_if(all.begin(), all.end(), [&](std::uint64_t it) { return it != all.front(); });
  if (other == all.end()) return;
  const std::string text =
      "rank " + std::to_string(other - all.begin()) +
      " used other units of the module than rank 0, or another order: units are gathered from all "
      "ranks, which must run the same blocks in the same order, also when they evaluate or read "
      "parameters. No weight has changed";
  fail(text);
  throw TrainError(text);
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

Status ModuleRun::announce_save(bool saves) {
  is_announced_ = true;
  auto told = static_cast<std::byte>(saves);
  return ranks().link->broadcast(std::span(&told, 1), /*root=*/0);
}

Result<std::uint64_t> ModuleRun::save_together(const std::string& folder,
                                               const CheckpointState& state) {
  SLUICE_RETURN_IF_ERROR(announce_save(true));
  SLUICE_RETURN_IF_ERROR(parts_->optimizer().drain());
  JointSave save(model(), ranks(), *parts_->drives().saves, stored_moments(plan_.types));
  return save.lead(folder, state, source_of(parts_->state()));
}

Result<std::string> ModuleRun::follow_save() {
  std::byte told{};
  SLUICE_RETURN_IF_ERROR(ranks().link->broadcast(std::span(&told, 1), /*root=*/0));
  if (told == std::byte{0}) return std::string();  // the first rank reports the reason
  SLUICE_RETURN_IF_ERROR(parts_->optimizer().drain());
  JointSave save(model(), ranks(), *parts_->drives().saves, stored_moments(plan_.types));
  // The first rank reports failures of the save.
  static_cast<void>(save.follow(source_of(parts_->state())));
  SLUICE_RETURN_IF_ERROR(ranks().link->health());
  return std::string();
}

}  // namespace sluice::engine
