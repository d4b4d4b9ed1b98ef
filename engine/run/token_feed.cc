#include "engine/run/token_feed.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <utility>

#include "engine/budget/configured_model.h"
#include "engine/device/host.h"
#include "engine/model/torch_types.h"
#include "engine/runtime/evaluation_pass.h"

namespace sluice::engine {
namespace {

// Passes over the tokens that follow those in the cache. Gives the logits of the last one.
class ExtendingPasses final : public Passes {
 public:
  ExtendingPasses(const Model& model, KvCache& cache, std::span<const std::int64_t> tokens,
                  const at::Device& device)
      : model_(model), cache_(cache) {
    std::vector<std::int64_t> ids(tokens.begin(), tokens.end());
    const auto count = static_cast<std::int64_t>(ids.size());
    flow_ = at::from_blob(ids.data(), {1, count}, at::kLong).to(device).clone();
  }

  void forward(int unit, const UnitViews& views) override {
    flow_ = model_.unit(unit).extend(views, flow_, cache_);
  }
  void head(int /*unit*/, const UnitViews& views) override {
    const at::Tensor logits = model_.head().logits(views, flow_, 1);
    logits_ = logits.flatten().to(at::kCPU, at::kFloat).contiguous();
  }
  const at::Tensor& logits() const { return logits_; }

 private:
  const Model& model_;
  KvCache& cache_;
  at::Tensor flow_;
  at::Tensor logits_;
};

}  // namespace

TokenFeed::TokenFeed(const config::Config& config, const MemoryPlan& plan, const Model& model,
                     Resources& parts)
    : model_(model),
      parts_(parts),
      device_(compute_device(plan)),
      cache_(model.layout(), generation_context(config),
             at::TensorOptions()
                 .dtype(scalar_type(offload::compute_type(plan.types.form)))
                 .device(device_)) {}

std::vector<float> TokenFeed::feed(std::span<const std::int64_t> tokens) {
  const auto capacity = static_cast<std::size_t>(cache_.capacity());
  const std::size_t together = seen_.size() + tokens.size();
  const bool fits = together <= capacity;
  if (fits && (seen_.empty() || !keys_change_between(seen_.size(), together))) {
    std::vector<float> logits = pass(tokens);
    seen_.insert(seen_.end(), tokens.begin(), tokens.end());
    return logits;
  }
  std::vector<std::int64_t> all = std::exchange(seen_, {});
  const bool slides = !all.empty();
  all.insert(all.end(), tokens.begin(), tokens.end());
  const std::size_t kept = fits     ? together
                           : slides ? std::max<std::size_t>(capacity / 2, 1)
                                    : capacity;
  all.erase(all.begin(), all.end() - static_cast<std::ptrdiff_t>(kept));
  cache_.truncate(0);
  std::vector<float> logits = pass(all);
  seen_ = std::move(all);
  return logits;
}

void TokenFeed::restart() {
  seen_.clear();
  cache_.truncate(0);
}

std::size_t TokenFeed::restart_with(std::span<const std::int64_t> text) {
  const std::size_t longer = std::max(seen_.size(), text.size());
  const bool is_usable = text.size() <= static_cast<std::size_t>(cache_.capacity()) &&
                         !keys_depend_on_length(static_cast<std::int64_t>(longer));
  const std::size_t most = is_usable && !text.empty() ? std::min(seen_.size(), text.size() - 1) : 0;
  const auto end = seen_.begin() + static_cast<std::ptrdiff_t>(most);
  const std::size_t had = seen_.size();
  seen_.erase(std::mismatch(seen_.begin(), end, text.begin()).first, seen_.end());
  if (keys_change_between(had, text.size()) || keys_change_between(seen_.size(), had))
    seen_.clear();
  cache_.truncate(static_cast<std::int64_t>(seen_.size()));
  seen_.resize(static_cast<std::size_t>(cache_.length()));
  return seen_.size();
}

bool TokenFeed::keys_depend_on_length(std::int64_t tokens) const {
  for (int unit = 0; unit < model_.layout().head(); ++unit)
    if (model_.unit(unit).keys_depend_on_length(tokens)) return true;
  return false;
}

bool TokenFeed::keys_change_between(std::size_t some, std::size_t others) const {
  for (int unit = 0; unit < model_.layout().head(); ++unit) {
    const auto last = static_cast<std::size_t>(model_.unit(unit).keys_change_beyond());
    if (last > 0 && (some <= last) != (others <= last)) return true;
  }
  return false;
}

std::vector<float> TokenFeed::pass(std::span<const std::int64_t> tokens) {
  ExtendingPasses passes(model_, cache_, tokens, device_);
  run_forward(parts_, passes);
  cache_.advance(static_cast<std::int64_t>(tokens.size()));
  const at::Tensor& numbers = passes.logits();
  const auto* const first = numbers.const_data_ptr<float>();
  return {first, first + numbers.numel()};
}

}  // namespace sluice::engine
