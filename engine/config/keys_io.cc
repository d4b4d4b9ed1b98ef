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
     .meaning = "transfers in flight per ring"},
    {.path = "aio.intra_op_parallelism",
     .field = SLUICE_FIELD(aio.threads),
     .default_json = "1",
     .range = {.minimum = 1, .maximum = 64},
     .unit = "threads",
     .meaning = "IO threads, each with its own ring"},
    {.path = "aio.thread_count",
     .treatment = Treatment::kAlias,
     .source = KeySource::kOlder,
     .alias_of = "aio.intra_op_parallelism"},
    {.path = "aio.single_submit",
     .field = SLUICE_FIELD(aio.single_submit),
     .default_json = "false",
     .meaning = "submit transfers to the kernel one at a time, not in batches"},
    {.path = "aio.backend",
     .source = KeySource::kSluice,
     .field = SLUICE_FIELD(aio.backend),
     .default_json = "\"auto\"",
     .choices = "auto|uring|posix",
     .meaning = "auto uses io_uring, or threads where the kernel refuses it"},
    {.path = "aio.overlap_events",
     .treatment = Treatment::kIgnored,
     .reason = "submission and completion always overlap"},
    {.path = "aio.use_gds",
     .treatment = Treatment::kIgnored,
     .reason = "drives are read into pinned memory, and the CPU updates the data there"},

    {.path = "activation_checkpointing.cpu_checkpointing",
     .field = SLUICE_FIELD(cpu_checkpointing),
     .default_json = "false",
     .meaning = "true keeps the inputs of units in RAM, like placement.unit_inputs_to_cpu"},
    {.path = "activation_checkpointing.partition_activations",
     .treatment = Treatment::kIgnored,
     .reason = "it divides activations among tensor-parallel ranks, which Sluice does not have"},
    {.path = "activation_checkpointing.contiguous_memory_optimization",
     .treatment = Treatment::kIgnored,
     .reason = "unit inputs are kept in buffers that are allocated once at the start"},
    {.path = "activation_checkpointing.number_checkpoints",
     .treatment = Treatment::kIgnored,
     .reason = "every unit is a checkpoint, and its input is kept"},
    {.path = "activation_checkpointing.synchronize_checkpoint_boundary",
     .treatment = Treatment::kIgnored,
     .reason = "no synchronisation is needed at a checkpoint"},
    {.path = "activation_checkpointing.profile",
     .treatment = Treatment::kIgnored,
     .reason = "a trace of the run shows when each unit is recomputed"},
};

}  // namespace

std::span<const Key> io_keys() { return kKeys; }

}  // namespace sluice::config
