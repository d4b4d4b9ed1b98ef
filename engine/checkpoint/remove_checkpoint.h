// Removes and replaces checkpoints, so that every valid checkpoint is complete, and unreadable ones
// are never lost.
//
// A removal begins by durably renaming the manifest. From then on the folder is recognised as a
// removal in progress, not as a checkpoint or as an unfinished copy. Then the other files are
// removed, then the renamed manifest, then the folder.
//
// Only files with a checkpoint's names are removed. A folder that contains other files stays, with
// them, under another name (".set-aside").
//
// Threads: one at a time.
// Errors:  name the path; a failed call may be repeated.
#pragma once

#include <string>

#include "aio/io_queue.h"
#include "aio/result.h"

namespace sluice::engine {

// Whether `folder` is a link: nothing is removed through one.
bool is_linked(aio::FileSystem& files, const std::string& folder);

// Removes a complete checkpoint, or the leftover of an interrupted save or removal. Ok if it does
// not exist. The removal is durable when this returns ok. Anything else stays, and is an error that
// says what it is (why_not() in checkpoint_entry.h); links are errors too.
Status remove_checkpoint(aio::IoQueue& queue, const std::string& folder);

// `<folder>.new`, written by a save, replaces `folder` if it is complete, and is removed if it is
// the leftover of a killed save. A complete checkpoint in `folder` is removed; anything else there
// is set aside (set_folder_aside()). Ok if there is no `<folder>.new`. If `<folder>.new` is neither
// complete nor a leftover, it stays, and is an error.
Status settle_replacement(aio::IoQueue& queue, const std::string& folder);

// Renames a folder that obstructs a save to "<folder>.set-aside", with a number appended if
// necessary, and logs a warning.
Status set_folder_aside(aio::FileSystem& files, const std::string& folder);

}  // namespace sluice::engine
