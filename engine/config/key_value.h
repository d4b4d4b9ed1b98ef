// Converts between JSON values and the fields of Config, with DeepSpeed's tolerances: true as
// "true", 500000000 as 5e8 or "5e8". Private to this folder.
#pragma once

#include <optional>

#include "aio/result.h"
#include "engine/config/json_text.h"
#include "engine/config/key_table.h"

namespace sluice::config {

// The error is a sentence that begins with the key's path.
Status store_value(const Key& key, const Json& value, Config& config);

// The value that store_value() would turn into the field's value; null if the field is unset. Does
// not modify `config`, which accessors take as non-const.
Json load_value(const Key& key, Config& config);

// true, "true", "True", "yes", "on", 1, "1" and their opposites; empty for any other value.
std::optional<bool> as_boolean(const Json& value);

}  // namespace sluice::config
