// BaseForm: how the host stores the parameters of a frozen model whose adapters are trained. They
// are in the compute type, or in 8 or 4 bits (recipe.lora.base_bits), which are expanded on their
// way. Resident units hold the expanded values, so a placement changes no bit.
//
// With several ranks at stage 3 each host stores a shard of a unit, a piece of those bytes. Units
// are gathered in the host's form. Resident units are whole on each rank.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>

#include "engine/budget/run_spec.h"
#include "engine/model/unit_layout.h"
#include "offload/element_types.h"
#include "offload/params/block_codec.h"
#include "offload/unit_shards.h"

namespace sluice::engine {

struct BaseForm {
  offload::ParamForm form = offload::ParamForm::kSplit;
  offload::BlockCodec codec = offload::BlockCodec::kNone;
  offload::RankPart ranks = {};  // the rank whose shards these are

  static BaseForm of(const RunSpec& spec) {
    return {.form = spec.types().form,
            .codec = spec.model.has_frozen() ? base_codec(spec.config) : offload::BlockCodec::kNone,
            .ranks = spec.base_ranks()};
  }
  // A base that is gathered in 8 bits is stored in 8 bits: it never changes.
  static offload::BlockCodec base_codec(const config::Config& config) {
    const offload::BlockCodec stored = config.lora.recipe().base_codec();
    return stored == offload::BlockCodec::kNone &&
                   config.communication.weights == config::SentWeights::kInt8
               ? offload::BlockCodec::kInt8
               : stored;
  }
  bool is_encoded() const { return codec != offload::BlockCodec::kNone; }
  const offload::CodecRow& row() const { return offload::row_of(codec); }

  // The next three require is_encoded().
  offload::EncodedUnit encoded(const UnitLayout& unit) const {
    std::uint64_t groups = 0;
    for_each_run(unit, [&](const offload::EncodedRun& run) { groups += groups_of(run.elements); });
    const std::uint64_t matrices = encoded_elements(unit);
    return {.codec = codec,
            .elements = matrices,
            .groups = groups,
            .plain = unit.elements - matrices,
            .plain_bytes = offload::element_bytes(offload::compute_type(form))};
  }
  // Visits a unit's runs. A parameter's first scale begins a group, as in bitsandbytes.
  template <typename Visit>
  void for_each_run(const UnitLayout& unit, const Visit& visit) const {
    const std::uint64_t end = encoded_elements(unit);
    offload::EncodedRun run;
    for (const ParameterSpec& parameter : unit.parameters) {
      const std::uint64_t first = std::min(parameter.first_element, end);
      if (row().group == 0 || first == end || groups_end_at(first - run.first)) continue;
      run.elements = first - run.first;
      visit(std::as_const(run));
      run = {.first = first, .first_group = run.first_group + groups_of(run.elements)};
    }
    run.elements = end - run.first;
    visit(std::as_const(run));
  }
  // The rest of the run from `element` on, where a group begins.
  offload::EncodedRun run_from(const UnitLayout& unit, std::uint64_t element) const {
    offload::EncodedRun rest;
    for_each_run(unit, [&](const offload::EncodedRun& run) {
      if (element < run.first || element >= run.first + run.elements) return;
      const std::uint64_t skipped = element - run.first;
      rest = {.first = element,
              .elements = run.elements - skipped,
              .first_group = run.first_group + groups_of(skipped)};
    });
    return rest;
  }
  bool is_sharded() const { return ranks.world > 1; }
  // Bytes of a unit on the host; with shards, on the hosts of all ranks together.
  std::uint64_t bytes(const UnitLayout& unit) const {
    return is_encoded() ? encoded(unit).bytes() : unpacked_bytes(unit);
  }
  // Bytes of a unit in the compute type.
  std::uint64_t unpacked_bytes(const UnitLayout& unit) const {
    return unit.elements * offload::element_bytes(offload::compute_type(form));
  }

  // Shards are counted in parameters, or in bytes if the base is encoded. host_width() is the size
  // of one element in bytes.
  std::uint64_t host_elements(const UnitLayout& unit) const {
    return is_encoded() ? encoded(unit).bytes() : unit.elements;
  }
  std::uint64_t host_width() const {
    return is_encoded() ? 1 : offload::element_bytes(offload::compute_type(form));
  }
  offload::UnitShard shard(const UnitLayout& unit) const {
    return offload::shard_of(host_elements(unit), ranks);
  }
  std::uint64_t shard_bytes(const UnitLayout& unit) const {
    return shard(unit).elements * host_width();
  }
  // Bytes of all shards with their padding.
  std::uint64_t gathered_bytes(const UnitLayout& unit) const {
    return offload::gathered_elements(host_elements(unit), ranks.world) * host_width();
  }

 private:
  static_assert(std::all_of(std::begin(offload::kCodecs), std::end(offload::kCodecs),
                            [](const offload::CodecRow& row) {
                              return kParameterAlignment % row.block == 0;
                            }));

  // Elements at the beginning of the unit: its matrices, but for those that it leaves as they are.
  std::uint64_t encoded_elements(const UnitLayout& unit) const {
    std::uint64_t matrices = unit.elements_of_group(kDecayed);
    for (const ParameterSpec& parameter : unit.parameters)
      if (parameter.keeps_precision || (row().bits < 8 && parameter.is_of_vocabulary))
        matrices = std::min(matrices, parameter.first_element);
    return matrices;
  }
  bool groups_end_at(std::uint64_t elements) const {
    return elements % (row().block * row().group) == 0;
  }
  std::uint64_t groups_of(std::uint64_t elements) const {
    const std::uint64_t each = row().block * row().group;
    return each == 0 ? 0 : (elements + each - 1) / each;
  }
};

}  // namespace sluice::engine
