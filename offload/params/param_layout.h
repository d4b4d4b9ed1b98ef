// ParamLayout: where the parameters of each unit are stored. The cpu units are stored one after
// another in one mapping. An nvme unit is a record of a state store; while it is in memory, it is
// in a buffer of its size class. A gpu unit has no place on the host. A unit without parameters is
// a cpu unit of 0 bytes.
//
// Size classes: nvme units share buffers and differ in size. From the largest down, a unit joins
// the class of the previous one unless it would leave more than a quarter of the class's buffer
// unused. A class has the requested number of buffers, or one for each of its units if it has fewer
// units. In the second case each unit is read at most once.
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

// For one unit's parameters: the bytes in the mapping (cpu), and the bytes of its record (nvme).
std::uint64_t param_mapping_bytes(std::uint64_t bytes);
std::uint64_t param_image_bytes(std::uint64_t bytes);

// The buffers of all size classes. Images are added from the largest down.
class ParamBuffers {
 public:
  explicit ParamBuffers(int buffers_of_a_class) : most_(buffers_of_a_class) {}

  // Returns whether the image begins a class.
  bool add(std::uint64_t image_bytes);
  std::uint64_t bytes() const { return bytes_; }
  int buffers() const { return buffers_; }  // in the last class

 private:
  int most_;
  int buffers_ = 0;
  std::uint64_t buffer_bytes_ = 0;  // in the last class
  std::uint64_t bytes_ = 0;
};

class ParamLayout {
 public:
  static constexpr int kNone = -1;
  static constexpr int kMinBuffers = 2;
  static constexpr int kMaxBuffers = 1 << 16;

  struct Place {
    Tier tier = Tier::kCpu;
    std::uint64_t bytes = 0;         // parameters; gpu: 0
    std::uint64_t offset_bytes = 0;  // cpu: in the mapping
    swap::RecordId record = 0;       // nvme
    std::uint64_t image_bytes = 0;   // nvme: size of the record
    int size_class = kNone;          // nvme
  };
  struct SizeClass {
    std::uint64_t buffer_bytes = 0;
    int buffers = 0;
    std::uint64_t first_offset_bytes = 0;  // the first buffer's, in the memory of all classes
  };

  // kInvalidArgument names what is wrong: no unit, an nvme unit without parameters, or a unit that
  // is too large for a record.
  static Result<ParamLayout> create(std::span<const ParamUnit> units, int element_bytes,
                                    int buffers_of_a_class);

  std::size_t units() const { return places_.size(); }
  const Place& place(int unit) const { return places_[static_cast<std::size_t>(unit)]; }
  std::span<const SizeClass> classes() const { return classes_; }
  std::span<const swap::RecordSpec> records() const { return records_; }
  std::uint64_t chunk_bytes() const { return chunk_bytes_; }    // for the store
  std::uint64_t cpu_bytes() const { return cpu_bytes_; }        // size of the mapping
  std::uint64_t buffer_bytes() const { return buffer_bytes_; }  // all classes

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
