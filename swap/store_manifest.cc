#include "swap/store_manifest.h"

#include <unistd.h>

#include <array>
#include <climits>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "aio/bounded_json.h"
#include "aio/small_file.h"
#include "swap/frozen_store.h"
#include "swap/sealed_json.h"
#include "swap/store_files.h"

namespace sluice::swap {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::uint64_t kMaxOwnerBytes = 4096;

std::optional<RunOwner> parse_owner(const std::string& text) {
  const Json json = json_or_discarded<Json>(text);
  if (!json.is_object()) return std::nullopt;
  const auto pid = json.find("pid");
  const auto host = json.find("host");
  const auto started = json.find("started_utc");
  if (pid == json.end() || !pid->is_number_integer()) return std::nullopt;
  if (host == json.end() || !host->is_string()) return std::nullopt;
  if (started == json.end() || !started->is_string()) return std::nullopt;
  const auto optional = [&](const char* key) {
    const auto found = json.find(key);
    return found != json.end() && found->is_string() ? found->get<std::string>() : "";
  };
  const auto device = json.find("device");
  return RunOwner{.pid = pid->get<std::int64_t>(),
                  .host = host->get<std::string>(),
                  .started_utc = started->get<std::string>(),
                  .boot_id = optional("boot_id"),
                  .machine_id = optional("machine_id"),
                  .device = device != json.end() && device->is_number_unsigned()
                                ? device->get<std::uint64_t>()
                                : 0};
}

std::string first_word_of(const char* path) {
  std::ifstream file(path);
  std::string word;
  file >> word;
  return word;
}

}  // namespace

RunOwner this_process() {
  std::array<char, HOST_NAME_MAX + 1> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host[0] = '\0';
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  std::array<char, 32> time{};
  std::strftime(time.data(), time.size(), "%Y-%m-%dT%H:%M:%SZ", &utc);
  return {.pid = ::getpid(),
          .host = host.data(),
          .started_utc = time.data(),
          .boot_id = first_word_of("/proc/sys/kernel/random/boot_id"),
          .machine_id = first_word_of("/etc/machine-id"),
          .device = 0};
}

bool same_machine(const RunOwner& a, const RunOwner& b) {
  if (!a.boot_id.empty() && a.boot_id == b.boot_id) return true;
  // Container and virtual machine images are often copied with their machine-id.
  if (!a.machine_id.empty() && !b.machine_id.empty() && a.machine_id != b.machine_id) return false;
  return a.host == b.host;
}

bool sees_lock_of(const RunOwner& self, const RunOwner& owner, bool locks_reach_all) {
  if (locks_reach_all) return same_machine(self, owner);
  return !self.boot_id.empty() && self.boot_id == owner.boot_id && self.device == owner.device;
}

