// Checks a command's output file before its work begins: minutes or days later would be too late to
// report a missing folder.
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
  std::string path;         // empty: no output
  bool replaces = false;    // --force: may replace an existing file
  std::string made_folder;  // a folder that the command creates itself
};

// Whether `file` can be written: its folder exists and is writable, and no other file is
// overwritten.
Status check_output_file(const OutputFile& file);

}  // namespace sluice::tools
