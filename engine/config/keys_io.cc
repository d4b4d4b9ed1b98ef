#include "engine/config/key_sections.h"

namespace sluice::config {
namespace {

constexpr Key kKeys[] = {
    {.path = "aio.block_size",
     .field = SLUICE_FIELD(aio.block_bytes),
     .default_json = "1048576",
     .range = {.minimum = 4096, .maximum = 1 << 30},
     .unit = "bytes",
     .meaning = "largest single transfer to or from a drive"},
    {.path = "aio.queue_depth",
     .field = SLUICE_FIELD(aio.queue_depth),
     .default_json = "8",
     .range = {.minimum = 1, .maximum = 4096},
     .unit = "transfers",
     .meaning = "transfers in flight in each ring"},
    {.path = "aio.intra_op_parallelism",
     .field = SLUICE_FIELD(aio.threads),
     .default_json = "1",
     .range = {.minimum = 1, .maximum = 64},
     .unit = "threads",
     .meaning = "threads that serve the drives, each with a ring of its own"},
    {.path = "aio.thread_count",
     .treatment = Treatment::kAlias,
     .source = KeySource::kOlder,
     .alias_of = "aio.intra_op_parallelism"},
    {.path = "aio.single_submit",
     .field = SLUICE_FIELD(aio.single_submit),
     .default_json = "false",
     .meaning = "hand transfers to the kernel one at a time instead of several"},
    {.path = "aio.backend",
     .source = KeySource::kSluice,
     .field = SLUICE_FIELD(aio.backend),
     .default_json = "\"auto\"",
     .choices = "auto|uring|posix",
     .meaning = "auto takes io_uring, and threads where it is refused"},
    {.path = "aio.overlap_events",
     .treatment = Treatment::kIgnored,
     .reason = "transfers are submitted and completed at the same time, always"},
    {.path = "aio.use_gds",
     .treatment = Treatment::kIgnored,
     .reason = "drives are read into pinned memory, where the CPU updates what it read"},

    {.path = "activation_checkpointing.cpu_checkpointing",
     .field = SLUICE_FIELD(cpu_checkpointing),
     .default_json = "false",
     .meaning = "true keeps the inputs of units in RAM, as placement.boundaries_to_cpu"},
    {.path = "activation_checkpointing.partition_activations",
     .treatment = Treatment::kIgnored,
     .reason = "it divides activations among tensor-parallel ranks, and there are none"},
    {.path = "activation_checkpointing.contiguous_memory_optimization",
     .treatment = Treatment::kIgnored,
     .reason = "unit inputs lie in buffers that are taken once at the start"},
    {.path = "activation_checkpointing.number_checkpoints",
     .treatment = Treatment::kIgnored,
     .reason = "there is one input for each unit"},
    {.path = "activation_checkpointing.synchronize_checkpoint_boundary",
     .treatment = Treatment::kIgnored,
     .reason = "nothing waits for the GPU at a boundary"},
    {.path = "activation_checkpointing.profile",
     .treatment = Treatment::kIgnored,
     .reason = "the trace shows when each unit was recomputed"},
};

}  // namespace

std::span<const Key> io_keys() { return kKeys; }

}  // namespace sluice::config
