// StoreManifest: the layout as text, `store.json` in the run's folder on every path. FORMAT.md
// specifies the keys.
#pragma once

#include <string>
#include <string_view>

#include "aio/io_queue.h"
#include "aio/result.h"
#include "swap/store_layout.h"

namespace sluice::swap {

struct StoreManifest {
  StoreLayout layout;
  std::size_t member;  // index of the layout's path that has this copy
};
std::string to_text(const StoreLayout& layout, std::size_t member);
// Accepts any bytes; kCorrupt or kInvalidArgument with one sentence.
Result<StoreManifest> parse_manifest(std::string_view text);

// Reads the manifest of a folder. kNotFound if there is no store.json; kCorrupt, kNewerVersion and
// read errors name the file.
Result<StoreManifest> read_manifest(aio::IoQueue& queue, const std::string& folder);

// An error if the store with this folder may be more than scratch. That is so if a part of it is
// missing, is unreadable, or has a `closed.json`, with which earlier versions marked a store as
// complete. Ok if there is no store.
Status check_is_scratch(aio::IoQueue& queue, const std::string& folder, const std::string& run);

}  // namespace sluice::swap
