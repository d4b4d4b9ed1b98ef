#include "bench/adam_options.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>
#include <string_view>
#include <utility>

#include "aio/machine_info.h"
#include "aio/units.h"
#include "tools/support/command_line.h"

namespace sluice::bench {
namespace {

using offload::GradType;
using offload::ParamForm;

constexpr const char* kDescription =
    "Measures the CPU AdamW kernels: parameters per second, and the memory traffic that "
    "the\nalgorithm needs compared with the machine's copy bandwidth, measured alternately. With "
    "--cast,\nthe gradient's cast with its sum of squares instead.\n\nK, M, G in --elements are "
    "powers of 1024; GB/s is 10^9 bytes per second, read + written.";

constexpr const char* kExamples =
    "Bytes moved per parameter (read + written): gradient 4 or 2, master, m and v 8 each, "
    "a\n16-bit copy 2 more. fp32 gradient: 28; 16-bit gradient: 26. With --moments bf16 m and v "
    "are\n4 each: 18 with a 16-bit gradient.\n\n--cast reads 4 bytes per element and writes 2, or "
    "none. A copy is not the right limit for it:\nreads wait for the memory but stores that bypass "
    "the caches do not, so a copy moves more bytes\nthan a pass that mostly reads. It is therefore "
    "also compared with passes that compute nothing:\ntwo bytes read for each one written "
    "(\"halve\"), or only reads (\"read\").\n\nExamples:\n  adam_bench --grad bf16 --master "
    "split\n      as in bf16 training: 26 bytes per parameter\n  adam_bench --grad fp16 --master "
    "fp32 --copy-out fp16 --threads 1 --isa avx2 --json out.json\n  adam_bench --cast bf16\n      "
    "the gradient's path from the backward pass to the optimizer: 6 bytes per element\n\nExit "
    "codes: 0 done; 1 a bug; 2 a mistake in the options; 130 Ctrl-C.";

// An empty optional: not given.
struct AdamArguments {
  std::optional<std::string> elements, grad, master, moments, copy_out, threads, isa, seconds, runs,
      json, cast, stagger;
};

Error wrong(const char* option, const std::string& value, const std::string& allowed) {
  return Error(ErrorCode::kInvalidArgument,
               std::string(option) + " is \"" + value + "\"; it must be " + allowed);
}

template <typename T>
std::optional<T> number_of(const std::string& text) {
  T value{};
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end) return std::nullopt;
  return value;
}

Result<int> count_of(const char* option, const std::string& text, int smallest, int largest) {
  const auto value = number_of<int>(text);
  if (!value || *value < smallest || *value > largest)
    return wrong(
        option, text,
        "a whole number from " + std::to_string(smallest) + " to " + std::to_string(largest));
  return *value;
}

// fp32_name: the option's name for kFp32.
Result<GradType> type_of(const char* option, const std::string& name, const char* fp32_name) {
  if (name == fp32_name) return GradType::kFp32;
  if (name == "bf16") return GradType::kBf16;
  if (name == "fp16") return GradType::kFp16;
  return wrong(option, name, std::string(fp32_name) + ", bf16 or fp16");
}

Result<ParamForm> form_of(const std::string& master, const std::string& copy_out) {
  if (master != "fp32" && master != "split") return wrong("--master", master, "fp32 or split");
  if (copy_out != "none" && copy_out != "fp16")
    return wrong("--copy-out", copy_out, "none or fp16");
  if (master == "split") {
    if (copy_out == "none") return ParamForm::kSplit;
    return wrong("--copy-out", copy_out,
                 "none with --master split, which already contains the bf16 parameter");
  }
  return copy_out == "fp16" ? ParamForm::kFp32AndFp16 : ParamForm::kFp32;
}

Status parse_kernel(const AdamArguments& arguments, AdamBenchOptions& options) {
  if (arguments.cast) {
    for (const auto& [name, value] :
         {std::pair("--grad", &arguments.grad), std::pair("--master", &arguments.master),
          std::pair("--copy-out", &arguments.copy_out), std::pair("--moments", &arguments.moments)})
      if (*value) return wrong(name, **value, "left out with --cast, which does not measure AdamW");
    options.kernel = BenchKernel::kCast;
    options.grad_name = *arguments.cast;
    SLUICE_ASSIGN_OR_RETURN(options.grad, type_of("--cast", options.grad_name, "none"));
    return {};
  }
  options.grad_name = arguments.grad.value_or("fp32");
  SLUICE_ASSIGN_OR_RETURN(options.grad, type_of("--grad", options.grad_name, "fp32"));
  const std::string copy_out = arguments.copy_out.value_or("none");
  options.master_name = arguments.master.value_or("fp32");
  SLUICE_ASSIGN_OR_RETURN(options.form.param, form_of(options.master_name, copy_out));
  options.moments_name = arguments.moments.value_or("fp32");
  if (options.moments_name != "fp32" && options.moments_name != "bf16")
    return wrong("--moments", options.moments_name, "fp32 or bf16");
  if (options.moments_name == "bf16") options.form.moments = offload::ElementType::kBf16;
  if (copy_out != "none") options.master_name += "+" + copy_out;
  return {};
}

Result<AdamBenchOptions> parse(const AdamArguments& arguments) {
  AdamBenchOptions options;
  SLUICE_RETURN_IF_ERROR(parse_kernel(arguments, options));

  // A cast moves few bytes per element, and 64M elements fit into the largest caches.
  const std::string elements = arguments.elements.value_or(arguments.cast ? "256M" : "64M");
  const auto count = parse_bytes(elements);
  if (!count.ok() || *count < 1 || *count > std::uint64_t{1} << 40)
    return wrong("--elements", elements, "a number from 1 to 1T such as 1000000, 512K or 64M");
  options.elements = *count;

  options.threads = aio::machine_info().cores;
  if (arguments.threads) {
    SLUICE_ASSIGN_OR_RETURN(options.threads, count_of("--threads", *arguments.threads, 1, 1024));
  }
  SLUICE_ASSIGN_OR_RETURN(options.runs, count_of("--runs", arguments.runs.value_or("5"), 1, 1000));
  SLUICE_ASSIGN_OR_RETURN(options.stagger_lines,
                          count_of("--stagger", arguments.stagger.value_or("0"), 0, 1024));

  const auto isa = offload::choose_isa(arguments.isa.value_or("auto"));
  if (!isa.ok()) return isa.status().error().with_context("--isa");
  options.isa = *isa;

  const std::string seconds = arguments.seconds.value_or("1");
  const auto duration = number_of<double>(seconds);
  if (!duration || !std::isfinite(*duration) || *duration <= 0 || *duration > 3600)
    return wrong("--seconds", seconds, "a number above 0, at most 3600");
  options.seconds = *duration;

  options.json = arguments.json.value_or("");
  if (arguments.json && options.json.empty())
    return wrong("--json", "", "a file to write, or - for standard output");
  return options;
}

}  // namespace