Status write_owner(aio::IoQueue& queue, const std::string& directory, const RunOwner& owner) {
  Json json = {{"pid", owner.pid}, {"host", owner.host}, {"started_utc", owner.started_utc}};
  if (!owner.boot_id.empty()) json["boot_id"] = owner.boot_id;
  if (!owner.machine_id.empty()) json["machine_id"] = owner.machine_id;
  if (owner.device != 0) json["device"] = owner.device;
  return aio::write_small_file(queue, directory + "/" + kOwnerFile,
                               json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

Result<std::optional<RunOwner>> read_owner(aio::IoQueue& queue, const std::string& directory) {
  const auto text = aio::read_small_file(queue, directory + "/" + kOwnerFile, kMaxOwnerBytes);
  if (text.ok()) return parse_owner(*text);
  switch (text.error().code()) {
    case ErrorCode::kNotFound:
    case ErrorCode::kPermission:
    case ErrorCode::kInvalidArgument:  // too large, or a folder
      return std::optional<RunOwner>();
    default:
      return text.error();
  }
}

namespace {

using nlohmann::json;

constexpr const char* kFormat = "sluice-state-store";
constexpr std::int64_t kVersion = 1;
// Sluice writes no larger manifests.
constexpr std::uint64_t kMaxManifestBytes = std::uint64_t{1} << 28;

Error corrupt(std::string what) { return Error(ErrorCode::kCorrupt, std::move(what)); }

Error not_as_it_should_be(const json::exception& wrong) {
  return corrupt(std::string("its content is not valid: ") + wrong.what());
}

json records_to_json(std::span<const RecordSpec> records) {
  json list = json::array();
  for (const RecordSpec& r : records)
    list.push_back({r.parameter, r.first_element, r.elements, r.payload_bytes});
  return list;
}

// A value of another type throws json::exception, which parse() turns into a sentence.
std::vector<RecordSpec> records_from_json(const json& list) {
  std::vector<RecordSpec> records;
  for (const json& r : list) {
    records.push_back({.parameter = r.at(0).get<std::string>(),
                       .first_element = r.at(1).get<std::uint64_t>(),
                       .elements = r.at(2).get<std::uint64_t>(),
                       .payload_bytes = r.at(3).get<std::uint64_t>()});
  }
  return records;
}

Result<StoreManifest> manifest_from_json(const json& content) {
  if (content.at("format").get<std::string>() != kFormat) return corrupt("it is not a state store");
  const auto version = content.at("version").get<std::int64_t>();
  if (version != kVersion) {
    return Error(version > kVersion ? ErrorCode::kNewerVersion : ErrorCode::kCorrupt,
                 "it is of format version " + std::to_string(version) +
                     ", but this program reads version " + std::to_string(kVersion));
  }
  SLUICE_ASSIGN_OR_RETURN(const std::uint64_t store_id,
                          parse_hex(content.at("store_id").get<std::string>()));
  const auto member = content.at("member").get<std::size_t>();
  StoreLayoutOptions options{.store_id = store_id,
                             .run = content.at("run").get<std::string>(),
                             .paths = content.at("paths").get<std::vector<std::string>>(),
                             .weights = content.at("weights").get<std::vector<int>>(),
                             .stripe_bytes = content.at("stripe_bytes").get<std::uint64_t>(),
                             .chunk_bytes = content.at("chunk_bytes").get<std::uint64_t>(),
                             .places = 1};
  const auto generations = content.at("generations").get<std::int64_t>();
  if (generations != 1 && generations != 2)
    return corrupt("it keeps " + std::to_string(generations) +
                   " generations of each record, but this program keeps one or two");
  options.places = static_cast<int>(generations);
  if (member >= options.paths.size()) return corrupt("it belongs to a path that it does not list");
  SLUICE_ASSIGN_OR_RETURN(
      StoreLayout layout,
      StoreLayout::create(std::move(options), records_from_json(content.at("records"))));
  return StoreManifest{std::move(layout), member};
}

}  // namespace

std::string to_text(const StoreLayout& layout, std::size_t member) {
  const StoreLayoutOptions& o = layout.options();
  return to_sealed_text({{"format", kFormat},
                         {"version", kVersion},
                         {"store_id", to_hex(o.store_id)},
                         {"run", o.run},
                         {"paths", o.paths},
                         {"member", member},
                         {"weights", o.weights},
                         {"stripe_bytes", o.stripe_bytes},
                         {"chunk_bytes", o.chunk_bytes},
                         {"generations", o.places},
                         {"records", records_to_json(layout.records())}});
}

Result<StoreManifest> parse_manifest(std::string_view text) {
  SLUICE_ASSIGN_OR_RETURN(const json content, parse_sealed_text(text));
  try {
    return manifest_from_json(content);
  } catch (const json::exception& wrong) {
    return not_as_it_should_be(wrong);
  }
}

Result<StoreManifest> read_manifest(aio::IoQueue& queue, const std::string& folder) {
  const std::string path = manifest_path(folder);
  SLUICE_ASSIGN_OR_RETURN(const std::string text,
                          aio::read_small_file(queue, path, kMaxManifestBytes));
  auto manifest = parse_manifest(text);
  if (!manifest.ok()) return std::move(manifest).error().with_context(path);
  return manifest;
}

namespace {

// Sluice never removes data that may be useful; the message tells the user how to remove it.
std::string way_out(const std::string& folder) {
  return "; if it is not needed, remove the folder " + folder +
         " by hand, and those of the same name on the other paths of the store";
}

Error in_doubt(const std::string& folder, const std::string& other, const char* why) {
  return {ErrorCode::kAlreadyExists, folder + " is part of a store whose part in " + other + ' ' +
                                         why + ", so it is not known whether it is needed" +
                                         way_out(folder)};
}

// Whether it may have what a run still needs.
Status refuse_marked(aio::IoQueue& queue, const std::string& folder) {
  SLUICE_ASSIGN_OR_RETURN(const auto frozen, read_frozen_mark(queue, folder));
  if (frozen)
    return Error(ErrorCode::kAlreadyExists,
                 folder + " holds the state of a checkpoint (run.checkpoint_in_place" +
                     (frozen->checkpoint.empty() ? "" : "; the first was " + frozen->checkpoint) +
                     ")" + way_out(folder));
  SLUICE_ASSIGN_OR_RETURN(const bool closed,
                          queue.backend().files().exists(closed_mark_path(folder)));
  if (!closed) return {};
  return Error(ErrorCode::kAlreadyExists, closed_mark_path(folder) +
                                              " says that an earlier version closed a whole store, "
                                              "which this version cannot open" +
                                              way_out(folder));
}

}  // namespace

Status check_is_scratch(aio::IoQueue& queue, const std::string& folder, const std::string& run) {
  aio::FileSystem& files = queue.backend().files();
  const auto manifest = read_manifest(queue, folder);
  const bool made = manifest.ok();
  if (!made && manifest.error().code() != ErrorCode::kNotFound)
    return Error(manifest.error()).with_suffix(way_out(folder));
  SLUICE_RETURN_IF_ERROR(refuse_marked(queue, folder));
  if (!made) return {};
  const StoreLayoutOptions& store = manifest->layout.options();
  for (std::size_t member = 0; member < store.paths.size(); ++member) {
    if (member == manifest->member) continue;
    const std::string other = folder_of(store.paths[member], run);
    SLUICE_ASSIGN_OR_RETURN(const bool there, files.exists(other));
    if (!there) return in_doubt(folder, other, "is missing");
    SLUICE_RETURN_IF_ERROR(refuse_marked(queue, other));
    const auto its = read_manifest(queue, other);
    if (!its.ok() && its.error().code() != ErrorCode::kNotFound) return its.error();
    if (its.ok() && its->layout.options().store_id != store.store_id)
      return in_doubt(folder, other, "was replaced by another store");
  }
  return {};
}

}  // namespace sluice::swap
