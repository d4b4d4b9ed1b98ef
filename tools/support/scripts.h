// The Python programs of tools/.
#pragma once

#include <string>
#include <string_view>

#include "aio/result.h"

namespace sluice::tools {

// The path of a script of tools/, such as "prepare". It is in the source folder that this program
// or Python module was built in, or among what was installed with it. kNotFound says what to do.
Result<std::string> find_script(std::string_view name);

}  // namespace sluice::tools