int AdamBenchOptions::bytes_per_element() const {
  if (kernel == BenchKernel::kCast) return grad == GradType::kFp32 ? 4 : 4 + 2;
  return offload::adamw_bytes_per_param(grad, form);
}

std::uint64_t AdamBenchOptions::plain_pass_bytes() const {
  std::uint64_t bytes = elements * 4;
  if (kernel == BenchKernel::kAdamw) {
    const std::uint64_t copy = form.param == ParamForm::kFp32AndFp16 ? 2 : 0;
    const std::uint64_t moments = 2 * offload::element_bytes(form.moments);
    bytes = elements * (offload::element_bytes(grad) + 4 + moments + copy) / 2;
  }
  return align_up(bytes, 4 * kKiB);
}

Result<std::optional<AdamBenchOptions>> parse_adam_command_line(int argc, const char* const* argv) {
  AdamArguments to;
  CLI::App app(kDescription, "adam_bench");
  app.footer(kExamples);
  // Every value is parsed as text, since parse() gives better errors than CLI11.
  const auto add = [&app](const char* name, std::optional<std::string>& value, const char* kind,
                          const char* help) {
    app.add_option(name, value, help)->type_name(kind)->allow_extra_args(false);
  };
  add("--elements", to.elements, "N", "parameters [64M; --cast: 256M]");
  add("--grad", to.grad, "TYPE", "gradient: fp32, bf16 or fp16 [fp32]");
  add("--master", to.master, "FORM", "master weight: fp32 or split [fp32]");
  add("--moments", to.moments, "TYPE", "both moments: fp32 or bf16 [fp32]");
  add("--copy-out", to.copy_out, "TYPE", "16-bit copy of an fp32 master: none, fp16 [none]");
  add("--cast", to.cast, "TYPE", "no AdamW: the fp32 gradient's cast to bf16, fp16 or none");
  add("--threads", to.threads, "N", "number of threads [the cores this process may use]");
  add("--isa", to.isa, "NAME", "auto, scalar, avx2 or avx512 [auto]");
  add("--stagger", to.stagger, "N", "array k begins k x N cache lines after a page [0]");
  add("--seconds", to.seconds, "S", "seconds per measurement [1]");
  add("--runs", to.runs, "N", "measurements of each kind; medians are shown [5]");
  add("--json", to.json, "FILE", "write all numbers to this file; -: standard output");
  SLUICE_ASSIGN_OR_RETURN(const bool given, tools::parse_words(app, argc, argv));
  if (!given) return std::optional<AdamBenchOptions>();
  SLUICE_ASSIGN_OR_RETURN(AdamBenchOptions options, parse(to));
  return std::optional<AdamBenchOptions>(std::move(options));
}

}  // namespace sluice::bench
