#include "swap/frozen_store.h"

#include <nlohmann/json.hpp>

#include "aio/check.h"
#include "aio/small_file.h"
#include "swap/sealed_json.h"
#include "swap/store_files.h"

namespace sluice::swap {
namespace {

constexpr std::uint64_t kMaxMarkBytes = 64 << 10;

}  // namespace

Status write_frozen_mark(aio::IoQueue& queue, const std::string& folder, const FrozenMark& mark) {
  return aio::write_small_file(
      queue, frozen_mark_path(folder),
      to_sealed_text(
          {{"checkpoint", mark.checkpoint}, {"named", mark.named}, {"openings", mark.openings}}));
}

Result<std::optional<FrozenMark>> read_frozen_mark(aio::IoQueue& queue, const std::string& folder) {
  const std::string path = frozen_mark_path(folder);
  const auto text = aio::read_small_file(queue, path, kMaxMarkBytes);
  if (!text.ok() && text.error().code() == ErrorCode::kNotFound) return std::optional<FrozenMark>();
  if (!text.ok()) return text.error();
  auto content = parse_sealed_text(*text);
  if (!content.ok()) return std::move(content).error().with_context(path);
  try {
    return std::optional(FrozenMark{.checkpoint = content->at("checkpoint").get<std::string>(),
                                    .named = content->at("named").get<bool>(),
                                    .openings = content->at("openings").get<std::uint64_t>()});
  } catch (const nlohmann::json::exception& wrong) {
    return Error(ErrorCode::kCorrupt, path + ": its content is not valid: " + wrong.what());
  }
}

RecordPlaces::RecordPlaces(std::span<const FrozenRecord> frozen)
    : places_(2), has_frozen_(true), records_(frozen.size()) {
  for (std::size_t i = 0; i < frozen.size(); ++i) {
    const auto place = static_cast<std::int8_t>(frozen[i].place);
    records_[i] = {.newest = place, .frozen = place};
  }
}

int RecordPlaces::write(RecordId id) {
  SLUICE_CHECK(!naming_, "a write while a generation is being named");
  Record& record = records_[id];
  if (record.newest == record.frozen) record.newest = static_cast<std::int8_t>(1 - record.frozen);
  return record.newest;
}

void RecordPlaces::freeze() {
  SLUICE_CHECK(can_freeze() && !naming_, "a store with two places, one generation at a time");
  naming_ = true;
}

void RecordPlaces::keep() {
  SLUICE_CHECK(naming_, "a generation is being named");
  for (Record& record : records_) record.frozen = record.newest;
  naming_ = false;
  has_frozen_ = true;
}

void RecordPlaces::drop() {
  SLUICE_CHECK(naming_, "a generation is being named");
  naming_ = false;
}

}  // namespace sluice::swap
