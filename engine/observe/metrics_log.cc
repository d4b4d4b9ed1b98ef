#include "engine/observe/metrics_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cinttypes>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "aio/bounded_json.h"
#include "aio/log.h"
#include "aio/regular_file.h"
#include "aio/result.h"
#include "engine/observe/log_parts.h"

namespace sluice::engine {
namespace {

// Returns the lines after `begin_bytes`, without a torn one.
Result<std::string> lines_behind(const std::string& path, std::uint64_t begin_bytes) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) return Error::from_errno(errno, {.operation = "open", .path = path});
  file.seekg(static_cast<std::streamoff>(begin_bytes));
  std::string text(std::istreambuf_iterator<char>(file), {});
  if (file.bad()) return Error::from_errno(EIO, {.operation = "read", .path = path});
  const std::size_t last = text.rfind('\n') + 1;  // 0 if there is none
  if (last < text.size()) {
    if (read_json<nlohmann::json>(std::string_view(text).substr(last)).ok())
      text += '\n';
    else
      text.resize(last);
  }
  return text;
}

Status write_all(int descriptor, const std::string& text, const std::string& path) {
  std::size_t done = 0;
  while (done < text.size()) {
    const ::ssize_t written = ::write(descriptor, text.data() + done, text.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0)
      return Error::from_errno(written < 0 ? errno : EIO,
                               {.operation = "write",
                                .path = path,
                                .length_bytes = static_cast<std::int64_t>(text.size())});
    done += static_cast<std::size_t>(written);
  }
  if (::fsync(descriptor) == 0) return {};
  return Error::from_errno(errno, {.operation = "sync", .path = path});
}

Status append(int descriptor, const std::string& text, const std::string& path) {
  struct stat before {};
  if (::fstat(descriptor, &before) != 0)
    return Error::from_errno(errno, {.operation = "look-up of", .path = path});
  Status written = write_all(descriptor, text, path);
  if (written.ok() || ::ftruncate(descriptor, before.st_size) == 0) return written;
  return std::move(written).error().with_suffix("; its last line may be incomplete");
}

// Appends the whole lines of `from` after `begin_bytes` to `to`, durably. Returns their number. A
// last line without an end is whole if it is a JSON object; otherwise it is torn, and left out.
Result<std::int64_t> keep_lines(const std::string& from, std::uint64_t begin_bytes,
                                const std::string& to) {
  SLUICE_ASSIGN_OR_RETURN(const std::string text, lines_behind(from, begin_bytes));
  if (text.empty()) return std::int64_t{0};
  SLUICE_ASSIGN_OR_RETURN(const aio::OwnedDescriptor file,
                          aio::open_itself(to, O_WRONLY | O_CREAT | O_APPEND));
  SLUICE_RETURN_IF_ERROR(append(file.get(), text, to));
  return static_cast<std::int64_t>(std::count(text.begin(), text.end(), '\n'));
}

// "runs/a/metrics.jsonl" -> "runs/a/metrics-cut.jsonl": the default file for cut lines.
std::string cut_lines_path(const std::string& path) {
  std::filesystem::path cut(path);
  cut.replace_filename(cut.stem().string() + "-cut" + cut.extension().string());
  return cut.string();
}

// "<gradient>:<parameters>", 16 hexadecimal digits each: JSON's numbers would round them.
std::string hash_text(const UnitHashes& hashes) {
  std::array<char, 34> text{};
  std::snprintf(text.data(), text.size(), "%016" PRIx64 ":%016" PRIx64, hashes.gradient,
                hashes.parameters);
  return text.data();
}

template <typename Value>
constexpr bool kMayBeMissing = std::is_same_v<Value, std::optional<double>> ||
                               std::is_same_v<Value, std::optional<std::uint64_t>>;
template <typename Value>
constexpr bool kIsList =
    std::is_same_v<Value, std::vector<double>> || std::is_same_v<Value, std::vector<std::int64_t>>;

bool take(const nlohmann::ordered_json& json, bool& value) {
  if (!json.is_boolean()) return false;
  value = json.get<bool>();
  return true;
}

bool take(const nlohmann::ordered_json& json, double& value) {
  if (!json.is_number() && !json.is_null()) return false;
  value = json.is_null() ? std::numeric_limits<double>::quiet_NaN() : json.get<double>();
  return true;
}

