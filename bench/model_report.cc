#include "bench/model_report.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "bench/result_header.h"

namespace sluice::bench {
namespace {

using Json = nlohmann::ordered_json;

double tflop_per_s(double flops, double ms) { return flops / ms * 1e-9; }

std::string row(const std::string& name, double ms, double flops, const std::string& memory) {
  char text[160];
  std::snprintf(text, sizeof text, "%-26s %10.3f", name.c_str(), ms);
  std::string line = text;
  if (flops > 0) {
    std::snprintf(text, sizeof text, " %10.1f", tflop_per_s(flops, ms));
    line += text;
  } else {
    line += std::string(11, ' ');
  }
  return line + memory + "\n";
}

std::string memory_of(const PassMeasurement& pass, double unit_input) {
  if (pass.peak_bytes == 0) return "";
  char text[96];
  std::snprintf(text, sizeof text, " %10.1f %10.2f", 1e-6 * static_cast<double>(pass.peak_bytes),
                static_cast<double>(pass.peak_bytes) / unit_input);
  std::string line = text;
  if (pass.bound_bytes == 0) return line;
  std::snprintf(text, sizeof text, " %10.2f", static_cast<double>(pass.bound_bytes) / unit_input);
  return line + text;
}

}  // namespace

const PassMeasurement& ModelReport::pass(const std::string& name) const {
  const auto found = std::find_if(passes.begin(), passes.end(),
                                  [&](const PassMeasurement& it) { return it.name == name; });
  if (found == passes.end()) throw std::logic_error("no pass is called " + name);
  return *found;
}

std::vector<ModelReport::Whole> ModelReport::wholes() const {
  const engine::ModelLayout layout = layout_of(options);
  const auto sum = [&](const std::string& name, const std::vector<std::string>& of_block) {
    Whole whole{name};
    const auto add = [&](const std::string& one, double times) {
      whole.ms += times * pass(one).median_ms();
      whole.flops += times * pass(one).flops;
    };
    for (int unit = 0; unit < layout.units(); ++unit) {
      if (!layout.is_block(unit)) continue;
      for (const std::string& one : of_block) add(layout.kind(unit).name() + one, 1);
    }
    add("head loss and gradient", 1);
    add("embedding forward", 1);
    add("embedding backward", 1);
    return whole;
  };
  return {sum("model, activations saved", {" forward, saving", " backward"}),
          sum("model, recomputed", {" forward", " recompute", " backward"})};
}

std::string ModelReport::table() const {
  char text[256];
  std::snprintf(text, sizeof text,
                "%lld layers x %lld, %lld heads, dropout %g; %lld x %lld tokens, %s%s, on %s\n\n",
                static_cast<long long>(options.shape.layers),
                static_cast<long long>(options.shape.hidden),
                static_cast<long long>(options.shape.heads), options.shape.dropout,
                static_cast<long long>(options.pass.micro_batch),
                static_cast<long long>(options.pass.tokens), options.dtype_name.c_str(),
                options.deterministic ? ", deterministic" : "", options.cuda ? "cuda" : "cpu");
  std::string table = text;
  table += std::string(26, ' ') + "         ms    TFLOP/s";
  table += options.cuda ? "    peak MB     inputs    planned\n" : "\n";
  const auto unit_input = static_cast<double>(layout_of(options).unit_input_bytes(options.pass));
  for (const PassMeasurement& it : passes) {
    table += row(it.name, it.median_ms(), it.flops, memory_of(it, unit_input));
  }
  for (const Whole& it : wholes()) table += row(it.name, it.ms, it.flops, "");
  return table;
}

std::string ModelReport::json(const aio::MachineInfo& machine, const std::string& command) const {
  Json json = result_header(machine, command);
  json["layers"] = options.shape.layers;
  json["hidden"] = options.shape.hidden;
  json["heads"] = options.shape.heads;
  json["dropout"] = options.shape.dropout;
  json["micro_batch"] = options.pass.micro_batch;
  json["tokens"] = options.pass.tokens;
  json["dtype"] = options.dtype_name;
  json["device"] = options.cuda ? "cuda" : "cpu";
  json["deterministic"] = options.deterministic;
  json["unit_input_bytes"] = layout_of(options).unit_input_bytes(options.pass);
  json["passes"] = Json::array();
  for (const PassMeasurement& it : passes) {
    Json one = {{"name", it.name}, {"median_ms", it.median_ms()}, {"ms", it.ms}};
    if (it.flops > 0) one["tflop_per_s"] = tflop_per_s(it.flops, it.median_ms());
    if (it.peak_bytes > 0) one["peak_bytes"] = it.peak_bytes;
    if (it.bound_bytes > 0) one["planned_bytes"] = it.bound_bytes;
    json["passes"].push_back(std::move(one));
  }
  json["models"] = Json::array();
  for (const Whole& it : wholes()) {
    json["models"].push_back(
        {{"name", it.name}, {"ms", it.ms}, {"tflop_per_s", tflop_per_s(it.flops, it.ms)}});
  }
  return text_of(json);
}

}  // namespace sluice::bench
