// Reads and writes a config.json by the rows of a family. Without LibTorch.
#pragma once

#include <string>
#include <string_view>

#include "engine/families/family_table.h"

namespace sluice::engine {

// ModelFamily::read_config() and ModelFamily::write_config().
Result<HuggingFaceModel> read_by_rows(const FamilyTable& table, std::string_view text);
std::string write_by_rows(const FamilyTable& table, const HuggingFaceModel& model);

}  // namespace sluice::engine
