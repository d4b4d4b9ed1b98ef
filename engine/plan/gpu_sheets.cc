#include "engine/plan/gpu_sheets.h"

#include <algorithm>
#include <array>
#include <cctype>

namespace sluice::engine {
namespace {

constexpr double kGiga = 1e9;
constexpr double kTera = 1e12;

// Fractions of a data sheet's numbers that a step reaches; the measurements are in bench/README.md
// ("What limits each row", "What holds it").
constexpr RateShare kAttention = {
    "attention", 0.75,
    "of the matrix product rate, at heads of 128 and long sequences: 32,768 tokens, H200"};
constexpr RateShare kKernels = {"norms, gates and other memory-bound work", 0.7,
                                "their memory traffic, Qwen2.5-7B and GPT-2 XL, H200"};
constexpr RateShare kCopies = {"copies in GPU memory", 0.9, "the probe's copy, H200"};
constexpr RateShare kAdamw = {"AdamW on the GPU", 0.84, "155 G parameters/s of 26 bytes, H200"};
constexpr RateShare kBus = {"host to GPU, and back", 0.86, "55 GB/s of PCIe 5 x16, H200"};
constexpr RateShare kBothWays = {"each way, both ways at once", 0.9, "PCIe 4 and 5"};
// Gap between two kernels: measured as 2,112 of them in 4.0 ms.
constexpr double kGapS = 1.9e-6;
// Memory traffic of AdamW per element in 16-bit training: state and parameter twice, the gradient
// once.
constexpr double kGpuAdamwBytes = 2.0 * 12 + 2;

// Products in fp8: 1,238 to 1,290 TFLOP/s for minutes, H200. Other cards are assumed to gain as
// much, since each maker's sheet has twice the rate of bf16.
constexpr double kFp8 = 1.9;

constexpr SustainedShare kHopper = {0.67, "656 to 670 TFLOP/s for minutes, H200 (989)", kFp8};
constexpr SustainedShare kGeForce = {
    0.92, "LLMQ's and torchtune's published steps in bf16, RTX 4090 (165)", kFp8};
constexpr SustainedShare kBlackwell = {0.85, "LLMQ's published steps in bf16, RTX 5090 (209.5)",
                                       kFp8};
constexpr SustainedShare kBlackwellPro = {
    0.8, "LLMQ's published steps in bf16, RTX PRO 6000 (503.8)", kFp8};
constexpr SustainedShare kAmpere = {0.85, "assumed: no step of this kind was measured"};
constexpr SustainedShare kPowerBound = {
    0.5, "LLMQ's published steps in bf16, L40S (362): limited by power", kFp8};
constexpr SustainedShare kAmperePowerBound = {kPowerBound.share, kPowerBound.from};
constexpr SustainedShare kHopperPcie = {0.55, "assumed: half of the SXM card's power", kFp8};
constexpr SustainedShare kBlackwellDataCenter = {0.67, "assumed: like the H200", kFp8};

// TFLOP/s: dense bf16 products with fp32 sums. On GeForce cards that is twice the plain fp32 rate.
constexpr std::array kSheets = {
    GpuSheet{"rtx3060", "GeForce RTX 3060 12 GB", 11.6, 25.5, 360, 32, kAmpere},
    GpuSheet{"rtx3060ti", "GeForce RTX 3060 Ti", 7.7, 32.4, 448, 32, kAmpere},
    GpuSheet{"rtx3070", "GeForce RTX 3070", 7.7, 40.6, 448, 32, kAmpere},
    GpuSheet{"rtx3080", "GeForce RTX 3080 10 GB", 9.7, 59.5, 760, 32, kAmpere},
    GpuSheet{"rtx3090", "GeForce RTX 3090", 23.5, 71, 936, 32, kAmpere},
    GpuSheet{"rtx3090ti", "GeForce RTX 3090 Ti", 23.5, 80, 1008, 32, kAmpere},
    GpuSheet{"rtx4060", "GeForce RTX 4060", 7.7, 30.2, 272, 16, kGeForce},
    GpuSheet{"rtx4060ti-8", "GeForce RTX 4060 Ti 8 GB", 7.7, 44, 288, 16, kGeForce},
    GpuSheet{"rtx4060ti", "GeForce RTX 4060 Ti 16 GB", 15.5, 44, 288, 16, kGeForce},
    GpuSheet{"rtx4070", "GeForce RTX 4070", 11.6, 58.3, 504, 32, kGeForce},
    GpuSheet{"rtx4070s", "GeForce RTX 4070 Super", 11.6, 71, 504, 32, kGeForce},
    GpuSheet{"rtx4070ti", "GeForce RTX 4070 Ti", 11.6, 80.2, 504, 32, kGeForce},
    GpuSheet{"rtx4070tis", "GeForce RTX 4070 Ti Super", 15.5, 88, 672, 32, kGeForce},
    GpuSheet{"rtx4080", "GeForce RTX 4080", 15.5, 97.5, 717, 32, kGeForce},
    GpuSheet{"rtx4090", "GeForce RTX 4090", 23.5, 165.2, 1008, 32, kGeForce},
    GpuSheet{"rtx5060", "GeForce RTX 5060", 7.7, 38.4, 448, 32, kBlackwell},
    GpuSheet{"rtx5060ti", "GeForce RTX 5060 Ti 16 GB", 15.5, 47.4, 448, 32, kBlackwell},
    GpuSheet{"rtx5070", "GeForce RTX 5070", 11.6, 61.7, 672, 64, kBlackwell},
    GpuSheet{"rtx5070ti", "GeForce RTX 5070 Ti", 15.5, 87.9, 896, 64, kBlackwell},
    GpuSheet{"rtx5080", "GeForce RTX 5080", 15.5, 112.6, 960, 64, kBlackwell},
    GpuSheet{"rtx5090", "GeForce RTX 5090", 31.3, 209.5, 1792, 64, kBlackwell},
    GpuSheet{"a5000", "RTX A5000", 23.5, 111.1, 768, 32, kAmpere},
    GpuSheet{"a6000", "RTX A6000", 47.5, 154.8, 768, 32, kAmpere},
    GpuSheet{"rtx6000ada", "RTX 6000 Ada", 47.5, 364.2, 960, 32, kPowerBound},
    GpuSheet{"rtxpro6000", "RTX PRO 6000 Blackwell", 95, 503.8, 1792, 64, kBlackwellPro},
    GpuSheet{"a10", "A10", 22, 125, 600, 32, kAmperePowerBound},
    GpuSheet{"l4", "L4", 22, 121, 300, 32, kPowerBound},
    GpuSheet{"l40s", "L40S", 44.4, 362, 864, 32, kPowerBound},
    GpuSheet{"a100-40", "A100 40 GB", 39.2, 312, 1555, 32, kAmpere},
    GpuSheet{"a100-80", "A100 80 GB", 79, 312, 2039, 32, kAmpere},
    GpuSheet{"h100-pcie", "H100 PCIe", 79, 756, 2039, 64, kHopperPcie},
    GpuSheet{"h100", "H100 SXM", 79, 989, 3352, 64, kHopper},
    GpuSheet{"h200", "H200", 139.5, 989, 4800, 64, kHopper},
    GpuSheet{"b200", "B200", 178, 2250, 7700, 64, kBlackwellDataCenter},
};

// Names that drivers report, if they have other words than the titles.
struct ReportedName {
  std::string_view reported;
  std::string_view name;
};
constexpr std::array kReportedNames = {
    ReportedName{"NVIDIA GeForce RTX 3060", "rtx3060"},
    ReportedName{"NVIDIA GeForce RTX 3080", "rtx3080"},
    ReportedName{"NVIDIA RTX 6000 Ada Generation", "rtx6000ada"},
    ReportedName{"NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtxpro6000"},
    ReportedName{"NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "rtxpro6000"},
    ReportedName{"NVIDIA A100-PCIE-40GB", "a100-40"},
    ReportedName{"NVIDIA A100-SXM4-40GB", "a100-40"},
    ReportedName{"NVIDIA A100 80GB PCIe", "a100-80"},
    ReportedName{"NVIDIA A100-SXM4-80GB", "a100-80"},
    ReportedName{"NVIDIA H100 80GB HBM3", "h100"},
};

// Only letters and digits, without the words that all cards' names contain.
std::string plain(std::string_view text) {
  std::string name;
  for (const char c : text)
    if (std::isalnum(static_cast<unsigned char>(c)) != 0)
      name += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const std::string_view word : {"nvidia", "geforce", "rtx", "gb", "sxm"})
    for (std::size_t at = name.find(word); at != std::string::npos; at = name.find(word))
      name.erase(at, word.size());
  return name;
}

}  // namespace

std::span<const GpuSheet> gpu_sheets() { return kSheets; }

Result<const GpuSheet*> find_gpu_sheet(std::string_view name) {
  const auto* const reported =
      std::find_if(kReportedNames.begin(), kReportedNames.end(),
                   [&](const ReportedName& it) { return plain(it.reported) == plain(name); });
  if (reported != kReportedNames.end()) name = reported->name;
  std::string names;
  for (const GpuSheet& it : kSheets) {
    if (plain(name) == plain(it.name) || plain(name) == plain(it.title)) return &it;
    names += (names.empty() ? "" : ", ") + std::string(it.name);
  }
  return Error(ErrorCode::kInvalidArgument, "there is no GPU \"" + std::string(name) +
                                                "\" in the table, which has " + names +
                                                "; describe another NVIDIA GPU of compute "
                                                "capability 7.5 or newer with --gpu-gib, --tflops, "
                                                "--gpu-memory-gb-per-s and --bus-gb-per-s");
}

SustainedShare assumed_products(double tflops) {
  constexpr double kLarge = 600;  // such cards are limited by their power
  return tflops >= kLarge ? kHopper : kGeForce;
}

void describe_by_sheet(const SheetRates& sheet, ProbeReport& report) {
  offload::MachineSpeeds& speeds = report.speeds;
  const double bus = kBus.share * sheet.bus_gb_per_s * kGiga;
  speeds.bus = {.in_bytes_per_s = bus,
                .out_bytes_per_s = bus,
                .in_both_bytes_per_s = kBothWays.share * bus,
                .out_both_bytes_per_s = kBothWays.share * bus};
  speeds.gpu_copy_bytes_per_s = kCopies.share * sheet.memory_gb_per_s * kGiga;
  speeds.gpu_adamw_elements_per_s = kAdamw.share * sheet.memory_gb_per_s * kGiga / kGpuAdamwBytes;
  speeds.gpu_matmul_flops_per_s = sheet.products.share * sheet.tflops * kTera;
  report.shares = {{"large products", sheet.products.share, sheet.products.from},
                   kAttention,
                   kKernels,
                   kCopies,
                   kAdamw,
                   kBus,
                   kBothWays};
}

double kernel_rate(double copy_bytes_per_s) {
  return copy_bytes_per_s * kKernels.share / kCopies.share;
}

EstimateRates estimate_rates(const SheetRates& sheet) {
  const double products = sheet.products.share * sheet.tflops * kTera;
  return {.product_flops_per_s = products,
          .attention_flops_per_s = kAttention.share * products,
          .kernel_bytes_per_s = kKernels.share * sheet.memory_gb_per_s * kGiga,
          .gap_s = kGapS,
          .fp8_flops_per_s = sheet.products.fp8 * products};
}

}  // namespace sluice::engine
