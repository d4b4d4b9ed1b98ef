#include "engine/checkpoint/checkpoint_names.h"

#include <charconv>
#include <cstdio>
#include <filesystem>

namespace sluice::engine {
namespace {

constexpr std::string_view kFolderPrefix = "step-";
constexpr std::string_view kOf = "-of-";
constexpr std::string_view kSuffix = ".safetensors";
constexpr std::size_t kShardDigits = 5;
constexpr std::size_t kMinStepDigits = 9;

// Accepts digits only; nothing if the number does not fit.
template <typename Number>
std::optional<Number> parse_digits(std::string_view text) {
  Number value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.front() == '-')
    return std::nullopt;
  return value;
}

// The absolute path, without "." and "..".
std::string whole_path(const std::string& path) {
  std::error_code error;
  std::string whole = std::filesystem::absolute(path, error).lexically_normal().string();
  while (whole.size() > 1 && whole.back() == '/') whole.pop_back();
  return error ? path : whole;
}

// Looks only at the names in the path.
std::optional<std::string> run_above(const std::string& checkpoint) {
  const std::string checkpoints = parent_folder(checkpoint);
  if (last_name(checkpoints) != kCheckpointsFolder) return std::nullopt;
  std::string run = parent_folder(checkpoints);
  const std::string outer = parent_folder(run);
  if (last_name(run).starts_with(kSetAsidePrefix) && last_name(outer) == kCheckpointsFolder)
    run = parent_folder(outer);
  return run;
}

bool take_prefix(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

}  // namespace

std::string shard_name(const offload::StateField& field, std::size_t shard, std::size_t shards) {
  char numbers[64];
  std::snprintf(numbers, sizeof numbers, "-%05zu-of-%05zu", shard + 1, shards);
  return std::string(field.name) + numbers + std::string(kSuffix);
}

std::optional<ShardName> parse_shard_name(std::string_view name) {
  for (std::size_t field = 0; field < offload::kStateFields.size(); ++field) {
    std::string_view rest = name;
    if (!take_prefix(rest, offload::kStateFields[field].name) || !take_prefix(rest, "-")) continue;
    if (rest.size() != 2 * kShardDigits + kOf.size() + kSuffix.size()) continue;
    const auto number = parse_digits<std::size_t>(rest.substr(0, kShardDigits));
    rest.remove_prefix(kShardDigits);
    if (!number || !take_prefix(rest, kOf)) continue;
    const auto shards = parse_digits<std::size_t>(rest.substr(0, kShardDigits));
    if (!shards || rest.substr(kShardDigits) != kSuffix) continue;
    if (*number == 0 || *number > *shards) continue;
    return ShardName{field, *number - 1, *shards};
  }
  return std::nullopt;
}

bool is_checkpoint_file(std::string_view name) {
  if (name.ends_with(".json.new")) name.remove_suffix(4);
  return name == kManifestName || name == kRemovalMarkName || name == kWeightIndexName ||
         parse_shard_name(name).has_value();
}

std::string checkpoint_name(std::int64_t step) {
  char text[64];
  std::snprintf(text, sizeof text, "step-%09lld", static_cast<long long>(step));
  return text;
}

std::optional<FolderName> parse_folder_name(std::string_view name) {
  FolderName parsed;
  if (name.ends_with(kReplacementSuffix)) {
    parsed.replacement = true;
    name.remove_suffix(kReplacementSuffix.size());
  }
  std::string_view digits = name;
  if (!take_prefix(digits, kFolderPrefix) || digits.size() < kMinStepDigits) return std::nullopt;
  const auto step = parse_digits<std::int64_t>(digits);
  if (!step || checkpoint_name(*step) != name) return std::nullopt;
  parsed.step = *step;
  return parsed;
}

std::string parent_folder(const std::string& path) {
  const auto slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

std::string last_name(const std::string& path) {
  const auto slash = path.rfind('/');
  return slash == std::string::npos ? path : path.substr(slash + 1);
}

std::string run_directory_of(const std::string& checkpoint) {
  const auto given = run_above(checkpoint);
  const auto found = run_above(whole_path(checkpoint));
  // The path as given, if that alone identifies the run.
  if (given && (!found || whole_path(*given) == *found)) return *given;
  return found.value_or("");
}

}  // namespace sluice::engine
