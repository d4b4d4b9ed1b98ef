// The folders in which a run would store its state.
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "aio/text.h"
#include "aio/units.h"
#include "engine/observe/text_table.h"
#include "tools/doctor/judge.h"

namespace sluice::doctor {
namespace {

constexpr std::uint64_t kFullBytes = 64 * kMiB;    // not even a small run's checkpoint
constexpr std::uint64_t kLittleBytes = 20 * kGiB;  // state and two checkpoints of 0.5B parameters
constexpr double kSlowBytesPerS = 0.5e9;

std::string_view name_of(DriveKind kind) {
  switch (kind) {
    case DriveKind::kUnknown:
      return "unknown";
    case DriveKind::kNvme:
      return "NVMe";
    case DriveKind::kSsd:
      return "SSD";
    case DriveKind::kRotational:
      return "rotational";
    case DriveKind::kVirtual:
      return "virtual disk";
    case DriveKind::kNetwork:
      return "network";
    case DriveKind::kMemory:
      return "memory";
    case DriveKind::kOverlay:
      return "overlay";
  }
  return "unknown";
}

std::string gb(double bytes_per_s) { return engine::decimals(1e-9 * bytes_per_s, 2); }

void judge_kind(const PathFacts& path, Finding& it) {
  switch (path.kind) {
    case DriveKind::kMemory:
      add_problem(it, State::kLimited,
                  "Files there take memory from the run, and are lost when the machine stops.",
                  "Give budget.nvme_paths and --out folders on a drive.");
      break;
    case DriveKind::kNetwork:
      add_problem(
          it, State::kLimited,
          "State that streams through a network holds up each step, and locks may not reach "
          "other machines.",
          "Give budget.nvme_paths a folder on a local drive; checkpoints may stay here.");
      break;
    case DriveKind::kRotational:
      add_problem(it, State::kLimited, "A rotating disk is too slow for state that streams.",
                  "Give budget.nvme_paths a folder on an NVMe drive.");
      break;
    case DriveKind::kOverlay:
      add_problem(
          it, State::kLimited,
          "The container's own root is slower than a volume, and is lost with the container.",
          "Use a volume on a drive: docker run -v /nvme:/nvme.");
      break;
    case DriveKind::kUnknown:
    case DriveKind::kNvme:
    case DriveKind::kSsd:
    case DriveKind::kVirtual:
      break;
  }
}

// What the drive does and tells.
void add_measured(const PathFacts& path, Finding& it) {
  if (path.read_bytes_per_s && path.write_bytes_per_s) {
    it.found += "; about " + gb(*path.read_bytes_per_s) + " GB/s read, " +
                gb(*path.write_bytes_per_s) + " written";
    it.values.emplace_back("read_bytes_per_s", *path.read_bytes_per_s);
    it.values.emplace_back("write_bytes_per_s", *path.write_bytes_per_s);
  }
  if (path.health) {
    it.found += "; " + std::to_string(path.health->used_percent) + "% of its endurance used, " +
                engine::decimals(path.health->written_tb, 0) + " TB written";
    it.values.emplace_back("endurance_used_percent",
                           static_cast<std::int64_t>(path.health->used_percent));
    it.values.emplace_back("written_tb", path.health->written_tb);
  } else if (!path.health_problem.empty()) {
    it.found += "; its wear is not known: " + path.health_problem;
  }
}

Finding judge_path(const PathFacts& path, std::size_t number) {
  Finding it{.key = "path." + std::to_string(number), .subject = path.path};
  const std::string another = "Choose a folder on another drive.";
  if (!path.answers) {
    it.found = "does not answer within 10 s";
    add_problem(it, State::kNotPossible, "A run that stores files there would hang.",
                "Check the drive or the server of that mount (dmesg); unmount it if it is gone.");
    return it;
  }
  const std::string kind(name_of(path.kind));
  it.found = path.file_system + ", " + kind + (path.device.empty() ? "" : " " + path.device) +
             (path.direct ? ", O_DIRECT" : "") + ", " + format_bytes(path.free_bytes) + " free";
  it.values = {{"path", path.path},     {"file_system", path.file_system},
               {"kind", kind},          {"device", path.device},
               {"direct", path.direct}, {"free_bytes", static_cast<std::int64_t>(path.free_bytes)}};
  if (!path.same_as.empty()) {
    it.found +=
        "; the same file system as " + (path.same_as == "." ? "the working folder" : path.same_as);
    it.values.emplace_back("same_as", path.same_as);
  }
  add_measured(path, it);
  if (!path.problem.empty()) {
    it.found += "; " + path.problem;
    add_problem(it, State::kNotPossible, "No run can store files there.", another);
    return it;
  }
  if (path.free_bytes < kFullBytes) {
    add_problem(it, State::kNotPossible, "It is full: no run can store files there.",
                "Free some space (du -xh --max-depth=2 " + shell_word(path.path) +
                    " | sort -h), or choose another drive.");
    return it;
  }
  if (path.free_bytes < kLittleBytes)
    add_problem(it, State::kLimited,
                "State on the drive and each checkpoint take 12 bytes for each trained parameter.",
                "Free some space, or choose another drive.");
  judge_kind(path, it);
  const bool is_memory = path.kind == DriveKind::kMemory;
  if (!path.direct && !is_memory)
    add_problem(it, State::kLimited,
                "Its file system takes no O_DIRECT: bytes are copied once more, and the page cache "
                "takes memory.",
                "Use ext4 or XFS on a local drive.");
  if (path.overwrites_elsewhere)
    add_problem(it, State::kLimited,
                "It writes to new blocks, so space cannot be reserved: a full drive ends a run.",
                "Leave as much free as the run stores.");
  if (path.read_bytes_per_s && path.write_bytes_per_s && path.kind != DriveKind::kRotational &&
      path.kind != DriveKind::kNetwork &&
      std::min(*path.read_bytes_per_s, *path.write_bytes_per_s) < kSlowBytesPerS)
    add_problem(it, State::kLimited,
                "The drive is slow for state that streams; sluice plan says what a step waits for.",
                "Use an NVMe drive, or several in budget.nvme_paths.");
  return it;
}

}  // namespace

void judge_paths(const MachineFacts& facts, std::vector<Finding>& findings) {
  const std::size_t first = findings.size();
  for (std::size_t i = 0; i < facts.paths.size(); ++i) {
    findings.push_back(judge_path(facts.paths[i], i));
    findings.back().is_needed = facts.paths[i].is_named;
  }
  // One usable folder is enough if the user named none.
  const auto begin = findings.begin() + static_cast<std::ptrdiff_t>(first);
  if (std::all_of(begin, findings.end(),
                  [](const Finding& it) { return it.state == State::kNotPossible; }))
    std::for_each(begin, findings.end(), [](Finding& it) { it.is_needed = true; });
}

}  // namespace sluice::doctor
