// Converts JSON values to the fields of Config and back, with DeepSpeed's tolerances: true as
// "true", 500000000 as 5e8 or "5e8". Private to this folder.
#pragma once

#include <optional>

#include "aio/result.h"
#include "engine/config/json_text.h"
#include "engine/config/key_table.h"

namespace sluice::config {

// The error is a sentence that begins with the key's path.
Status store_value(const Key& key, const Json& value, Config& config);

// What store_value() would make the field's value from; null where it is unset. Nothing is written:
// an accessor merely yields a place that could be.
Json load_value(const Key& key, Config& config);

// true, "true", "True", "yes", "on", 1, "1" and their opposites; empty for anything else.
std::optional<bool> as_boolean(const Json& value);

}  // namespace sluice::config
