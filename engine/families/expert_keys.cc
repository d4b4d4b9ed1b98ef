#include "engine/families/expert_keys.h"

#include <string>

namespace sluice::engine {
namespace {

constexpr const char* kCoefficient = "router_aux_loss_coef";
constexpr const char* kBalances = "output_router_logits";

const ConfigPart kBalancePart = {
    .keys = "output_router_logits|router_aux_loss_coef",
    .read =
        [](ConfigReading& reading) {
          constexpr double kOfClass = 0.001;
          constexpr double kMost = 1e9;
          const double coefficient = reading.config.number(kCoefficient, kOfClass, 0, kMost);
          if (reading.config.flag(kBalances, false))
            reading.numbers()[std::string(kBalanceCoefficient)] = coefficient;
        },
    .write =
        [](const ShapeReader& of, HuggingFaceConfig::Json& json) {
          const double coefficient = of.number(kBalanceCoefficient);
          json[kBalances] = coefficient > 0;
          if (coefficient > 0) json[kCoefficient] = coefficient;
        }};

}  // namespace

std::vector<ConfigRow> balance_rows(std::string_view classes) {
  return {part_row(kBalancePart, classes),
          {.key = kCoefficient,
           .number = later(factor_number(
               "model.router_aux_loss_coef", 0,
               "with experts: adds so many times the balance loss, which is lower the more evenly "
               "tokens are shared among the experts; 0: none, as with output_router_logits false")),
           .use = ConfigUse::kOfPart,
           .classes = classes}};
}

Status check_experts(const ExpertsSpec& experts) {
  constexpr std::int64_t kMostExperts = 1 << 12;
  if (experts.count < 1 || experts.count > kMostExperts)
    return cannot_build("experts is " + std::to_string(experts.count) + "; it must be from 1 to " +
                        std::to_string(kMostExperts));
  if (experts.per_token < 1 || experts.per_token > experts.count)
    return cannot_build("experts_per_token is " + std::to_string(experts.per_token) +
                        "; it must be at least 1, and each block has " +
                        std::to_string(experts.count) + " experts");
  return {};
}

}  // namespace sluice::engine
