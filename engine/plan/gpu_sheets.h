// GPUs by their data sheets, and what a step reaches of what a data sheet says.
//
// Threads: pure functions.
// Errors:  kInvalidArgument for a name that the table does not have, with those that it has.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "aio/result.h"
#include "engine/probe/probe_report.h"
#include "engine/probe/unit_times.h"
#include "offload/planner/machine_speeds.h"

namespace sluice::engine {

// What products reach for minutes, of the rate that is given: power and clocks decide it, so it
// differs between kinds of cards.
struct SustainedShare {
  double share = 0;
  std::string_view from;
};

struct GpuSheet {
  std::string_view name;   // what --gpu takes
  std::string_view title;  // as its maker calls it
  double memory_gib = 0;   // that a program finds
  double tflops = 0;       // dense, 16 bits, sums in fp32
  double memory_gb_per_s = 0;
  double bus_gb_per_s = 0;  // PCIe, each way
  SustainedShare products;
};

std::span<const GpuSheet> gpu_sheets();
// However it is written: "RTX 4090", "rtx-4090", "4090".
Result<const GpuSheet*> find_gpu_sheet(std::string_view name);

// Of a GPU that is described by numbers and not by its name.
SustainedShare assumed_products(double tflops);

// The rates that a plan works with, for what a data sheet says; `report` names the shares taken.
struct SheetRates {
  double tflops = 0;
  double memory_gb_per_s = 0;
  double bus_gb_per_s = 0;
  SustainedShare products;
};
void describe_by_sheet(const SheetRates& sheet, ProbeReport& report);
EstimateRates estimate_rates(const SheetRates& sheet);

}  // namespace sluice::engine
