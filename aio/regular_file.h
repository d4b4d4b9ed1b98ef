// Opens of files in a folder that somebody else may have made: what is opened is the file itself.
//
// open_itself() and make_fresh() never follow a link at the end of a path, so nobody decides by one
// what is written. open_inside() follows links that stay in the file's folder, and no others. All
// look at what they have opened, not at what had the name before. Folders on the way to the file
// may be links: they are the user's to choose.
//
// Threads: any.
// Errors:  kInvalidArgument where a link, a pipe, a folder or a device has the name; others are the
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

// `flags`: of open(), such as O_RDWR | O_CREAT. The descriptor closes when a program is executed.
// To write into a file that has other names too (hard links), it is first replaced by a copy: the
// others keep what they have.
Result<OwnedDescriptor> open_itself(const std::string& path, int flags);

// A new file at `path`, in place of whatever has the name: for files that are renamed when they are
// whole. A folder of that name is an error.
Result<OwnedDescriptor> make_fresh(const std::string& path, int flags);

// For reading.
Result<OwnedDescriptor> open_inside(const std::string& path);

}  // namespace sluice::aio
