// GPUs by their data sheets, and the fractions of those numbers that a step reaches.
//
// Threads: pure functions.
// Errors:  kInvalidArgument for a name that is not in the table, listing the names that are.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "aio/result.h"
#include "engine/probe/probe_report.h"
#include "engine/probe/unit_times.h"
#include "offload/planner/machine_speeds.h"

namespace sluice::engine {

// The fraction of the data sheet's rate that products sustain for minutes. Power and clocks
// determine it, so it differs between kinds of cards.
struct SustainedShare {
  double share = 0;
  std::string_view from;
  double fp8 = 0;  // the rate of products in fp8, relative to that; 0: the GPU has none
};

struct GpuSheet {
  std::string_view name;   // for --gpu
  std::string_view title;  // the maker's name
  double memory_gib = 0;   // available to a program
  double tflops = 0;       // dense, 16 bits, sums in fp32
  double memory_gb_per_s = 0;
  double bus_gb_per_s = 0;  // PCIe, each way
  SustainedShare products;
};

std::span<const GpuSheet> gpu_sheets();
// Accepts any spelling: "RTX 4090", "rtx-4090", "4090"; and what a driver reports.
Result<const GpuSheet*> find_gpu_sheet(std::string_view name);

// For a GPU that is described by numbers instead of by name.
SustainedShare assumed_products(double tflops);

// The rates that a plan uses for a data sheet; `report` gets the fractions that were applied.
struct SheetRates {
  double tflops = 0;
  double memory_gb_per_s = 0;
  double bus_gb_per_s = 0;
  SustainedShare products;
};
void describe_by_sheet(const SheetRates& sheet, ProbeReport& report);
EstimateRates estimate_rates(const SheetRates& sheet);
// EstimateRates::kernel_bytes_per_s of a GPU that copies so fast.
double kernel_rate(double copy_bytes_per_s);

}  // namespace sluice::engine
