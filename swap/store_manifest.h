// StoreManifest: the layout as text, `store.json` in the run's folder on every path, and the mark
// of a store that was closed, `closed.json` beside it. FORMAT.md has the keys.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

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

struct ClosedMark {
  std::uint64_t store_id = 0;
  std::vector<std::uint64_t> generations;  // of each record
  std::string note;                        // the user's
};
std::string to_text(const ClosedMark& mark);
Result<ClosedMark> parse_closed_mark(std::string_view text);

// Of a folder. kNotFound where there is no store.json; kCorrupt, kNewerVersion and the errors of
// reading name the file.
Result<StoreManifest> read_manifest(aio::IoQueue& queue, const std::string& folder);
// Nothing where there is no closed.json.
Result<std::optional<ClosedMark>> read_mark(aio::IoQueue& queue, const std::string& folder);

// Whether the store of which a run's folder is a part was closed, on any of its paths: one mark
// makes it whole. An error where that cannot be known; false where there is no store.
Result<bool> is_closed(aio::IoQueue& queue, const std::string& folder, const std::string& run);

}  // namespace sluice::swap
