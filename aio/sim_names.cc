#include "aio/sim_names.h"

#include <algorithm>
#include <cerrno>
#include <set>
#include <utility>

namespace sluice::aio {
namespace {

std::map<std::string, SimNames::NodePtr>& entries(SimNames::Node& folder, SimNames::View view) {
  return view == SimNames::View::kPresent ? folder.present : folder.durable;
}

bool contains(const std::vector<SimNames::NodePtr>& nodes, const SimNames::NodePtr& node) {
  return std::find(nodes.begin(), nodes.end(), node) != nodes.end();
}

}  // namespace

SimNames::SimNames() : root_(std::make_shared<Node>()) {}

SimNames::~SimNames() {
  // The present names may have A in B while the durable names have B in A: a cycle of owners.
  for (const NodePtr& node : all_nodes()) {
    node->present.clear();
    node->durable.clear();
  }
}

std::vector<SimNames::NodePtr> SimNames::all_nodes() const {
  std::vector<NodePtr> nodes{root_};
  std::set<const Node*> seen{root_.get()};
  const auto add = [&](const NodePtr& node) {
    if (seen.insert(node.get()).second) nodes.push_back(node);
  };
  for (const Operation& operation : pending_) add(operation.node);
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    // add() moves the vector. NOLINTNEXTLINE(performance-unnecessary-copy-initialization)
    const NodePtr node = nodes[i];
    for (const auto& [name, child] : node->present) add(child);
    for (const auto& [name, child] : node->durable) add(child);
  }
  return nodes;
}

SimNames::Walk SimNames::walk(std::string_view path, View view) const {
  Walk walk{.place = {}, .node = root_, .ancestors = {}, .error_number = 0};
  while (!path.empty()) {
    const std::string_view name = path.substr(0, path.find('/'));
    path.remove_prefix(std::min(path.size(), name.size() + 1));
    if (name.empty() || name == ".") continue;
    if (name == "..") {
      walk.node = walk.ancestors.empty() ? root_ : walk.ancestors.back();
      if (!walk.ancestors.empty()) walk.ancestors.pop_back();
      continue;
    }
    if (walk.node == nullptr) {
      walk.error_number = ENOENT;
      return walk;
    }
    if (walk.node->file != nullptr) {
      walk.error_number = ENOTDIR;
      return walk;
    }
    walk.ancestors.push_back(walk.node);
    walk.place = {walk.node, std::string(name)};
    const auto& names = entries(*walk.node, view);
    const auto it = names.find(walk.place.name);
    walk.node = it == names.end() ? nullptr : it->second;
  }
  return walk;
}

SimNames::Found SimNames::find(std::string_view path, View view) const {
  const Walk end = walk(path, view);
  if (end.error_number != 0) return {nullptr, end.error_number};
  return {end.node, end.node == nullptr ? ENOENT : 0};
}

void SimNames::apply(const Operation& operation, View view) {
  if (operation.from.folder != nullptr) {
    entries(*operation.from.folder, view).erase(operation.from.name);
  }
  if (operation.to.folder != nullptr) {
    entries(*operation.to.folder, view)[operation.to.name] = operation.node;
  }
}

void SimNames::perform(std::uint64_t sequence, Operation operation, const Walk& target,
                       const NodePtr& replaced) {
  operation.sequence = sequence;
  const bool renames = operation.from.folder != nullptr && operation.to.folder != nullptr;
  const NodePtr removed = operation.to.folder == nullptr ? operation.node : replaced;
  for (const Operation& earlier : pending_) {
    const auto same_name = [&](const Place& place) {
      return place.folder != nullptr && (place == earlier.from || place == earlier.to);
    };
    const bool places_a_parent = renames && contains(target.ancestors, earlier.node);
    const bool emptied_it = removed != nullptr && removed->file == nullptr &&
                            (earlier.from.folder == removed || earlier.to.folder == removed);
    if (same_name(operation.from) || same_name(operation.to) || places_a_parent || emptied_it) {
      operation.needs.push_back(earlier.sequence);
    }
  }
  apply(operation, View::kPresent);
  pending_.push_back(std::move(operation));
}

int SimNames::create_file(std::uint64_t sequence, std::string_view path,
                          std::shared_ptr<SimFileData> file) {
  const Walk end = walk(path, View::kPresent);
  if (end.error_number != 0) return end.error_number;
  if (end.node != nullptr) return EEXIST;
  auto node = std::make_shared<Node>();
  node->file = std::move(file);
  node->file->linked = true;
  perform(sequence, {.sequence = 0, .from = {}, .to = end.place, .node = node, .needs = {}}, end,
          nullptr);
  return 0;
}

