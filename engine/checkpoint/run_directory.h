// Decides which folders are runs, and which files in them belong to the run.
//
//   DIR/sluice-run.json   {"format": "sluice-run", "version": 1, "files": ["config.json", ...]}
//
// A run writes this mark before anything else. It lists the files that a run may write there;
// nothing else is ever replaced or removed. Runs of versions without marks are recognised by their
// configuration, lock and checkpoints. An unreadable configuration (damaged, or with comments) is
// ignored if the mark or a complete checkpoint identifies the run. A folder of a model, of data or
// of anything else is not a run, and is never written to.
//
// Links: none of a run's own names may be a link, since a foreign folder could thereby redirect
// what is written. The folder itself may be a link: the user chooses it.
//
// Threads: any.
// Errors:  kAlreadyExists: the folder contains files that are not a run's. kInvalidArgument: a
//          link.
#pragma once

#include <string>

#include "aio/io_queue.h"
#include "aio/result.h"

namespace sluice::engine {

inline constexpr const char* kRunMarkName = "sluice-run.json";
inline constexpr const char* kRunLockName = "lock";
inline constexpr const char* kSharedMarkName = "sluice-ranks";  // RunFolder::leave_mark()

// Whether a run may begin or continue there: the folder must be missing, empty or a run's. Changes
// nothing.
Status check_run_directory(aio::IoQueue& queue, const std::string& directory);

// Whether it contains only files of a run that was killed during its start.
Result<bool> is_unused_run_directory(aio::FileSystem& files, const std::string& directory);

// kInvalidArgument if `directory`/checkpoints is a link to an existing target.
Status check_checkpoints_are_no_link(aio::FileSystem& files, const std::string& directory);

// Writes the mark. Call it before writing any of the run's files. The mark also lists
// tokenizer.json if a run of a version without marks left one.
Status mark_run_directory(aio::IoQueue& queue, const std::string& directory);

// Whether a tokenizer.json in the folder would belong to its run: imports of versions without marks
// left it there. In any other run's folder it is foreign.
bool may_hold_old_tokenizer(aio::IoQueue& queue, const std::string& directory);

// Removes the previous run's files from a checked `directory`: those listed in its mark. Its
// checkpoints, tokenizer, lock and mark stay; a missing mark is written first. An older run's
// tokenizer.json is set aside.
Status remove_run_files(aio::IoQueue& queue, const std::string& directory);

}  // namespace sluice::engine
