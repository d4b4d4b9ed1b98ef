#include "aio/mount_table.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>

namespace sluice::aio {
namespace {

// mountinfo writes blanks in names as \040.
std::string unescape(const std::string& text) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 3 < text.size()) {
      result += static_cast<char>(std::strtol(text.substr(i + 1, 3).c_str(), nullptr, 8));
      i += 3;
    } else {
      result += text[i];
    }
  }
  return result;
}

// The device that a source in fstab names: "/dev/sda1", "UUID=4711", "LABEL=\"my drive\"".
std::string device_of(const std::string& source) {
  struct Tag {
    std::string_view tag;
    const char* folder;
  };
  constexpr Tag kTags[] = {{"UUID=", "by-uuid/"},
                           {"LABEL=", "by-label/"},
                           {"PARTUUID=", "by-partuuid/"},
                           {"PARTLABEL=", "by-partlabel/"},
                           {"ID=", "by-id/"}};
  for (const auto& [tag, folder] : kTags) {
    if (!source.starts_with(tag)) continue;
    std::string name = "/dev/disk/";
    name += folder;
    for (const char c : source.substr(tag.size()))
      if (c != '"') name += c == ' ' ? "\\x20" : std::string(1, c);  // udev's spelling
    return name;
  }
  return source;
}

// "server:/export", "//server/share".
bool is_on_network(const std::string& source) {
  return source.starts_with("//") || source.find(":/") != std::string::npos;
}

bool has_option(const std::string& options, std::string_view name) {
  std::istringstream all(options);
  for (std::string option; std::getline(all, option, ',');)
    if (option == name) return true;
  return false;
}

}  // namespace

std::vector<Mount> parse_mount_table(const std::string& mountinfo) {
  std::vector<Mount> mounts;
  std::istringstream lines(mountinfo);
  for (std::string line; std::getline(lines, line);) {
    // id parent major:minor root mount-point options [optional fields] - type source super-options
    std::istringstream fields(line);
    std::string id, parent, word;
    Mount mount;
    fields >> id >> parent >> mount.device_number >> mount.root >> mount.mount_point;
    while (fields >> word && word != "-") {
    }
    if (!(fields >> mount.type >> mount.source)) continue;
    fields >> mount.super_options;
    mount.root = unescape(mount.root);
    mount.mount_point = unescape(mount.mount_point);
    mount.source = unescape(mount.source);
    mount.super_options = unescape(mount.super_options);
    mounts.push_back(std::move(mount));
  }
  return mounts;
}

std::string unmounted_point(const std::string& fstab, const std::vector<Mount>& mounts,
                            const std::string& path,
                            const std::function<bool(const std::string& device)>& is_a_drive) {
  std::istringstream lines(fstab);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream fields(line);
    std::string source, point, type, options;
    if (!(fields >> source >> point) || source.front() == '#') continue;
    fields >> type >> options;
    if (has_option(options, "noauto")) continue;
    source = unescape(source);
    point = unescape(point);
    while (point.size() > 1 && point.back() == '/') point.pop_back();
    if (point.front() != '/' || point == "/" || !is_below(path, point)) continue;
    const bool mounted = std::any_of(mounts.begin(), mounts.end(), [&](const Mount& mount) {
      return is_below(mount.mount_point, point) && is_below(path, mount.mount_point);
    });
    if (!mounted && (is_on_network(source) || is_a_drive(device_of(source)))) return point;
  }
  return "";
}

std::optional<std::string> super_option(const Mount& mount, std::string_view name) {
  std::istringstream options(mount.super_options);
  for (std::string option; std::getline(options, option, ',');) {
    const std::size_t equals = option.find('=');
    if (std::string_view(option).substr(0, equals) != name) continue;
    return equals == std::string::npos ? "" : option.substr(equals + 1);
  }
  return std::nullopt;
}

bool is_below(const std::string& path, const std::string& folder) {
  if (folder == "/") return true;
  return path.compare(0, folder.size(), folder) == 0 &&
         (path.size() == folder.size() || path[folder.size()] == '/');
}

std::string read_text(const std::string& path) {
  const std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

}  // namespace sluice::aio
