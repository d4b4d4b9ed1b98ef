#include "engine/probe/measurement.h"

#include <array>
#include <cmath>
#include <ctime>
#include <nlohmann/json.hpp>

#include "aio/bounded_json.h"
#include "aio/check.h"

namespace sluice::engine {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFormat = "sluice-speeds";
constexpr std::int64_t kVersion = 1;
constexpr const char* kUtc = "%Y-%m-%dT%H:%M:%SZ";

Error corrupt(const std::string& what) { return Error(ErrorCode::kCorrupt, what); }

bool plausible(double value) { return std::isfinite(value) && value >= 0; }

// A value of another type throws, which parse_measurements() turns into an error.
Result<Measurement> measurement_from(const Json& json) {
  Measurement measurement{.what = json.at("what").get<std::string>(),
                          .of = json.at("of").get<MeasuredOf>(),
                          .values = json.at("values").get<SpeedValues>()};
  SLUICE_ASSIGN_OR_RETURN(measurement.measured_unix_s,
                          parse_utc(json.at("measured_at").get<std::string>()));
  for (const auto& [name, value] : measurement.values)
    if (!plausible(value)) return corrupt(name + " is not a speed");
  return measurement;
}

}  // namespace

std::string to_text(const std::vector<Measurement>& measurements) {
  Json list = Json::array();
  for (const Measurement& measurement : measurements) {
    for (const auto& [name, value] : measurement.values)
      SLUICE_CHECK(plausible(value), "a measurement is a finite number");
    list.push_back({{"what", measurement.what},
                    {"measured_at", utc_text(measurement.measured_unix_s)},
                    {"of", measurement.of},
                    {"values", measurement.values}});
  }
  const Json whole = {{"format", kFormat}, {"version", kVersion}, {"measurements", list}};
  return whole.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result<std::vector<Measurement>> parse_measurements(std::string_view text) {
  try {
    SLUICE_ASSIGN_OR_RETURN(const Json whole, read_json<Json>(text));
    if (whole.at("format").get<std::string>() != kFormat)
      return corrupt("its content is something else");
    const auto version = whole.at("version").get<std::int64_t>();
    if (version > kVersion)
      return Error(ErrorCode::kNewerVersion, "it was written by a newer version of Sluice");
    if (version != kVersion) return corrupt("its version does not exist");
    std::vector<Measurement> measurements;
    for (const Json& json : whole.at("measurements")) {
      SLUICE_ASSIGN_OR_RETURN(Measurement measurement, measurement_from(json));
      measurements.push_back(std::move(measurement));
    }
    return measurements;
  } catch (const Json::exception& wrong) {
    return corrupt(wrong.what());
  }
}

std::string utc_text(std::int64_t unix_s) {
  const auto time = static_cast<std::time_t>(unix_s);
  std::tm parts{};
  ::gmtime_r(&time, &parts);
  std::array<char, 64> text{};
  return {text.data(), std::strftime(text.data(), text.size(), kUtc, &parts)};
}

Result<std::int64_t> parse_utc(const std::string& text) {
  std::tm parts{};
  const char* const end = ::strptime(text.c_str(), kUtc, &parts);
  if (end == nullptr || *end != '\0') return corrupt("'" + text + "' is not a time");
  return static_cast<std::int64_t>(::timegm(&parts));
}

}  // namespace sluice::engine
