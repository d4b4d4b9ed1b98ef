// StripedFile: one range of bytes over several paths (several drives), as in RAID 0.
//
// The range is cut into stripes of stripe_bytes. They are distributed to the paths in a fixed cycle
// in which path i appears weights[i] times, spread evenly (smooth weighted round-robin). So a drive
// of twice the speed gets twice the bytes, and a long request keeps every drive busy. A request
// accesses each file in ascending, contiguous runs.
//
// Threads and errors: as for DirectFile, except that padding stays. With one path, any weight gives
// the behaviour of a DirectFile.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "aio/direct_file.h"
#include "aio/io_target.h"

namespace sluice::aio {

class StripedFile final : public IoTarget {
 public:
  struct Options {
    std::uint64_t stripe_bytes = 1 << 20;  // a multiple of 4096
    std::vector<int> weights;              // one per path, 1 .. kMaxWeight; empty: equal
    DirectFile::Options file;              // size_bytes: the whole range
  };
  static constexpr int kMaxWeight = 64;

  // The file of path i is paths[i]; paths and options are as for DirectFile::open. To open an
  // existing set, pass the paths, stripe and weights of its creation, and its total size.
  static Result<std::unique_ptr<StripedFile>> open(IoQueue& queue,
                                                   const std::vector<std::string>& paths,
                                                   const Options& options);

  // Small integer weights for measured speeds (any unit): ratios within about 5%, the slowest gets
  // at least 1.
  static std::vector<int> weights_from_speeds(std::span<const double> speeds);

  // The bytes of a range in each of the files, as open() creates them: whole sectors, at least one.
  // Weights, stripe and size are the same as for open().
  static std::vector<std::uint64_t> bytes_of_files(std::uint64_t size_bytes,
                                                   std::uint64_t stripe_bytes,
                                                   const std::vector<int>& weights);

  const std::string& path() const override { return name_; }
  std::uint64_t size_bytes() const override { return size_bytes_; }
  Extent locate(std::uint64_t offset_bytes, std::uint64_t max_length_bytes) const override;
  std::span<File* const> files() const override { return raw_files_; }

  bool direct() const;

 private:
  // One turn of the cycle: its file, and the number of stripes of that file before it in the cycle.
  struct Turn {
    int file;
    std::uint64_t stripes_before;
  };

  StripedFile() = default;

  std::string name_;
  std::uint64_t size_bytes_ = 0;
  std::uint64_t stripe_bytes_ = 0;
  std::vector<Turn> cycle_;
  std::vector<std::uint64_t> stripes_per_cycle_;  // by file
  std::vector<std::unique_ptr<DirectFile>> files_;
  std::vector<File*> raw_files_;
  std::vector<std::uint64_t> file_bytes_;  // bytes of the range in each file
};

}  // namespace sluice::aio
