#include "aio/copy_on_write.h"

#include <linux/fs.h>
#include <sys/ioctl.h>

namespace sluice::aio {

bool set_overwritten_in_place(int descriptor) {
  int flags = 0;
  if (::ioctl(descriptor, FS_IOC_GETFLAGS, &flags) != 0) return false;
  if ((flags & FS_NOCOW_FL) != 0) return true;
  const int wanted = flags | FS_NOCOW_FL;
  if (::ioctl(descriptor, FS_IOC_SETFLAGS, &wanted) != 0) return false;
  // Some file systems accept the flag and do not keep it.
  return ::ioctl(descriptor, FS_IOC_GETFLAGS, &flags) == 0 && (flags & FS_NOCOW_FL) != 0;
}

}  // namespace sluice::aio
