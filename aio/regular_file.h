// Opens files in a folder that another user may have created: the file opened is always the file
// itself.
//
// open_itself() and make_fresh() never follow a link at the end of a path. So no other user can
// redirect a write with one. open_inside() follows links that stay in the file's folder, and no
// others. All check the file that they have opened, not the name beforehand. Folders on the way to
// the file may be links: they are the user's choice.
//
// Threads: any.
// Errors:  kInvalidArgument if the name is a link, a pipe, a folder or a device; others are the
//          kernel's.
#pragma once

#include <string>
#include <utility>

#include "aio/result.h"

namespace sluice::aio {

class OwnedDescriptor {
 public:
  explicit OwnedDescriptor(int descriptor) : descriptor_(descriptor) {}
  OwnedDescriptor(OwnedDescriptor&& from) noexcept : descriptor_(from.hand_on()) {}
  OwnedDescriptor& operator=(OwnedDescriptor&& from) noexcept {
    std::swap(descriptor_, from.descriptor_);
    return *this;
  }
  ~OwnedDescriptor();

  int get() const { return descriptor_; }
  int hand_on() { return std::exchange(descriptor_, -1); }

 private:
  int descriptor_;
};

// `flags`: for open(), such as O_RDWR | O_CREAT. The descriptor is closed on exec. A file with
// other names (hard links) is replaced by a copy before it is opened for writing: the other names
// keep their content.
Result<OwnedDescriptor> open_itself(const std::string& path, int flags);

// Creates a new file at `path`, replacing any file of that name: for files that are renamed once
// they are complete. A folder of that name is an error.
Result<OwnedDescriptor> make_fresh(const std::string& path, int flags);

// Opens for reading.
Result<OwnedDescriptor> open_inside(const std::string& path);

}  // namespace sluice::aio
