// Which folder is a run's, and which files in it are the run's own.
//
//   DIR/sluice-run.json   {"format": "sluice-run", "version": 1, "files": ["config.json", ...]}
//
// A run writes it before anything else. It names what a run may write there, and nothing else is
// ever replaced or removed. Runs of versions that did not write it are known by their
// configuration, lock and checkpoints. A configuration that cannot be read, as it is damaged or has
// comments, decides nothing where the mark or a whole checkpoint says whose the folder is. A folder
// of a model, of data or of anything else is nobody's run: it is never written to.
//
// Links: none of a run's own names may be one, since somebody else's folder could so decide which
// file is written. The folder itself may be a link: it is the user's to choose.
//
// Threads: any.
// Errors:  kAlreadyExists: the folder holds other things than a run's. kInvalidArgument: a link.
#pragma once

#include <string>

#include "aio/io_queue.h"
#include "aio/result.h"

namespace sluice::engine {

inline constexpr const char* kRunMarkName = "sluice-run.json";
inline constexpr const char* kRunLockName = "lock";
inline constexpr const char* kSharedMarkName = "sluice-ranks";  // RunFolder::leave_mark()

// Whether a run may begin or continue there: the folder is missing, empty or a run's. It changes
// nothing.
Status check_run_directory(aio::IoQueue& queue, const std::string& directory);

// Whether it holds nothing but what a run that was killed as it began may have left.
Result<bool> is_unused_run_directory(aio::FileSystem& files, const std::string& directory);

// kInvalidArgument where `directory`/checkpoints is a link that leads somewhere.
Status check_checkpoints_are_no_link(aio::FileSystem& files, const std::string& directory);

// Before the first of a run's files is written. The mark names tokenizer.json too, where a run of a
// version without marks has that.
Status mark_run_directory(aio::IoQueue& queue, const std::string& directory);

// Whether the folder's own tokenizer.json would be its run's: imports of versions without marks
// left it there. In the folder of any other run it is somebody else's.
bool may_hold_old_tokenizer(aio::IoQueue& queue, const std::string& directory);

// The files of the run before, of `directory` that was checked: those that its mark names. Not its
// checkpoints, tokenizer and lock, and not the mark, which is written first where there is none. An
// older run's tokenizer.json is set aside.
Status remove_run_files(aio::IoQueue& queue, const std::string& directory);

}  // namespace sluice::engine
