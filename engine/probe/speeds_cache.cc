#include "engine/probe/speeds_cache.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "aio/log.h"
#include "aio/small_file.h"

namespace sluice::engine {
namespace {

constexpr std::int64_t kDaySeconds = 24 * 60 * 60;

}  // namespace

SpeedsCache::SpeedsCache(aio::IoQueue& queue, Options options)
    : queue_(queue), options_(std::move(options)) {
  if (!options_.path.empty()) measurements_ = read();
}

bool SpeedsCache::too_old(const Measurement& measurement) const {
  return options_.unix_s - measurement.measured_unix_s > kMaxAgeDays * kDaySeconds;
}

// Neither too old nor in the future: if the clock was wrong, the age is unknown.
bool SpeedsCache::fresh(const Measurement& measurement) const {
  return measurement.measured_unix_s <= options_.unix_s && !too_old(measurement);
}

const Measurement* SpeedsCache::find(const std::string& what, const MeasuredOf& of) const {
  if (options_.refresh) return nullptr;
  for (const Measurement& measurement : measurements_)
    if (measurement.what == what && measurement.of == of && fresh(measurement)) return &measurement;
  return nullptr;
}

const Measurement* SpeedsCache::find_disturbed(const std::string& what,
                                               const MeasuredOf& of) const {
  if (options_.disturbed_max_age_s <= 0) return nullptr;
  const Measurement* const found = find(disturbed_name(what), of);
  const bool recent =
      found != nullptr && options_.unix_s - found->measured_unix_s <= options_.disturbed_max_age_s;
  return recent ? found : nullptr;
}

// Empty if there is no file.
Result<std::vector<Measurement>> SpeedsCache::read_file() const {
  const auto text = aio::read_small_file(queue_, options_.path, kMaxFileBytes);
  if (text.ok()) return parse_measurements(*text);
  if (text.error().code() == ErrorCode::kNotFound) return std::vector<Measurement>();
  return text.error();
}

std::vector<Measurement> SpeedsCache::read() const {
  auto parsed = read_file();
  if (parsed.ok()) return std::move(*parsed);
  log::warning_once("speeds cache " + options_.path,
                    "the speeds kept in " + options_.path +
                        " cannot be used and are measured again: " + parsed.error().message());
  return {};
}

// An unreadable file is renamed instead of overwritten.
Status SpeedsCache::set_unreadable_aside() const {
  aio::FileSystem& files = queue_.backend().files();
  const auto parsed = read_file();
  if (parsed.ok()) return {};
  const ErrorCode code = parsed.error().code();
  if (code != ErrorCode::kCorrupt && code != ErrorCode::kInvalidArgument) return parsed.error();
  SLUICE_ASSIGN_OR_RETURN(const std::string aside,
                          aio::unused_name(files, options_.path + ".unreadable"));
  SLUICE_RETURN_IF_ERROR(files.rename(options_.path, aside));
  log::info(options_.path + " is now " + aside);
  return {};
}

void SpeedsCache::keep(Measurement measurement) {
  if (options_.path.empty()) return;
  const Status written = rewrite([&](std::vector<Measurement>& all) {
    std::erase_if(all, [&](const Measurement& old) {
      return old.what == measurement.what && old.of == measurement.of;
    });
    all.push_back(std::move(measurement));
  });
  if (!written.ok()) {
    log::warning("the measured speeds could not be saved in " + options_.path +
                 " and will be measured again: " + written.error().message());
  }
}

Status SpeedsCache::forget(const std::vector<MeasuredKey>& keys) {
  if (options_.path.empty() || keys.empty()) return {};
  return rewrite([&](std::vector<Measurement>& all) {
    std::erase_if(all, [&](const Measurement& old) {
      return std::any_of(keys.begin(), keys.end(), [&](const MeasuredKey& key) {
        return (old.what == key.what || old.what == disturbed_name(key.what)) && old.of == key.of;
      });
    });
  });
}

Status SpeedsCache::rewrite(const Edit& edit) {
  aio::FileSystem& files = queue_.backend().files();
  const std::string folder = std::filesystem::path(options_.path).parent_path().string();
  if (!folder.empty()) SLUICE_RETURN_IF_ERROR(files.make_directories(folder));
  SLUICE_ASSIGN_OR_RETURN(const auto lock, files.lock(options_.path + ".lock"));
  SLUICE_RETURN_IF_ERROR(set_unreadable_aside());
  measurements_ = read();
  // Measurements from the future stay, because it may be this process's clock that is wrong.
  std::erase_if(measurements_, [&](const Measurement& old) { return too_old(old); });
  edit(measurements_);
  if (measurements_.size() > kMaxMeasurements) {
    measurements_.erase(measurements_.begin(),
                        measurements_.end() - static_cast<std::ptrdiff_t>(kMaxMeasurements));
  }
  return aio::write_small_file(queue_, options_.path, to_text(measurements_));
}

}  // namespace sluice::engine
