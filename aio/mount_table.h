// The kernel's table of mounts, from /proc/self/mountinfo.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::aio {

struct Mount {
  std::string device_number;  // "259:1"
  std::string root;           // the folder of the file system that is mounted: "/"
  std::string mount_point;
  std::string type;           // "ext4"
  std::string source;         // "/dev/nvme0n1p2"
  std::string super_options;  // "rw,lowerdir=/a,upperdir=/b"
};

// In the order of the text: later mounts hide earlier ones at the same point.
std::vector<Mount> parse_mount_table(const std::string& mountinfo);

// The mount point, at `path` or above it, that `fstab` (text in the form of /etc/fstab) names and
// where `mounts` has nothing mounted; empty if there is none. Lines that need not be mounted do not
// count. These are "noauto" lines, and lines whose source is neither on the network nor a drive of
// this machine. The latter occur if the file was copied from another machine or came with a
// container's image.
std::string unmounted_point(const std::string& fstab, const std::vector<Mount>& mounts,
                            const std::string& path,
                            const std::function<bool(const std::string& device)>& is_a_drive);

// "/b" for "upperdir"; "" for an option without a value; empty if the option is missing.
std::optional<std::string> super_option(const Mount& mount, std::string_view name);

// Whether `path` is the folder or is below it; both are absolute.
bool is_below(const std::string& path, const std::string& folder);

// A whole file as text; empty if it cannot be read.
std::string read_text(const std::string& path);

}  // namespace sluice::aio
