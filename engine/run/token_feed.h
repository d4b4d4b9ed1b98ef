// TokenFeed: next-token prediction with the parameters that a run has, whatever tier they are on:
// they go unit by unit through the compute device, one pass for each call. The keys and values of
// earlier tokens stay on the device.
//
// The model sees generation_context() tokens. When these are full, the last half of them is fed
// again, with the new token, as if the text began there. Where keys change as a text grows beyond a
// length, all of it is fed again at that point.
//
// Memory:  KvCache's, allocated once, and the working memory of a pass over one text.
// Threads: one; all ranks feed the same tokens at the same point in their sequence of collectives.
// Errors:  thrown, as Trainer does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/budget/memory_plan.h"
#include "engine/config/config.h"
#include "engine/model/kv_cache.h"
#include "engine/model/model.h"
#include "engine/runtime/resources.h"

namespace sluice::engine {

class TokenFeed {
 public:
  // `model` and `parts` must outlive it.
  TokenFeed(const config::Config& config, const MemoryPlan& plan, const Model& model,
            Resources& parts);

  // Feeds the next tokens of a text, at least one. Returns the logits of the token that follows. If
  // there are more tokens than the model sees, only the last ones are fed. No update of the
  // parameters may be in progress.
  std::vector<float> feed(std::span<const std::int64_t> tokens);
  // The next tokens begin another text.
  void restart();
  // The next tokens belong to this text. Returns how many of its first tokens are already in the
  // cache and must not be fed again; at least one remains. The parameters are those of the text
  // before.
  std::size_t restart_with(std::span<const std::int64_t> text);

 private:
  std::vector<float> pass(std::span<const std::int64_t> tokens);
  bool keys_depend_on_length(std::int64_t tokens) const;
  // Whether texts of so many tokens have different keys; see ModelUnit::keys_change_beyond().
  bool keys_change_between(std::size_t some, std::size_t others) const;

  const Model& model_;
  Resources& parts_;
  const at::Device device_;
  KvCache cache_;
  std::vector<std::int64_t> seen_;  // the tokens in the cache
};

}  // namespace sluice::engine
