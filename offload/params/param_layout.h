// ParamLayout: where the parameters of each unit lie. Those of cpu units in one mapping,
// consecutively; those of an nvme unit in a record of a state store and, while they are in memory,
// in a buffer of the unit's size class. Those of a gpu unit have no place on the host. A unit
// without parameters is a cpu unit, of no bytes.
//
// Size classes: nvme units share buffers, and differ in size. From the largest down, a unit joins
// the class of the previous one unless it would leave more than a quarter of the class's buffer
// unused. A class has as many buffers as asked for, or one for each of its units when those are
// fewer: then each unit is read at most once.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "aio/result.h"
#include "offload/sub_groups.h"
#include "swap/state_store.h"

namespace sluice::offload {

struct ParamUnit {
  std::string name;
  std::uint64_t elements = 0;
  Tier tier = Tier::kCpu;
};

// Of one unit's parameters: what a cpu unit takes of the mapping, and an nvme unit's record.
std::uint64_t param_mapping_bytes(std::uint64_t bytes);
std::uint64_t param_image_bytes(std::uint64_t bytes);

// The buffers of all size classes, as images are added from the largest down.
class ParamBuffers {
 public:
  explicit ParamBuffers(int buffers_of_a_class) : most_(buffers_of_a_class) {}

  // Whether it begins a class.
  bool add(std::uint64_t image_bytes);
  std::uint64_t bytes() const { return bytes_; }
  int buffers() const { return buffers_; }  // of the last class

 private:
  int most_;
  int buffers_ = 0;
  std::uint64_t buffer_bytes_ = 0;  // likewise
  std::uint64_t bytes_ = 0;
};

class ParamLayout {
 public:
  static constexpr int kNone = -1;
  static constexpr int kMinBuffers = 2;
  static constexpr int kMaxBuffers = 1 << 16;

  struct Place {
    Tier tier = Tier::kCpu;
    std::uint64_t bytes = 0;         // of its parameters; gpu: 0
    std::uint64_t offset_bytes = 0;  // cpu: in the mapping
    swap::RecordId record = 0;       // nvme
    std::uint64_t image_bytes = 0;   // nvme: of the record
    int size_class = kNone;          // nvme
  };
  struct SizeClass {
    std::uint64_t buffer_bytes = 0;
    int buffers = 0;
    std::uint64_t first_offset_bytes = 0;  // of its first buffer, in the memory of all classes
  };

  // kInvalidArgument names what makes no sense: no unit, one without parameters on NVMe, one that
  // is too large for a record.
  static Result<ParamLayout> create(std::span<const ParamUnit> units, int element_bytes,
                                    int buffers_of_a_class);

  std::size_t units() const { return places_.size(); }
  const Place& place(int unit) const { return places_[static_cast<std::size_t>(unit)]; }
  std::span<const SizeClass> classes() const { return classes_; }
  std::span<const swap::RecordSpec> records() const { return records_; }
  std::uint64_t chunk_bytes() const { return chunk_bytes_; }    // of the store
  std::uint64_t cpu_bytes() const { return cpu_bytes_; }        // of the mapping
  std::uint64_t buffer_bytes() const { return buffer_bytes_; }  // of all classes

 private:
  ParamLayout() = default;
  void place_in_classes(int buffers_of_a_class);

  std::vector<Place> places_;
  std::vector<SizeClass> classes_;
  std::vector<swap::RecordSpec> records_;
  std::uint64_t chunk_bytes_ = 0;
  std::uint64_t cpu_bytes_ = 0;
  std::uint64_t buffer_bytes_ = 0;
};

}  // namespace sluice::offload
