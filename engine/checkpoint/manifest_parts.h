// The part of checkpoint.json that says which elements of the state are where, for a checkpoint in
// parts: `tensors`, `pieces` and `store`.
//
// Threads: pure functions.
// Errors:  kCorrupt with one sentence; a value of the wrong type throws json::exception.
#pragma once

#include <nlohmann/json.hpp>

#include "aio/result.h"
#include "engine/checkpoint/checkpoint_manifest.h"

namespace sluice::engine {

// Adds the keys to `content`.
void parts_to_json(const CheckpointManifest& manifest, nlohmann::json& content);
// Reads the keys that `content` has.
Status parts_from_json(const nlohmann::json& content, CheckpointManifest& manifest);
// Checks that files and records together have every element of the state exactly once.
Status check_parts(const CheckpointManifest& manifest);

}  // namespace sluice::engine
