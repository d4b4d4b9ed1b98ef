// Removing checkpoints, and letting new ones take their place, so that what counts is always whole
// and nothing that could not be read is lost.
//
// A removal begins by renaming the manifest, durably: from then on the folder is known to be on its
// way out, and is not mistaken for a checkpoint, or for a copy whose manifest is still to come.
// Then the other files go, then the renamed manifest, then the folder.
//
// Only files with a checkpoint's names are removed; a folder with others in it stays, with them,
// under another name (".set-aside").
//
// Threads: one at a time.
// Errors:  name the path; what failed may be repeated.
#pragma once

#include <string>

#include "aio/io_queue.h"
#include "aio/result.h"

namespace sluice::engine {

// Whether it is a link to where the checkpoint is: nothing is removed through one.
bool is_linked(aio::FileSystem& files, const std::string& folder);

// A complete checkpoint, or what an interrupted save or removal left. One that does not exist is
// ok. Durable when it returns ok. What is neither complete nor a leftover stays as it is, and is an
// error that says what it is (why_not() in checkpoint_entry.h); so is a link.
Status remove_checkpoint(aio::IoQueue& queue, const std::string& folder);

// `<folder>.new`, which a save has written, takes the place of `folder` if it is complete, and is
// removed if it is what a killed save left. A complete checkpoint that is in its place is removed,
// anything else there set aside (set_folder_aside()). Ok, too, where there is no `<folder>.new`;
// one that is neither complete nor a leftover stays as it is, and is an error.
Status settle_replacement(aio::IoQueue& queue, const std::string& folder);

// Renames a folder that is in the way of a save to "<folder>.set-aside", with a number appended if
// need be, and warns of it.
Status set_folder_aside(aio::FileSystem& files, const std::string& folder);

}  // namespace sluice::engine