template <typename Integer>
bool take(const nlohmann::ordered_json& json, Integer& value) {
  if (!json.is_number_unsigned()) return false;
  value = json.get<Integer>();
  return value >= 0;
}

bool take(const nlohmann::ordered_json& json, std::vector<UnitHashes>& value) {
  if (!json.is_object()) return false;
  for (const auto& [unit, text] : json.items()) {
    UnitHashes& hashes = value.emplace_back();
    hashes.unit = unit;
    if (!text.is_string()) return false;
    const auto& words = text.get_ref<const std::string&>();
    const char* const end = words.data() + words.size();
    const auto first = std::from_chars(words.data(), end, hashes.gradient, 16);
    if (first.ec != std::errc() || first.ptr == end || *first.ptr != ':') return false;
    const auto second = std::from_chars(first.ptr + 1, end, hashes.parameters, 16);
    if (second.ec != std::errc() || second.ptr != end) return false;
  }
  return true;
}

template <typename Number>
bool take(const nlohmann::ordered_json& json, std::vector<Number>& value) {
  if (!json.is_array()) return false;
  return std::all_of(json.begin(), json.end(),
                     [&](const auto& one) { return take(one, value.emplace_back()); });
}

struct Line {
  std::optional<StepMetrics> metrics;  // nullopt: not a step's line, or torn
  bool is_newer = false;               // of a schema that this version may not understand
};

Line parse_line(const std::string& text) {
  const auto json = json_or_discarded<nlohmann::ordered_json>(text);
  if (!json.is_object()) return {};
  std::int64_t schema = 1;
  if (const auto entry = json.find("schema"); entry != json.end() && !take(*entry, schema))
    return {};
  if (schema > kMetricsSchema) return {.is_newer = true};
  StepMetrics metrics;
  bool whole = true;
  for_each_metric(metrics, [&](const char* name, auto& value) {
    const auto entry = json.find(name);
    if constexpr (kMayBeMissing<std::remove_cvref_t<decltype(value)>>) {
      if (entry != json.end()) whole = whole && take(*entry, value.emplace());
    } else if constexpr (kIsList<std::remove_cvref_t<decltype(value)>> ||
                         std::is_same_v<decltype(value), std::vector<UnitHashes>&>) {
      if (entry != json.end()) whole = whole && take(*entry, value);
    } else {
      whole = whole && entry != json.end() && take(*entry, value);
    }
  });
  return {.metrics = whole ? std::optional(metrics) : std::nullopt};
}

// Calls visit(metrics, offset past the line) for each whole line until it returns false.
Status scan(const std::string& path, bool may_be_torn,
            const std::function<bool(const StepMetrics&, std::uint64_t)>& visit) {
  // Opening a pipe would block until it has a writer.
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode))
    return Error(ErrorCode::kInvalidArgument, path + " is not a regular file");
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) return Error::from_errno(errno, {.operation = "open", .path = path});
  std::uint64_t offset = 0;
  std::string text;
  for (int number = 1; std::getline(file, text); ++number) {
    const bool ended = !file.eof();  // by a newline, not by the end of the file
    const auto [metrics, is_newer] = parse_line(text);
    if (is_newer) {
      return Error(ErrorCode::kNewerVersion, path + ": line " + std::to_string(number) +
                                                 " was written by a newer version of Sluice");
    }
    if (!metrics) {
      if (!ended && may_be_torn) return {};
      return Error(
          ErrorCode::kCorrupt,
          path + ": line " + std::to_string(number) +
              " does not contain metrics of a step; move the file away, or remove the line");
    }
    offset += text.size() + (ended ? 1 : 0);
    if (!visit(*metrics, offset)) return {};
  }
  if (file.bad()) return Error::from_errno(EIO, {.operation = "read", .path = path});
  return {};
}

// The position at which a file of several parts is cut.
struct CutPlace {
  std::vector<std::string> parts;  // the oldest first
  std::size_t part = 0;            // the last one with lines that stay, or the first
  std::uint64_t kept_bytes = 0;    // in that part
  std::optional<StepMetrics> last_kept;
};

