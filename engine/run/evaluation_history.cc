#include "engine/run/evaluation_history.h"

#include <cmath>

namespace sluice::engine {

bool EvaluationHistory::add(std::int64_t step, double loss) {
  const bool is_lowest = std::isfinite(loss) && (!made_.lowest_loss || loss < *made_.lowest_loss);
  const bool improves =
      is_lowest && (!made_.lowest_loss || *made_.lowest_loss - loss > rules_.min_delta);
  made_.without_improvement = improves ? 0 : made_.without_improvement + 1;
  if (is_lowest) {
    made_.lowest_loss = loss;
    made_.lowest_step = step;
  }
  return is_lowest;
}

}  // namespace sluice::engine
