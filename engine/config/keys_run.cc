#include <array>

#include "aio/striped_file.h"
#include "engine/config/key_sections.h"

namespace sluice::config {
namespace {

constexpr Range kShape = {.minimum = 1, .maximum = 1 << 24};
constexpr Range kGib = {.minimum = 0, .maximum = 1 << 30};

constexpr Key kRows[] = {
    {.path = "data.train",
     .field = SLUICE_FIELD(data.train),
     .default_json = "[]",
     .meaning = "token files (.bin) to train on: a path or a list. Relative paths start at the "
                "working folder; the DIR/config.json that a run writes has absolute ones"},
    {.path = "data.validation",
     .field = SLUICE_FIELD(data.validation),
     .default_json = "[]",
     .meaning =
         "token files to evaluate on; empty: data.validation_fraction of data.train is used"},
    {.path = "data.dtype",
     .field = SLUICE_FIELD(data.token_type),
     .default_json = "\"auto\"",
     .choices = "auto|uint16|uint32",
     .meaning =
         "type of the tokens in the files; auto reads it from the file's header, or takes uint16"},
    {.path = "data.sequence_length",
     .field = SLUICE_FIELD(data.sequence_tokens),
     .default_json = "\"auto\"",
     .range = kShape,
     .unit = "tokens",
     .auto_rule = "model.context, but at most 4096 if that comes from a preset or model.path",
     .meaning = "tokens per sequence, at most model.context"},
    {.path = "data.validation_fraction",
     .field = SLUICE_FIELD(data.validation_fraction),
     .default_json = "0.05",
     .range = {.minimum = 0, .maximum = 0.9},
     .meaning = "share of data.train, at its end, that is kept for evaluation if data.validation "
                "is not given"},
    {.path = "data.long_documents",
     .field = SLUICE_FIELD(data.long_documents),
     .default_json = "\"cut\"",
     .choices = "cut|drop|split",
     .meaning = "what happens to documents longer than a sequence, in files that contain documents "
                "(tools/prepare --chat): cut keeps their beginning, drop leaves them out, split "
                "trains on their parts"},
    {.path = "data.shuffle_seed",
     .field = SLUICE_FIELD(data.shuffle_seed),
     .default_json = "\"auto\"",
     .range = kNotNegative,
     .auto_rule = "run.seed",
     .meaning = "seed of the order of the sequences"},

    {.path = "run.dir",
     .field = SLUICE_FIELD(run.dir),
     .default_json = "\"\"",
     .meaning = "folder for metrics, checkpoints, weights and the tokenizer. It is empty in the "
                "DIR/config.json that a run writes: the run is the folder of that file"},
    {.path = "run.steps",
     .field = SLUICE_FIELD(run.steps),
     .default_json = "1000",
     .range = kPositive,
     .unit = "steps",
     .auto_rule = "computed from run.epochs if that is given",
     .meaning = "optimizer steps of the whole run"},
    {.path = "run.epochs",
     .field = SLUICE_FIELD(run.epochs),
     .range = {.minimum = 1e-6, .maximum = 1e9},
     .unit = "epochs",
     .meaning = "length of the whole run in epochs (passes over the training data), instead of "
                "run.steps; fractions are allowed"},
    {.path = "run.seed",
     .field = SLUICE_FIELD(run.seed),
     .default_json = "1234",
     .range = kNotNegative,
     .meaning =
         "seed of dropout, and of the weights and the order of data unless these have their own"},
    {.path = "run.deterministic",
     .field = SLUICE_FIELD(run.deterministic),
     .default_json = "false",
     .meaning = "use only kernels that give the same bits in every run; slower on a GPU"},
    {.path = "run.cpu_threads",
     .field = SLUICE_FIELD(run.cpu_threads),
     .default_json = "0",
     .range = {.minimum = 0, .maximum = 4096},
     .unit = "threads",
     .meaning = "CPU threads for compute and updates; 0: one for each core that the CPU affinity "
                "and the container's quota allow"},
    {.path = "run.lanes",
     .field = SLUICE_FIELD(run.lanes),
     .default_json = "1",
     .range = {.minimum = 1, .maximum = 4096},
     .unit = "lanes",
     .meaning = "number of consecutive parts in which a step's gradients are accumulated before "
                "the parts are added together; changes the last bits. One GPU with N lanes gives "
                "the same bits as N GPUs"},
    {.path = "run.rounds",
     .field = SLUICE_FIELD(run.rounds),
     .default_json = "1",
     .range = {.minimum = 1, .maximum = 4096},
     .unit = "rounds",
     .meaning = "number of consecutive parts that a step is divided into before each is divided "
                "into lanes; changes the last bits"},
    {.path = "run.device",
     .field = SLUICE_FIELD(run.device),
     .default_json = "\"auto\"",
     .choices = "auto|cpu|cuda",
     .meaning = "device that computes forward and backward; auto uses a GPU if there is one"},
    {.path = "run.eval_every",
     .field = SLUICE_FIELD(run.eval_every_steps),
     .default_json = "0",
     .range = kNotNegative,
     .unit = "steps",
     .meaning = "steps between evaluations; 0 evaluates only at the end"},
    {.path = "run.eval_batches",
     .field = SLUICE_FIELD(run.eval_batches),
     .default_json = "20",
     .range = kPositive,
     .unit = "micro-batches",
     .meaning = "largest number of micro-batches in an evaluation"},
    {.path = "run.log_every",
     .field = SLUICE_FIELD(run.log_every_steps),
     .default_json = "\"auto\"",
     .range = kPositive,
     .unit = "steps",
     .auto_rule = "steps_per_print",
     .meaning = "steps between lines of progress; on a terminal a status line below them is "
                "updated in place"},
    {.path = "run.log_part_mib",
     .field = SLUICE_FIELD(run.log_part_mib),
     .default_json = "0.0",
     .range = {.minimum = 0, .maximum = 1 << 20},
     .unit = "MiB",
     .meaning = "size at which metrics.jsonl or events.jsonl is renamed to .1 (an older .1 to .2, "
                "and so on) and started anew; all parts are read together; 0: never"},
    {.path = "run.checkpoint_every",
     .field = SLUICE_FIELD(run.checkpoint_every_steps),
     .default_json = "0",
     .range = kNotNegative,
     .unit = "steps",
     .meaning = "steps between checkpoints; 0 does not save by steps"},
    {.path = "run.checkpoint_minutes",
     .field = SLUICE_FIELD(run.checkpoint_minutes),
     .range = {.minimum = 0, .maximum = 1e6},
     .unit = "minutes",
     .meaning = "time since the last checkpoint after which another is written; 0 does not save by "
                "time; unset: 30 if checkpoints are enabled and run.keep_last + 1 of them fit on "
                "the disk of run.dir"},
    {.path = "run.checkpoint_at_end",
     .field = SLUICE_FIELD(run.checkpoint_at_end),
     .default_json = "true",
     .meaning = "save after the last step, and when the run is interrupted"},
    {.path = "run.checkpoint_background",
     .field = SLUICE_FIELD(run.checkpoint_background),
     .default_json = "\"auto\"",
     .choices = "auto|on|off",
     .meaning = "write checkpoints while training continues, from a copy in RAM of 12 bytes per "
                "parameter; auto: on if run.checkpoint_every, run.checkpoint_minutes or "
                "run.keep_best is set and the copy fits in RAM"},
    {.path = "run.checkpoint_in_place",
     .field = SLUICE_FIELD(run.checkpoint_in_place),
     .default_json = "false",
     .meaning =
         "a save does not copy the optimizer state that is on NVMe: its store has two places "
         "for each record, which doubles its space, and keeps the newest checkpoint in one "
         "of them. That checkpoint needs the run's drives; sluice copy makes one of files. "
         "For one rank; a resumed run stays as it was"},
    {.path = "run.keep_last",
     .field = SLUICE_FIELD(run.keep_last_checkpoints),
     .default_json = "2",
     .range = {.minimum = 0, .maximum = 1e6},
     .unit = "checkpoints",
     .auto_rule = "1 with run.checkpoint_in_place",
     .meaning = "number of newest checkpoints that are kept; 0 keeps all; a resumed run keeps as "
                "many as before unless this is given again"},
    {.path = "run.keep_best",
     .field = SLUICE_FIELD(run.keep_best),
     .default_json = "false",
     .auto_rule = "true if early_stopping.patience is given",
     .meaning = "save after each evaluation with the lowest validation loss so far, and keep that "
                "checkpoint in addition to run.keep_last; commands take it as RUN/best; a resumed "
                "run keeps it as before unless the key is given again"},
    {.path = "run.non_finite_step",
     .field = SLUICE_FIELD(run.non_finite_step),
     .default_json = "\"auto\"",
     .choices = "stop|skip",
     .auto_rule = "skip with a fixed fp16.loss_scale, as in DeepSpeed; otherwise stop",
     .meaning =
         "what happens at a step whose gradient is not finite: stop ends the run before any weight "
         "changes, skip skips the step. The dynamic loss scale of fp16 has its own rule"},
    {.path = "run.max_skipped_steps",
     .field = SLUICE_FIELD(run.max_skipped_steps),
     .default_json = "5",
     .range = kPositive,
     .unit = "steps",
     .meaning = "consecutive steps that run.non_finite_step skip may skip before the run stops"},
    {.path = "run.hash_units",
     .field = SLUICE_FIELD(run.hash_units),
     .default_json = "false",
     .meaning = "write hashes of each unit's gradient and parameters with each step's metrics, for "
                "sluice diff; then each step waits for its update to finish"},
    {.path = "run.io_watchdog",
     .field = SLUICE_FIELD(run.io_watchdog_s),
     .default_json = "30.0",
     .range = {.minimum = 0, .maximum = 86400},
     .unit = "s",
     .meaning = "report a file operation that takes longer, with its drive; 0: never"},
    {.path = "run.resume",
     .field = SLUICE_FIELD(run.resume),
     .default_json = "\"\"",
     .meaning = "checkpoint to continue from: newest or a name; empty starts at step 0"},
    {.path = "run.later_checkpoints",
     .field = SLUICE_FIELD(run.later_checkpoints),
     .default_json = "\"refuse\"",
     .choices = "refuse|set_aside",
     .meaning = "what happens to later checkpoints when a run continues from an older one: refuse "
                "does not start; set_aside moves them to checkpoints/set-aside-at-NAME"},

    {.path = "early_stopping.patience",
     .field = SLUICE_FIELD(early_stopping.patience),
     .default_json = "0",
     .range = {.minimum = 0, .maximum = 1e9},
     .unit = "evaluations",
     .meaning = "end the run after this many consecutive evaluations (run.eval_every) without a "
                "lower validation loss; 0: never"},
    {.path = "early_stopping.min_delta",
     .field = SLUICE_FIELD(early_stopping.min_delta),
     .default_json = "0.0",
     .range = {.minimum = 0, .maximum = 1e9},
     .unit = "nats per token",
     .meaning = "a validation loss improves only if it is lower than the lowest so far by more "
                "than this"},

    {.path = "samples.prompts",
     .field = SLUICE_FIELD(samples.prompts),
     .default_json = "\"\"",
     .meaning = "file of prompts that the model continues while it trains, one per line; in a file "
                "that ends in .jsonl, objects with \"prompt\". The texts go to events.jsonl, "
                "sluice watch and sluice report"},
    {.path = "samples.every",
     .field = SLUICE_FIELD(samples.every_steps),
     .default_json = "0",
     .range = kNotNegative,
     .unit = "steps",
     .meaning = "steps between sample texts; 0: with each evaluation, and after the last step"},
    {.path = "samples.tokens",
     .field = SLUICE_FIELD(samples.tokens),
     .default_json = "64",
     .range = {.minimum = 1, .maximum = 1024},
     .unit = "tokens",
     .meaning = "length of each sample text, at most"},
    {.path = "samples.temperature",
     .field = SLUICE_FIELD(samples.temperature),
     .default_json = "0.0",
     .range = {.minimum = 0, .maximum = 1e6},
     .meaning = "temperature of sample texts; 0 always takes the most probable token. Draws have "
                "their own random state, so training has the same bits"},

    {.path = "budget.gpu_gib",
     .field = SLUICE_FIELD(budget.gpu_gib),
     .range = kGib,
     .unit = "GiB",
     .meaning = "GPU memory that the run may use; unset: the free memory, less a margin"},
    {.path = "budget.cpu_gib",
     .field = SLUICE_FIELD(budget.cpu_gib),
     .range = kGib,
     .unit = "GiB",
     .meaning = "RAM that the run may use; unset: the free RAM, less a margin"},
    {.path = "budget.nvme_gib",
     .field = SLUICE_FIELD(budget.nvme_gib),
     .range = kGib,
     .unit = "GiB",
     .meaning = "drive space that the run may use; unset: the free space, less a margin"},
    {.path = "budget.nvme_paths",
     .field = SLUICE_FIELD(budget.nvme_paths),
     .default_json = "[]",
     .meaning = "folders of the nvme tier, one per drive: a path or a list"},
    {.path = "budget.nvme_tb_per_day",
     .field = SLUICE_FIELD(budget.nvme_tb_per_day),
     .range = {.minimum = 0, .maximum = 1e6},
     .unit = "TB",
     .meaning = "what the run may write to the drives of a host per day of training, without "
                "checkpoints: the plan chooses a placement that writes no more, or refuses the run "
                "and says what would write less; unset: any amount"},

    {.path = "placement.overlap_update",
     .field = SLUICE_FIELD(placement.overlap_update),
     .default_json = "true",
     .meaning = "run the optimizer update during the next forward, which waits for it unit by "
                "unit; the results have the same bits"},
    {.path = "placement.recompute",
     .field = SLUICE_FIELD(placement.recompute),
     .default_json = "\"auto\"",
     .choices = "auto|on|off",
     .meaning = "recompute a unit's activations in backward; auto lets the plan choose"},
    {.path = "placement.unit_inputs_to_cpu",
     .field = SLUICE_FIELD(placement.unit_inputs_to_cpu),
     .default_json = "\"auto\"",
     .choices = "auto|on|off",
     .auto_rule = "on with activation_checkpointing.cpu_checkpointing, otherwise the plan's choice",
     .meaning = "keep the activations between units in pinned RAM until backward; only for a GPU "
                "(on the CPU they are in RAM anyway). Activations within units, kept with "
                "recompute off, stay on the GPU"},
    {.path = "placement.unit_inputs_to_nvme",
     .field = SLUICE_FIELD(placement.unit_inputs_to_nvme),
     .default_json = "\"auto\"",
     .choices = "auto|on|off",
     .auto_rule = "on a GPU the plan's choice, if an NVMe folder is given; on the CPU off",
     .meaning = "keep the activations between units on the nvme tier until backward: on a GPU "
                "those that unit_inputs_to_cpu moves off it, on the CPU all but the last block's"},
    {.path = "placement.boundaries_to_cpu",
     .treatment = Treatment::kAlias,
     .alias_of = "placement.unit_inputs_to_cpu",
     .is_old_name = true},
    {.path = "placement.boundaries_to_nvme",
     .treatment = Treatment::kAlias,
     .alias_of = "placement.unit_inputs_to_nvme",
     .is_old_name = true},
    {.path = "placement.gradients_to_nvme",
     .field = SLUICE_FIELD(placement.gradients_to_nvme),
     .default_json = "\"auto\"",
     .choices = "auto|on|off",
     .auto_rule = "on if an NVMe folder is given and the run does not fit in RAM otherwise, or is "
                  "faster",
     .meaning = "keep gradients, and the sums between waves, on the nvme tier from backward to "
                "update; without a GPU only for modules that the Python package trains in one "
                "process"},
    {.path = "placement.optimizer_fractions",
     .field = SLUICE_FIELD(placement.optimizer_fractions),
     .default_json = "\"auto\"",
     .auto_rule = "the plan's choice",
     .meaning = "share of the optimizer state on each tier, adding up to 1; needs "
                "offload_optimizer.device auto"},
    {.path = "placement.record_elements",
     .field = SLUICE_FIELD(placement.record_elements),
     .default_json = "16777216",
     .range = {.minimum = 1024, .maximum = 1 << 30},
     .unit = "elements",
     .meaning = "size of one read or write of optimizer state; at most one sub-group"},
    {.path = "placement.swap_buffers",
     .field = SLUICE_FIELD(placement.swap_buffers),
     .default_json = "0",
     .range = {.minimum = 0, .maximum = 4096},
     .unit = "records",
     .meaning = "records of state in flight between drives and update; 0 lets the plan choose"},
    {.path = "placement.prefetch_units",
     .field = SLUICE_FIELD(placement.prefetch_units),
     .default_json = "0",
     .range = {.minimum = 0, .maximum = 4096},
     .unit = "units",
     .meaning = "units fetched ahead of use; 0: as stage3_prefetch_bucket_size and "
                "stage3_max_live_parameters say"},
    {.path = "placement.wave_micro_batches",
     .field = SLUICE_FIELD(placement.wave_micro_batches),
     .default_json = "0",
     .range = {.minimum = 0, .maximum = 1 << 24},
     .unit = "micro-batches",
     .meaning =
         "how many of a step's micro-batches go through the model together; fewer need less memory "
         "for activations but more traffic; 0 lets the plan choose. Results do not depend on it"},
    {.path = "placement.nvme_weights",
     .field = SLUICE_FIELD(placement.nvme_weights),
     .default_json = "\"auto\"",
     .range = {.minimum = 1, .maximum = aio::StripedFile::kMaxWeight},
     .auto_rule = "by the measured speed of each drive, less for one that lacks space; equal if "
                  "they were not measured",
     .meaning = "how stripes are distributed over several budget.nvme_paths: [3, 1] puts three on "
                "the first for each one on the second"},

    {.path = "communication.weights",
     .field = SLUICE_FIELD(communication.weights),
     .default_json = "\"full\"",
     .choices = "full|int8",
     .meaning = "how ranks gather parameters at stage 3: full sends them in the type they are "
                "computed with, int8 in 8 bits with a scale for each 128, which halves what is "
                "sent (ZeRO++'s qwZ). Every rank computes with the rounded values, on any number "
                "of ranks; norms and biases are not rounded, nor are master weights. With "
                "recipe.lora it is the frozen model that is rounded"},
    {.path = "communication.host_copy",
     .field = SLUICE_FIELD(communication.host_copy),
     .default_json = "\"off\"",
     .choices = "off|gpu|ram|auto",
     .meaning = "where each host keeps a copy of the parameters that it has gathered, divided "
                "among its ranks, so that they cross the network once per step (ZeRO++'s hpZ): "
                "auto is the GPU where the plan has room, else RAM. Without effect on one host or "
                "with one rank on each; results do not depend on it"},
    {.path = "communication.gradients",
     .field = SLUICE_FIELD(communication.gradients),
     .default_json = "\"fp32\"",
     .choices = "fp32|int4|int8",
     .meaning = "how ranks send each other the gradients that they add up: int8 and int4 send "
                "8 or 4 bits with a scale for each 128, within hosts and between them (ZeRO++'s "
                "qgZ), and results depend on the number of ranks and hosts"},
};

constexpr auto kKeys = [] {
  auto keys = std::to_array(kRows);
  for (Key& key : keys) key.source = KeySource::kSluice;
  return keys;
}();

}  // namespace

std::span<const Key> run_keys() { return kKeys; }

}  // namespace sluice::config