Result<CutPlace> find_cut(std::vector<std::string> parts, std::int64_t last_step) {
  CutPlace place{.parts = std::move(parts), .last_kept = {}};
  bool goes_on = true;
  for (std::size_t i = 0; i < place.parts.size() && goes_on; ++i) {
    const bool is_newest = i + 1 == place.parts.size();
    SLUICE_RETURN_IF_ERROR(
        scan(place.parts[i], is_newest, [&](const StepMetrics& metrics, std::uint64_t end) {
          goes_on = metrics.step <= last_step;
          if (!goes_on) return false;
          place.part = i;
          place.kept_bytes = end;
          place.last_kept = metrics;
          return true;
        }));
  }
  return place;
}

// Restores the file: to this size, or removes it.
bool cut_back(const std::string& path, std::optional<off_t> size) {
  if (!size) return ::unlink(path.c_str()) == 0;
  const auto file = aio::open_itself(path, O_WRONLY);
  return file.ok() && ::ftruncate(file->get(), *size) == 0;
}

// Appends all lines after the place to `to`. After an error `to` is unchanged.
Result<std::int64_t> keep_cut_lines(const CutPlace& place, const std::string& to) {
  struct stat before {};
  const bool was_there = ::stat(to.c_str(), &before) == 0;
  std::int64_t lines = 0;
  for (std::size_t i = place.part; i < place.parts.size(); ++i) {
    auto kept = keep_lines(place.parts[i], i == place.part ? place.kept_bytes : 0, to);
    if (!kept.ok() && lines > 0) {
      if (!cut_back(to, was_there ? std::optional(before.st_size) : std::nullopt))
        return std::move(kept).error().with_suffix("; " + to + " has some of them");
    }
    if (!kept.ok()) return std::move(kept).error();
    lines += *kept;
  }
  return lines;
}

// Removes the newest first, so that a crash leaves a contiguous beginning.
Status remove_parts_behind(const CutPlace& place) {
  for (std::size_t i = place.parts.size(); i-- > place.part + 1;)
    if (::unlink(place.parts[i].c_str()) != 0)
      return Error::from_errno(errno, {.operation = "remove", .path = place.parts[i]});
  return {};
}

}  // namespace

Result<std::unique_ptr<MetricsLog>> MetricsLog::create(const std::string& path) {
  SLUICE_ASSIGN_OR_RETURN(aio::OwnedDescriptor file,
                          aio::open_itself(path, O_WRONLY | O_CREAT | O_EXCL));
  return std::unique_ptr<MetricsLog>(new MetricsLog(path, file.hand_on(), 0));
}

Result<std::unique_ptr<MetricsLog>> MetricsLog::resume(const std::string& path,
                                                       std::int64_t last_step,
                                                       const std::string& cut_path,
                                                       std::uint64_t part_bytes) {
  std::vector<std::string> parts = log_parts(path);
  if (parts.empty()) {
    auto made = create(path);
    if (made.ok()) (*made)->part_bytes_ = (*made)->begin_part_bytes_ = part_bytes;
    return made;
  }
  SLUICE_ASSIGN_OR_RETURN(CutPlace place, find_cut(std::move(parts), last_step));
  const std::string& part = place.parts[place.part];
  const std::uint64_t kept_bytes = place.kept_bytes;
  SLUICE_ASSIGN_OR_RETURN(aio::OwnedDescriptor file, aio::open_itself(part, O_RDWR));
  const int descriptor = file.hand_on();
  std::unique_ptr<MetricsLog> log(new MetricsLog(path, descriptor, kept_bytes));
  log->part_bytes_ = log->begin_part_bytes_ = part_bytes;
  log->last_kept_ = std::move(place.last_kept);
  log->cut_path_ = cut_path.empty() ? cut_lines_path(path) : cut_path;
  SLUICE_ASSIGN_OR_RETURN(log->cut_lines_, keep_cut_lines(place, log->cut_path_));
  SLUICE_RETURN_IF_ERROR(remove_parts_behind(place));
  if (::ftruncate(descriptor, static_cast<off_t>(kept_bytes)) != 0)
    return Error::from_errno(errno, {.operation = "truncate", .path = part});
  if (part != path && ::rename(part.c_str(), path.c_str()) != 0)
    return Error::from_errno(errno, {.operation = "rename", .path = part});
  // The last line may be complete except for its newline.
  char last = '\n';
  if (kept_bytes > 0 && ::pread(descriptor, &last, 1, static_cast<off_t>(kept_bytes - 1)) != 1)
    return Error::from_errno(EIO, {.operation = "read", .path = path});
  if (last != '\n') {
    log->waiting_ = '\n';
    log->waiting_lines_ = 1;
    static_cast<void>(log->flush());  // if the disk is full, the newline waits like a line
  }
  return log;
}

