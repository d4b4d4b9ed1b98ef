#include "tools/measure/phase_ranges.h"

#include <ATen/record_function.h>

#include <array>
#include <cstddef>
#include <memory>
#include <string>

namespace sluice::tools {
namespace {

// Range names, which must outlive all ranges.
const std::array<std::string, engine::kPassPhases>& names() {
  static const auto all = [] {
    std::array<std::string, engine::kPassPhases> made;
    for (std::size_t i = 0; i < made.size(); ++i)
      made[i] = std::string("pass: ") + engine::phase_name(static_cast<engine::PassPhase>(i));
    return made;
  }();
  return all;
}

}  // namespace

// Not the scope of user ranges: kernels within those get a copy on the GPU's lane, but no
// correlation ID.
PhaseRanges::PhaseRanges(engine::Trainer& trainer) : trainer_(trainer) {
  trainer.set_phase_listener(
      [open = std::make_shared<std::optional<at::RecordFunction>>()](const engine::PassSpan* span) {
        open->reset();
        if (span == nullptr) return;
        open->emplace(at::RecordScope::CUSTOM_CLASS);
        if ((*open)->isActive())
          (*open)->before(std::string_view(names()[static_cast<std::size_t>(span->phase)]));
      });
}

std::optional<engine::PassPhase> phase_of_range(std::string_view name) {
  for (std::size_t i = 0; i < names().size(); ++i)
    if (name == names()[i]) return static_cast<engine::PassPhase>(i);
  return std::nullopt;
}

}  // namespace sluice::tools
