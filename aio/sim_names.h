// SimNames: the folders of a simulated drive: the names that programs see, the names that would
// certainly survive a power loss, and the operations in between.
//
// The POSIX rule: an operation on names is durable once a folder that it touches has been synced.
// Syncing a file does nothing for its name, and syncing a folder nothing for the folder's own name.
// An operation depends on others and survives only with them: earlier operations on the same names;
// for a rename, those that put the target's folders in place. The removal of a folder depends on
// the operations that emptied it. So a rename is atomic: the file is at its old or its new name,
// and the new name shows the old or the new file.
//
// Threads: the drive's thread.
// Errors:  operations return 0 or an errno value.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "aio/power_loss.h"
#include "aio/sim_file_data.h"

namespace sluice::aio {

class SimNames {
 public:
  struct Node;
  using NodePtr = std::shared_ptr<Node>;
  struct Node {
    std::shared_ptr<SimFileData> file;  // empty: a folder
    std::map<std::string, NodePtr> present;
    std::map<std::string, NodePtr> durable;
  };

  SimNames();
  ~SimNames();
  SimNames(const SimNames&) = delete;
  SimNames& operator=(const SimNames&) = delete;

  // Each takes one sequence number. create_file's parent must exist. make_folders creates parents,
  // numbering from `sequence`, and sets it to the next free number.
  int create_file(std::uint64_t sequence, std::string_view path, std::shared_ptr<SimFileData> file);
  int make_folders(std::uint64_t& sequence, std::string_view path);
  // A file that disappears (removed, or replaced by a rename) is returned in `gone`.
  int remove(std::uint64_t sequence, std::string_view path, std::shared_ptr<SimFileData>& gone);
  struct RenamePaths {
    std::string_view from;
    std::string_view to;
  };
  int rename(std::uint64_t sequence, const RenamePaths& paths, std::shared_ptr<SimFileData>& gone);
  int sync_folder(std::string_view path);

  // The node at a path, or the error that prevents reaching it (ENOENT, ENOTDIR).
  enum class View : std::uint8_t { kPresent, kDurable };
  struct Found {
    NodePtr node;
    int error_number = 0;
  };
  Found find(std::string_view path, View view = View::kPresent) const;

  void list_pending_metadata(std::vector<std::uint64_t>& into) const;
  // Every file that has a name now, or may have one after a power loss.
  std::vector<std::shared_ptr<SimFileData>> all_files() const;
  // Sets the present and the durable names to what survives by the random choices.
  void lose_power(const PowerLossModel& model);

 private:
  struct Place {  // a name in a folder
    NodePtr folder;
    std::string name;
    friend bool operator==(const Place&, const Place&) = default;
  };
  struct Operation {
    std::uint64_t sequence;
    Place from;  // without a folder: nothing disappears
    Place to;    // without a folder: nothing appears
    NodePtr node;
    std::vector<std::uint64_t> needs;  // operations that were pending when this one was made
  };
  struct Walk {
    Place place;                     // where the path ends
    NodePtr node;                    // the node there, or null
    std::vector<NodePtr> ancestors;  // the folders on the path, starting with the root
    int error_number = 0;
  };
  Walk walk(std::string_view path, View view) const;
  // Performs the operation on the present names, and keeps it as pending for the durable ones.
  void perform(std::uint64_t sequence, Operation operation, const Walk& target,
               const NodePtr& replaced);
  static void apply(const Operation& operation, View view);
  // Every folder and file to which the present names, the durable names or a pending operation
  // refer.
  std::vector<NodePtr> all_nodes() const;

  NodePtr root_;
  std::deque<Operation> pending_;  // oldest first
};

}  // namespace sluice::aio