MetricsLog::~MetricsLog() {
  static_cast<void>(flush());
  ::close(descriptor_);
}

Status MetricsLog::append(const StepMetrics& metrics) {
  const std::string line = metrics_line(metrics);
  if (part_bytes_ > 0 && waiting_.empty() && size_bytes_ > 0 &&
      size_bytes_ + line.size() > begin_part_bytes_)
    begin_part();
  Status flushed;
  if (waiting_.size() + line.size() > kMostWaitingBytes) flushed = flush();
  if (!flushed.ok()) {
    ++lost_lines_;
    return flushed;
  }
  waiting_ += line;
  ++waiting_lines_;
  return flush();
}

void MetricsLog::begin_part() {
  const auto begun = begin_log_part(path_, descriptor_);
  if (!begun.ok()) {
    begin_part_bytes_ = size_bytes_ + part_bytes_ / 8 + 1;
    log::warning_once("metrics.jsonl grows",
                      "metrics.jsonl grows beyond run.log_part_mib, and is "
                      "tried again later: " +
                          begun.error().message());
    return;
  }
  ::close(std::exchange(descriptor_, *begun));
  size_bytes_ = 0;
  begin_part_bytes_ = part_bytes_;
}

Status MetricsLog::flush() {
  std::size_t done = 0;
  while (done < waiting_.size()) {
    const std::size_t left = waiting_.size() - done;
    const ssize_t written =
        ::pwrite(descriptor_, waiting_.data() + done, left, static_cast<off_t>(size_bytes_ + done));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      Error error = Error::from_errno(
          written < 0 ? errno : EIO,
          {.operation = "write", .path = path_, .length_bytes = static_cast<std::int64_t>(left)});
      const bool torn = take_written(done) < done;
      // The first waiting line will overwrite the torn one. If that also fails, readers find the
      // torn line until then.
      if (torn && ::ftruncate(descriptor_, static_cast<off_t>(size_bytes_)) != 0)
        return std::move(error).with_suffix("; an incomplete line remains");
      return error;
    }
    done += static_cast<std::size_t>(written);
  }
  take_written(done);
  return {};
}

// Removes the whole lines among the first `bytes` from the waiting ones. Returns their size.
std::size_t MetricsLog::take_written(std::size_t bytes) {
  const std::size_t newline = bytes == 0 ? std::string::npos : waiting_.rfind('\n', bytes - 1);
  const std::size_t whole = newline == std::string::npos ? 0 : newline + 1;
  waiting_lines_ -=
      std::count(waiting_.begin(), waiting_.begin() + static_cast<std::ptrdiff_t>(whole), '\n');
  waiting_.erase(0, whole);
  size_bytes_ += whole;
  return whole;
}

std::string metrics_line(const StepMetrics& metrics) {
  nlohmann::ordered_json line = {{"schema", kMetricsSchema}};
  for_each_metric(metrics, [&](const char* name, const auto& value) {
    if constexpr (kMayBeMissing<std::remove_cvref_t<decltype(value)>>) {
      if (value) line[name] = *value;
    } else if constexpr (kIsList<std::remove_cvref_t<decltype(value)>>) {
      if (!value.empty()) line[name] = value;
    } else if constexpr (std::is_same_v<decltype(value), const std::vector<UnitHashes>&>) {
      for (const UnitHashes& hashes : value) line[name][hashes.unit] = hash_text(hashes);
    } else {
      line[name] = value;
    }
  });
  return line.dump() + "\n";  // non-finite numbers become null
}

Result<std::vector<StepMetrics>> read_metrics(const std::string& path) {
  std::vector<StepMetrics> all;
  SLUICE_RETURN_IF_ERROR(visit_log_parts(
      path, [&] { all.clear(); },
      [&](const std::string& part) {
        return scan(part, part == path, [&](const StepMetrics& metrics, std::uint64_t /*end*/) {
          all.push_back(metrics);
          return true;
        });
      }));
  return all;
}

}  // namespace sluice::engine
