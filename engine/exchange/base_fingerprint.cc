#include "engine/exchange/base_fingerprint.h"

#include "swap/sealed_json.h"

namespace sluice::engine {

std::string BaseFingerprint::text() const { return swap::to_hex(hash_.value()); }

}  // namespace sluice::engine
