// What a command is going to write, checked before its work begins: minutes or days later would be
// too late to learn that a folder is missing.
//
// Threads: any.
// Errors:  kInvalidArgument, kNotFound, kPermission, kReadOnly, kAlreadyExists; all name the
//          option.
#pragma once

#include <string>

#include "aio/result.h"

namespace sluice::tools {

struct OutputFile {
  std::string option;       // "--save-weights", for messages
  std::string path;         // empty: nothing is written
  bool replaces = false;    // an existing file may be replaced: --force
  std::string made_folder;  // the command makes this one itself
};

// Whether `file` can be written: its folder exists and is writable, and no other file is lost.
Status check_output_file(const OutputFile& file);

}  // namespace sluice::tools