int SimNames::make_folders(std::uint64_t& sequence, std::string_view path) {
  for (std::size_t end = 0; end < path.size();) {
    end = std::min(path.find('/', end + 1), path.size());
    const Walk step = walk(path.substr(0, end), View::kPresent);
    if (step.error_number != 0) return step.error_number;
    if (step.node != nullptr) {
      if (step.node->file != nullptr) return end == path.size() ? EEXIST : ENOTDIR;
      continue;
    }
    perform(sequence++,
            {.sequence = 0,
             .from = {},
             .to = step.place,
             .node = std::make_shared<Node>(),
             .needs = {}},
            step, nullptr);
  }
  return 0;
}

int SimNames::remove(std::uint64_t sequence, std::string_view path,
                     std::shared_ptr<SimFileData>& gone) {
  const Walk end = walk(path, View::kPresent);
  if (end.error_number != 0) return end.error_number;
  if (end.node == nullptr) return ENOENT;
  if (end.node == root_) return EBUSY;
  if (end.node->file == nullptr && !end.node->present.empty()) return ENOTEMPTY;
  gone = end.node->file;
  if (gone != nullptr) gone->linked = false;
  perform(sequence, {.sequence = 0, .from = end.place, .to = {}, .node = end.node, .needs = {}},
          end, nullptr);
  return 0;
}

int SimNames::rename(std::uint64_t sequence, const RenamePaths& paths,
                     std::shared_ptr<SimFileData>& gone) {
  const Walk from = walk(paths.from, View::kPresent);
  const Walk to = walk(paths.to, View::kPresent);
  if (from.error_number != 0) return from.error_number;
  if (to.error_number != 0) return to.error_number;
  if (from.node == nullptr) return ENOENT;
  if (from.node == root_ || to.node == root_) return EBUSY;
  if (from.node == to.node) return 0;
  if (contains(to.ancestors, from.node)) return EINVAL;  // into itself
  const bool moves_folder = from.node->file == nullptr;
  if (to.node != nullptr) {
    const bool onto_folder = to.node->file == nullptr;
    if (moves_folder && !onto_folder) return ENOTDIR;
    if (!moves_folder && onto_folder) return EISDIR;
    if (onto_folder && !to.node->present.empty()) return ENOTEMPTY;
    gone = to.node->file;
    if (gone != nullptr) gone->linked = false;
  }
  perform(sequence,
          {.sequence = 0, .from = from.place, .to = to.place, .node = from.node, .needs = {}}, to,
          to.node);
  return 0;
}

int SimNames::sync_folder(std::string_view path) {
  const Walk end = walk(path, View::kPresent);
  if (end.error_number != 0) return end.error_number;
  if (end.node == nullptr) return ENOENT;
  if (end.node->file != nullptr) return ENOTDIR;
  // From the newest to the oldest: an operation needs only older ones.
  std::set<std::uint64_t> wanted;
  for (auto it = pending_.rbegin(); it != pending_.rend(); ++it) {
    if (it->from.folder == end.node || it->to.folder == end.node || wanted.contains(it->sequence)) {
      wanted.insert(it->sequence);
      wanted.insert(it->needs.begin(), it->needs.end());
    }
  }
  std::deque<Operation> rest;
  for (Operation& operation : pending_) {
    if (wanted.contains(operation.sequence)) {
      apply(operation, View::kDurable);
    } else {
      rest.push_back(std::move(operation));
    }
  }
  pending_ = std::move(rest);
  return 0;
}

void SimNames::list_pending_metadata(std::vector<std::uint64_t>& into) const {
  for (const Operation& operation : pending_) into.push_back(operation.sequence);
}

std::vector<std::shared_ptr<SimFileData>> SimNames::all_files() const {
  std::vector<std::shared_ptr<SimFileData>> files;
  for (const NodePtr& node : all_nodes()) {
    if (node->file != nullptr) files.push_back(node->file);
  }
  return files;
}

void SimNames::lose_power(const PowerLossModel& model) {
  const std::vector<NodePtr> before = all_nodes();
  std::set<std::uint64_t> lost;
  for (const Operation& operation : pending_) {
    const bool possible =
        std::none_of(operation.needs.begin(), operation.needs.end(),
                     [&](std::uint64_t sequence) { return lost.contains(sequence); });
    if (possible && model.metadata_survives(operation.sequence)) {
      apply(operation, View::kDurable);
    } else {
      lost.insert(operation.sequence);
    }
  }
  pending_.clear();
  for (const NodePtr& node : before) {
    node->present.clear();
    if (node->file != nullptr) node->file->linked = false;
  }
  // Folder by folder from the root: a node that is not reached has lost its name.
  std::set<const Node*> reached{root_.get()};
  std::vector<NodePtr> folders{root_};
  for (std::size_t i = 0; i < folders.size(); ++i) {
    const NodePtr folder = folders[i];
    folder->present = folder->durable;
    for (const auto& [name, child] : folder->present) {
      reached.insert(child.get());
      if (child->file != nullptr) {
        child->file->linked = true;
      } else {
        folders.push_back(child);
      }
    }
  }
  for (const NodePtr& node : before) {
    if (!reached.contains(node.get())) node->durable.clear();
  }
}

}  // namespace sluice::aio
