#include "bench/swap_options.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "aio/machine_info.h"
#include "aio/units.h"
#include "bench/option_values.h"
#include "offload/state/state_tiles.h"
#include "swap/record_image.h"
#include "tools/support/command_line.h"

namespace sluice::bench {
namespace {

using offload::kTileElements;
using offload::ParamForm;
using Order = swap::SwapPipeline::Order;

constexpr std::uint64_t kMaxRecordElements = 16 << 20;
constexpr std::uint64_t kMaxReferenceBytes = 4 * kGiB;

constexpr const char* kDescription =
    "Measures a training step over optimizer state on NVMe: every record is read, "
    "checked,\nupdated by AdamW, sealed and written, through a fixed set of pinned buffers. Also "
    "measures the\nsame drive's throughput without any work (aio_bench --mode mixed), alternating "
    "with the steps,\nto compare.\n\nThe state is a separate store below each --path, removed at "
    "the end. K, M, G in counts and\nsizes are powers of 1024; GB/s is 10^9 bytes per second.";

constexpr const char* kExamples =
    "Examples:\n"
    "  swap_bench --path /nvme\n"
    "      1G parameters in bf16 mode: 10 GiB of state through 512 MiB of memory\n"
    "  swap_bench --path /nvme0 --path /nvme1 --elements 4G --pinned-budget 1G --order bursts\n"
    "  swap_bench --path /nvme --compute none --threads 1 --json out.json\n"
    "      the swapping alone: no optimizer, one thread for the checksums\n"
    "\n"
    "Exit codes: 0 done; 1 an IO error or wrong data; 2 a mistake in the options; 130 Ctrl-C.";

// An empty optional: not given.
struct SwapArguments {
  std::vector<std::string> paths;
  std::optional<std::string> elements, bytes_per_element, record_elements, buffers, pinned_budget,
      order, burst_records, queues, threads, compute, isa, steps, seconds, backend, block_size,
      queue_depth, stripe_size, weights, aio_reference, json;
};

Result<std::uint64_t> elements_of(const char* option, const std::string& text,
                                  std::uint64_t smallest, std::uint64_t largest) {
  const auto value = parse_bytes(text);
  if (!value.ok() || *value < smallest || *value > largest)
    return wrong(option, text,
                 "give a number from " + format_bytes(smallest) + " to " + format_bytes(largest) +
                     ", such as 1000000, 512K or 4M (powers of 1024)");
  return *value;
}

Status parse_state(const SwapArguments& given, SwapBenchOptions& options) {
  SLUICE_ASSIGN_OR_RETURN(options.elements, elements_of("--elements", given.elements.value_or("1G"),
                                                        1, std::uint64_t{1} << 40));
  const std::string bytes = given.bytes_per_element.value_or("10");
  if (bytes == "8") {
    options.form = {ParamForm::kFp32};
  } else if (bytes == "10") {
    options.form = {ParamForm::kSplit};
  } else if (bytes == "12") {
    options.form = {ParamForm::kFp32AndFp16};
  } else if (bytes == "6") {
    options.form = {ParamForm::kSplit, offload::ElementType::kBf16};
  } else {
    return wrong(
        "--bytes-per-element", bytes,
        "choose 10 (bf16 mode), 12 (fp16 mode), 8 (fp32 mode) or 6 (bf16 mode and moments)");
  }
  const std::string record = given.record_elements.value_or("4M");
  SLUICE_ASSIGN_OR_RETURN(options.record_elements, elements_of("--record-elements", record,
                                                               kTileElements, kMaxRecordElements));
  if (options.record_elements % kTileElements != 0)
    return wrong("--record-elements", record,
                 "give a multiple of 64K, because that many are checked and computed at once");
  if (options.records() > 1'000'000)
    return wrong("--record-elements", record,
                 "with --elements " + format_bytes(options.elements) +
                     " that is more than a "
                     "million records; give larger ones");
  return {};
}

Status parse_memory(const SwapArguments& given, SwapBenchOptions& options) {
  constexpr int kMost = swap::SwapPipeline::kMaxBuffers;
  if (given.buffers && given.pinned_budget)
    return wrong("--buffers", *given.buffers, "give --buffers or --pinned-budget, not both");
  const std::uint64_t image_bytes = options.image_bytes();
  if (given.buffers) {
    SLUICE_ASSIGN_OR_RETURN(options.buffers, small_number("--buffers", *given.buffers, 2, kMost));
  } else {
    const std::string budget = given.pinned_budget.value_or("512M");
    const auto bytes = parse_bytes(budget);
    if (!bytes.ok()) return wrong("--pinned-budget", budget, "give a size such as 512M or 2G");
    options.pinned_budget_bytes = *bytes;
    options.buffers = static_cast<int>(std::min<std::uint64_t>(*bytes / image_bytes, kMost));
    if (options.buffers < 2)
      return wrong("--pinned-budget", budget,
                   "two records of " + format_bytes(image_bytes) +
                       " must fit; give more, or smaller --record-elements");
  }
  const std::uint64_t available = aio::available_ram_bytes();
  if (available > 0 && options.pinned_bytes() > available / 2)
    return wrong(given.buffers ? "--buffers" : "--pinned-budget",
                 given.buffers ? *given.buffers : format_bytes(options.pinned_budget_bytes),
                 std::to_string(options.buffers) + " buffers of " + format_bytes(image_bytes) +
                     " are more than half of the " + format_bytes(available) +
                     " of memory that are available");
  return {};
}

Status parse_work(const SwapArguments& given, SwapBenchOptions& options) {
  const std::string order = given.order.value_or("both");
  if (order == "mixed" || order == "both") options.orders.push_back(Order::kMixed);
  if (order == "bursts" || order == "both") options.orders.push_back(Order::kBursts);
  if (options.orders.empty()) return wrong("--order", order, "choose mixed, bursts or both");
  SLUICE_ASSIGN_OR_RETURN(
      options.burst_records,
      small_number("--burst-records", given.burst_records.value_or("0"), 0, options.buffers));
  SLUICE_ASSIGN_OR_RETURN(options.queues,
                          small_number("--queues", given.queues.value_or("2"), 1, 2));
  options.threads = aio::machine_info().cores;
  if (given.threads) {
    SLUICE_ASSIGN_OR_RETURN(options.threads, small_number("--threads", *given.threads, 1, 1024));
  }
  const std::string compute = given.compute.value_or("adamw");
  if (compute != "adamw" && compute != "none")
    return wrong("--compute", compute, "choose adamw or none");
  options.adamw = compute == "adamw";
  const auto isa = offload::choose_isa(given.isa.value_or("auto"));
  if (!isa.ok()) return isa.status().error().with_context("--isa");
  options.isa = *isa;
  const std::string reference = given.aio_reference.value_or("on");
  if (reference != "on" && reference != "off")
    return wrong("--aio-reference", reference, "choose on or off");
  options.reference = reference == "on";
  if (given.steps && given.seconds)
    return wrong("--steps", *given.steps, "give --steps or --seconds, not both");
  if (!given.seconds) {
    SLUICE_ASSIGN_OR_RETURN(options.steps,
                            small_number("--steps", given.steps.value_or("3"), 1, 1000));
  }
  return {};
}

// Options shared with aio_bench are checked by the same code and reported in the same words.
Status parse_io(const SwapArguments& given, SwapBenchOptions& options) {
  AioArguments io;
  io.paths = given.paths;
  io.size = std::to_string(
      std::clamp<std::uint64_t>(options.state_bytes(), 4 * kMiB, kMaxReferenceBytes));
  io.mode = "mixed";
  io.block_size = given.block_size;
  io.queue_depth = given.queue_depth;
  io.backend = given.backend;
  io.seconds = given.seconds;
  io.stripe_size = given.stripe_size;
  io.weights = given.weights;
  io.json = given.json;
  SLUICE_ASSIGN_OR_RETURN(options.io, parse_options(io));
  AioOptions& parsed = options.io;
  parsed.size_bytes =
      std::max(parsed.block_bytes, align_down(parsed.size_bytes, parsed.block_bytes));
  if (options.io.auto_weights)
    return wrong("--weights", "auto", "give one whole number for each --path, as in 2:1");
  if (options.queues == 2 && options.io.queue_depth < 2)
    return wrong("--queue-depth", std::to_string(options.io.queue_depth),
                 "two queues share it; give at least 2, or --queues 1");
  if (given.seconds) options.seconds = options.io.seconds;
  return {};
}

Result<SwapBenchOptions> parse(const SwapArguments& given) {
  SwapBenchOptions options;
  SLUICE_RETURN_IF_ERROR(parse_state(given, options));
  SLUICE_RETURN_IF_ERROR(parse_memory(given, options));
  SLUICE_RETURN_IF_ERROR(parse_work(given, options));
  SLUICE_RETURN_IF_ERROR(parse_io(given, options));
  return options;
}

}  // namespace

std::string_view to_string(Order order) { return order == Order::kMixed ? "mixed" : "bursts"; }

std::uint64_t SwapBenchOptions::record_elements_of(std::uint64_t record) const {
  return std::min(record_elements, elements - record * record_elements);
}

std::uint64_t SwapBenchOptions::image_bytes() const {
  return swap::kRecordHeaderBytes +
         align_up(offload::state_bytes(form, record_elements_of(0)), swap::kRecordAlignmentBytes);
}

std::uint64_t SwapBenchOptions::state_bytes() const { return records() * image_bytes(); }

Result<std::optional<SwapBenchOptions>> parse_swap_command_line(int argc, const char* const* argv) {
  SwapArguments to;
  CLI::App app(kDescription, "swap_bench");
  app.footer(kExamples);
  // Every value is parsed as text, since parse() gives better errors than CLI11.
  const auto add = [&app](const char* group, const char* name, std::optional<std::string>& value,
                          const char* kind, const char* help) {
    app.add_option(name, value, help)->group(group)->type_name(kind)->allow_extra_args(false);
  };
  constexpr const char* kWhere = "Where";
  app.add_option("--path", to.paths, "folder for the state; several: striped [.]")
      ->group(kWhere)
      ->type_name("DIR")
      ->allow_extra_args(false);
  add(kWhere, "--stripe-size", to.stripe_size, "BYTES", "stripe size with several --path [1M]");
  add(kWhere, "--weights", to.weights, "W:W", "share of each --path [equal]");
  constexpr const char* kWhat = "State";
  add(kWhat, "--elements", to.elements, "N", "parameters [1G]");
  add(kWhat, "--bytes-per-element", to.bytes_per_element, "6|8|10|12",
      "bf16 mode and moments, fp32, bf16 or fp16 mode [10]");
  add(kWhat, "--record-elements", to.record_elements, "N",
      "elements read and written at once [4M]");
  constexpr const char* kMemory = "Memory and order";
  add(kMemory, "--pinned-budget", to.pinned_budget, "BYTES",
      "memory for buffers, of which as many as fit are used [512M]");
  add(kMemory, "--buffers", to.buffers, "N",
      "number of buffers of one record each, instead of a budget");
  add(kMemory, "--order", to.order, "ORDER",
      "mixed: reads during writes; bursts: alternately; both [both]");
  add(kMemory, "--burst-records", to.burst_records, "N",
      "records per burst [0: half of the buffers]");
  constexpr const char* kIo = "IO";
  add(kIo, "--queues", to.queues, "1|2", "one for all, or one for reads, one for writes [2]");
  add(kIo, "--queue-depth", to.queue_depth, "N", "blocks in flight of all queues [32]");
  add(kIo, "--block-size", to.block_size, "BYTES", "a multiple of 4096 [1M]");
  add(kIo, "--backend", to.backend, "NAME", "uring, posix, or auto: uring if it works [auto]");
  constexpr const char* kWork = "Work";
  add(kWork, "--compute", to.compute, "WHAT", "adamw or none [adamw]");
  add(kWork, "--threads", to.threads, "N", "threads that compute [the cores this process may use]");
  add(kWork, "--isa", to.isa, "NAME", "auto, scalar, avx2 or avx512 [auto]");
  constexpr const char* kHow = "Measurement";
  add(kHow, "--steps", to.steps, "N", "steps of each order, of which medians are shown [3]");
  add(kHow, "--seconds", to.seconds, "S", "instead of --steps: as many as start in this time");
  add(kHow, "--aio-reference", to.aio_reference, "on|off",
      "also measure aio_bench's mixed mode [on]");
  add(kHow, "--json", to.json, "FILE", "write all numbers to this file; -: standard output");
  SLUICE_ASSIGN_OR_RETURN(const bool given, tools::parse_words(app, argc, argv));
  if (!given) return std::optional<SwapBenchOptions>();
  SLUICE_ASSIGN_OR_RETURN(SwapBenchOptions options, parse(to));
  return std::optional<SwapBenchOptions>(std::move(options));
}

}  // namespace sluice::bench
