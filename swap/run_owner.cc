#include "swap/run_owner.h"

#include <unistd.h>

#include <array>
#include <climits>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>

#include "aio/bounded_json.h"
#include "aio/small_file.h"

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

}  // namespace sluice::swap
