// StoreManifest: the layout as text, `store.json` in the run's folder on every path. FORMAT.md has
// the keys.
#pragma once

#include <string>
#include <string_view>

#include "aio/io_queue.h"
#include "aio/result.h"
#include "swap/store_layout.h"

namespace sluice::swap {

struct StoreManifest {
  StoreLayout layout;
  std::size_t member;  // which of the layout's paths this copy lies on
};
std::string to_text(const StoreLayout& layout, std::size_t member);
// kCorrupt or kInvalidArgument in one sentence, for any bytes.
Result<StoreManifest> parse_manifest(std::string_view text);

// Of a folder. kNotFound where there is no store.json; kCorrupt, kNewerVersion and the errors of
// reading name the file.
Result<StoreManifest> read_manifest(aio::IoQueue& queue, const std::string& folder);

// An error where the store of which a run's folder is a part may be more than scratch: a part of it
// is missing or cannot be read, or has a `closed.json`, the mark with which earlier versions could
// say that a store is whole. Ok where there is no store.
Status check_is_scratch(aio::IoQueue& queue, const std::string& folder, const std::string& run);

}  // namespace sluice::swap
