#include "bench/adam_options.h"

#include <sched.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>
#include <string_view>

#include "aio/units.h"

namespace sluice::bench {
namespace {

using offload::GradType;
using offload::ParamForm;

constexpr const char* kDescription =
    "Measures the CPU AdamW kernels: parameters a second, and the memory traffic that the\n"
    "algorithm needs against the machine's own copy bandwidth, in alternation.\n"
    "\n"
    "K, M, G in --elements are powers of 1024; GB/s is 10^9 bytes a second.";

constexpr const char* kExamples =
    "Bytes moved per parameter (read + written): gradient 4 or 2, master, m and v 8 each, a\n"
    "16-bit copy 2 more. fp32 gradient: 28; 16-bit gradient: 26.\n"
    "\n"
    "Examples:\n"
    "  adam_bench --grad bf16 --master split\n"
    "      what bf16 training runs: 26 bytes a parameter\n"
    "  adam_bench --grad fp16 --master fp32 --copy-out fp16 --threads 1 --isa avx2 --json "
    "out.json\n"
    "\n"
    "Exit codes: 0 done; 1 our mistake; 2 a mistake in the options.";

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

Result<int> count_of(const char* option, const std::string& text, int largest) {
  const auto value = number_of<int>(text);
  if (!value || *value < 1 || *value > largest)
    return wrong(option, text, "a whole number from 1 to " + std::to_string(largest));
  return *value;
}

int usable_cores() {
  cpu_set_t cores;
  return sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 1;
}

Result<ParamForm> form_of(const std::string& master, const std::string& copy_out) {
  if (master != "fp32" && master != "split") return wrong("--master", master, "fp32 or split");
  if (copy_out != "none" && copy_out != "bf16" && copy_out != "fp16")
    return wrong("--copy-out", copy_out, "none, bf16 or fp16");
  if (master == "split") {
    if (copy_out == "none") return ParamForm::kSplit;
    return wrong("--copy-out", copy_out,
                 "none with --master split, which holds the bf16 parameter already");
  }
  if (copy_out == "bf16") return ParamForm::kFp32AndBf16;
  return copy_out == "fp16" ? ParamForm::kFp32AndFp16 : ParamForm::kFp32;
}

}  // namespace

std::uint64_t AdamBenchOptions::memory_bytes() const {
  const std::uint64_t copy =
      form == ParamForm::kFp32AndBf16 || form == ParamForm::kFp32AndFp16 ? 2 : 0;
  return elements * ((grad == GradType::kFp32 ? 4 : 2) + 3 * 4 + copy);
}

Result<AdamBenchOptions> parse_adam_options(const AdamArguments& arguments) {
  AdamBenchOptions options;
  const std::string elements = arguments.elements.value_or("64M");
  const auto count = parse_bytes(elements);
  if (!count.ok() || *count < 1 || *count > std::uint64_t{1} << 40)
    return wrong("--elements", elements, "a number from 1 to 1T such as 1000000, 512K or 64M");
  options.elements = *count;

  options.grad_name = arguments.grad.value_or("fp32");
  if (options.grad_name == "fp32") {
    options.grad = GradType::kFp32;
  } else if (options.grad_name == "bf16") {
    options.grad = GradType::kBf16;
  } else if (options.grad_name == "fp16") {
    options.grad = GradType::kFp16;
  } else {
    return wrong("--grad", options.grad_name, "fp32, bf16 or fp16");
  }

  const std::string copy_out = arguments.copy_out.value_or("none");
  options.master_name = arguments.master.value_or("fp32");
  SLUICE_ASSIGN_OR_RETURN(options.form, form_of(options.master_name, copy_out));
  if (copy_out != "none") options.master_name += "+" + copy_out;

  options.threads = usable_cores();
  if (arguments.threads) {
    SLUICE_ASSIGN_OR_RETURN(options.threads, count_of("--threads", *arguments.threads, 1024));
  }
  SLUICE_ASSIGN_OR_RETURN(options.runs, count_of("--runs", arguments.runs.value_or("5"), 1000));

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

Result<std::optional<AdamArguments>> parse_adam_command_line(int argc, const char* const* argv) {
  AdamArguments to;
  CLI::App app(kDescription, "adam_bench");
  app.footer(kExamples);
  app.get_formatter()->column_width(26);
  // Every value is taken as text: parse_adam_options() says better what is wrong with one.
  const auto add = [&app](const char* name, std::optional<std::string>& value, const char* kind,
                          const char* help) {
    app.add_option(name, value, help)->type_name(kind)->allow_extra_args(false);
  };
  add("--elements", to.elements, "N", "parameters [64M]");
  add("--grad", to.grad, "TYPE", "gradient: fp32, bf16 or fp16 [fp32]");
  add("--master", to.master, "FORM", "master weight: fp32 or split [fp32]");
  add("--copy-out", to.copy_out, "TYPE", "16-bit copy of an fp32 master: none, bf16, fp16 [none]");
  add("--threads", to.threads, "N", "[the cores this process may use]");
  add("--isa", to.isa, "NAME", "auto, scalar, avx2 or avx512 [auto]");
  add("--seconds", to.seconds, "S", "of one measurement [1]");
  add("--runs", to.runs, "N", "measurements of each kind; medians are shown [5]");
  add("--json", to.json, "FILE", "write all numbers there; -: standard output");
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {
    app.exit(help);
    return std::optional<AdamArguments>();
  } catch (const CLI::ParseError& error) {
    std::string text = error.what();
    while (!text.empty() && (text.back() == '\n' || text.back() == '.')) text.pop_back();
    for (char& letter : text)
      if (letter == '\n') letter = ' ';
    return Error(ErrorCode::kInvalidArgument, text + "; adam_bench --help lists the options");
  }
  return std::optional<AdamArguments>(std::move(to));
}

}  // namespace sluice::bench
