#include "engine/budget/stripe_plan.h"

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <system_error>

#include "aio/striped_file.h"

namespace sluice::engine {

std::string from_the_root(const std::string& path) {
  std::error_code error;
  std::string whole = std::filesystem::absolute(path, error).lexically_normal().string();
  if (error || path.empty()) return path;
  while (whole.size() > 1 && whole.back() == '/') whole.pop_back();
  return whole;
}

std::string store_name(const config::Config& config, const std::string& what,
                       const offload::RankPart& ranks) {
  const std::string folder = from_the_root(config.run.dir);
  std::string name;
  for (const char letter : folder) {
    const bool plain = (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') ||
                       (letter >= '0' && letter <= '9') || letter == '-' || letter == '_';
    name += plain ? letter : '-';
  }
  // The end of a path is more telling than its beginning.
  constexpr std::size_t kMostOfThePath = 28;
  if (name.size() > kMostOfThePath) name = name.substr(name.size() - kMostOfThePath);
  std::uint64_t hash = 1469598103934665603U;
  for (const char letter : folder)
    hash = (hash ^ static_cast<unsigned char>(letter)) * 1099511628211U;
  return "run" + name + "-" + std::to_string(hash % 1'000'000'000) + "-" + what +
         (ranks.world > 1 ? "-r" + std::to_string(ranks.rank) : "");
}

std::vector<int> stripe_weights(const config::Config& config, const std::vector<int>& chosen) {
  // DeepSpeed's keys name a single path for each store.
  if (config.budget.nvme_paths.size() < 2) return {};
  return config.placement.nvme_weights.value_or(chosen);
}

std::vector<PathBytes> bytes_on_paths(const swap::StateStore::Options& store, std::uint64_t bytes) {
  if (bytes == 0) return {};
  const std::vector<int> weights =
      store.weights.empty() ? std::vector<int>(store.paths.size(), 1) : store.weights;
  const auto of_files = aio::StripedFile::bytes_of_files(bytes, store.stripe_bytes, weights);
  std::vector<PathBytes> paths;
  paths.reserve(of_files.size());
  for (std::size_t i = 0; i < of_files.size(); ++i) paths.push_back({store.paths[i], of_files[i]});
  return paths;
}

void add_on_paths(const std::vector<PathBytes>& more, std::vector<PathBytes>& all) {
  for (const PathBytes& on_path : more) {
    const auto known = std::find_if(all.begin(), all.end(),
                                    [&](const PathBytes& it) { return it.path == on_path.path; });
    if (known != all.end())
      known->bytes += on_path.bytes;
    else
      all.push_back(on_path);
  }
}

}  // namespace sluice::engine
