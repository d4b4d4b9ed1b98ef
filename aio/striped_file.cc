#include "aio/striped_file.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "aio/units.h"

namespace sluice::aio {
namespace {

Status check(const std::vector<std::string>& paths, const StripedFile::Options& options) {
  const auto reject = [](const std::string& what) {
    return Status(Error(ErrorCode::kInvalidArgument, what));
  };
  if (paths.empty()) return reject("a striped file needs at least one path");
  if (!options.weights.empty() && options.weights.size() != paths.size()) {
    return reject(std::to_string(paths.size()) + " paths need as many weights, not " +
                  std::to_string(options.weights.size()));
  }
  for (const int weight : options.weights) {
    if (weight < 1 || weight > StripedFile::kMaxWeight) {
      return reject("a stripe weight must be 1 to " + std::to_string(StripedFile::kMaxWeight) +
                    ", not " + std::to_string(weight));
    }
  }
  if (options.stripe_bytes == 0 || options.stripe_bytes % 4096 != 0) {
    return reject("the stripe size must be a multiple of 4096, not " +
                  std::to_string(options.stripe_bytes));
  }
  if (options.file.size_bytes == 0) return reject("a striped file needs its total size");
  for (std::size_t i = 0; i < paths.size(); ++i) {
    const bool anonymous = options.file.open.create == OpenOptions::Create::kAnonymous;
    if (!anonymous && std::count(paths.begin(), paths.end(), paths[i]) > 1) {
      return reject(paths[i] + " is given twice");
    }
  }
  return {};
}

// Smooth weighted round-robin: in each turn every file gains its weight as credit, and the file
// with the most credit is chosen and pays the total. Over one cycle file i is chosen weights[i]
// times, spread as evenly as possible.
std::vector<int> deal_cycle(const std::vector<int>& weights) {
  const int total = std::accumulate(weights.begin(), weights.end(), 0);
  std::vector<int> credit(weights.size(), 0);
  std::vector<int> order;
  for (int turn = 0; turn < total; ++turn) {
    for (std::size_t i = 0; i < weights.size(); ++i) credit[i] += weights[i];
    const auto richest = std::max_element(credit.begin(), credit.end());
    *richest -= total;
    order.push_back(static_cast<int>(richest - credit.begin()));
  }
  return order;
}

}  // namespace

std::vector<int> StripedFile::weights_from_speeds(std::span<const double> speeds) {
  const double slowest = speeds.empty() ? 0 : *std::min_element(speeds.begin(), speeds.end());
  if (!(slowest > 0)) return std::vector<int>(speeds.size(), 1);
  std::vector<int> best(speeds.size(), 1);
  double best_error = INFINITY;
  // The smallest multiple of the slowest that brings every ratio within 5%, else the closest one
  // found.
  for (int unit = 1; unit <= 10; ++unit) {
    std::vector<int> weights;
    double error = 0;
    for (const double speed : speeds) {
      const double exact = speed / slowest * unit;
      const int weight = std::clamp(static_cast<int>(std::lround(exact)), 1, kMaxWeight);
      weights.push_back(weight);
      error = std::max(error, std::abs(weight / exact - 1));
    }
    if (error < best_error) {
      best_error = error;
      best = weights;
    }
    if (best_error <= 0.05) break;
  }
  int divisor = 0;
  for (const int weight : best) divisor = std::gcd(divisor, weight);
  for (int& weight : best) weight /= divisor;
  return best;
}

std::vector<std::uint64_t> StripedFile::bytes_of_files(std::uint64_t size_bytes,
                                                       std::uint64_t stripe_bytes,
                                                       const std::vector<int>& weights) {
  const std::vector<int> cycle = deal_cycle(weights);
  const std::uint64_t stripes = (size_bytes - 1) / stripe_bytes + 1;
  const std::uint64_t cycles = stripes / cycle.size();
  const std::uint64_t extra = stripes % cycle.size();
  std::vector<std::uint64_t> bytes;
  bytes.reserve(weights.size());
  for (const int weight : weights)
    bytes.push_back(cycles * static_cast<std::uint64_t>(weight) * stripe_bytes);
  for (std::uint64_t turn = 0; turn < extra; ++turn)
    bytes[static_cast<std::size_t>(cycle[turn])] += stripe_bytes;
  // A shortened last stripe is rounded up to sectors.
  const std::uint64_t last_stripe = size_bytes - (stripes - 1) * stripe_bytes;
  bytes[static_cast<std::size_t>(cycle[(stripes - 1) % cycle.size()])] -=
      stripe_bytes - align_up(last_stripe, 4096);
  // A range of less than one cycle leaves files without a stripe; they still get one sector.
  for (std::uint64_t& each : bytes) each = std::max<std::uint64_t>(each, 4096);
  return bytes;
}

Result<std::unique_ptr<StripedFile>> StripedFile::open(IoQueue& queue,
                                                       const std::vector<std::string>& paths,
                                                       const Options& options) {
  SLUICE_RETURN_IF_ERROR(check(paths, options));
  std::unique_ptr<StripedFile> striped(new StripedFile);
  const std::vector<int> weights =
      options.weights.empty() ? std::vector<int>(paths.size(), 1) : options.weights;
  striped->size_bytes_ = options.file.size_bytes;
  striped->stripe_bytes_ = options.stripe_bytes;
  striped->stripes_per_cycle_.assign(paths.size(), 0);
  for (const int file : deal_cycle(weights)) {
    striped->cycle_.push_back(
        {file, striped->stripes_per_cycle_[static_cast<std::size_t>(file)]++});
  }
  for (const std::string& path : paths) {
    striped->name_ += (striped->name_.empty() ? "" : "+") + path;
  }

  striped->file_bytes_ = bytes_of_files(striped->size_bytes_, options.stripe_bytes, weights);

  const bool exists = options.file.open.create == OpenOptions::Create::kMustExist;
  for (std::size_t i = 0; i < paths.size(); ++i) {
    DirectFile::Options file_options = options.file;
    file_options.size_bytes = exists ? 0 : striped->file_bytes_[i];
    auto file = DirectFile::open(queue, paths[i], file_options);
    if (!file.ok()) {
      // Remove the files of a set that was not completed.
      const bool made_here = options.file.open.create == OpenOptions::Create::kMustNotExist;
      striped->files_.clear();
      for (std::size_t made = 0; made_here && made < i; ++made) {
        static_cast<void>(queue.backend().files().remove(paths[made]));
      }
      return std::move(file).error();
    }
    if ((*file)->size_bytes() < striped->file_bytes_[i]) {
      return Error(ErrorCode::kCorrupt,
                   paths[i] + " has " + std::to_string((*file)->size_bytes()) +
                       " bytes, but should have " + std::to_string(striped->file_bytes_[i]) +
                       ": it belongs to another striped set, or was truncated");
    }
    striped->raw_files_.push_back(&(*file)->file());
    striped->files_.push_back(std::move(*file));
  }
  return striped;
}

Extent StripedFile::locate(std::uint64_t offset_bytes, std::uint64_t max_length_bytes) const {
  const std::uint64_t stripe = offset_bytes / stripe_bytes_;
  const std::uint64_t into_stripe = offset_bytes % stripe_bytes_;
  const Turn& turn = cycle_[stripe % cycle_.size()];
  const auto file = static_cast<std::size_t>(turn.file);
  const std::uint64_t file_stripe =
      stripe / cycle_.size() * stripes_per_cycle_[file] + turn.stripes_before;
  return {.file = raw_files_[file],
          .offset_bytes = file_stripe * stripe_bytes_ + into_stripe,
          .length_bytes = std::min(max_length_bytes, stripe_bytes_ - into_stripe),
          .file_end_bytes = file_bytes_[file]};
}

bool StripedFile::direct() const {
  return std::all_of(files_.begin(), files_.end(), [](const auto& file) { return file->direct(); });
}

}  // namespace sluice::aio
