// AdamW (Loshchilov & Hutter, "Decoupled Weight Decay Regularization", ICLR 2019) and Adam with L2
// (Kingma & Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015) over flat arrays. One pass
// over memory does unscale, clip, update, weight decay and the new 16-bit parameter.
//
// Definition, in this order. Every operation, fma() included, is one correctly rounded fp32
// operation:
//
//   G = limit(g * s)                            s = 1 / (scale * max(1, (norm + 1e-6) / clip))
//   G = fma(wd, p, G)                           with L2 only
//   m = store(fma(1 - b1, G - m, m))
//   v = store(fma(1 - b2, fma(G, G, -v), v))
//   d = fma(sqrt(v), 1/sqrt(c2), eps)           c2 = 1 - b2^t
//   p = nan(p - fma(lr * wd, p, (lr/c1) * (m/d)))   c1 = 1 - b1^t; lr * wd is 0 with L2
//
//   limit(x) = c where x > c, -c where x < -c, else x: NaN stays NaN
//   nan(x)   = 0x7FC00000 where x is any NaN, else x
//   store(x) = +0 where |x| < 2^-126 (-0 included), else nan(x)
//
// So fp32 m and v are used as they are stored: a step depends only on stored state. p is not
// flushed: its denormals and -0 are kept. The 16-bit parameter is made from the stored p.
//
// bf16 moments: m and v are widened, the step is the same, and p is made from the fp32 m and v.
// Then each moment is rounded stochastically (moment_rounding.h). Rounding to nearest would undo a
// decay of v by 1 - b2, 0.001 of it, since bf16 has steps of 2^-8. So a step depends on stored
// state and on random bits, which are a function of (run seed, step, unit, element) only.
//
// Bits: the same for every Isa, for CUDA, for every division of the arrays and every number of
// threads, and for any input: denormals, infinities, NaNs, negative v. MXCSR is set to its default
// for each piece of work and restored.
#pragma once

#include <cstdint>

#include "aio/executor.h"
#include "aio/result.h"
#include "offload/adamw/adamw_arrays.h"
#include "offload/adamw/isa.h"

namespace sluice::offload {

struct AdamwOptions {
  double learning_rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool adam_w_mode = true;  // false: Adam with L2
  bool bias_correction = true;
  std::int64_t step = 1;  // t: 1 in the first step that is applied
  double loss_scale = 1;  // the factor by which the gradients are scaled
  double grad_norm = 0;   // over all gradients, already divided by the loss scale
  double clip_norm = 0;   // largest norm allowed; 0: no clipping
  double clip_value = 0;  // largest magnitude of an element, c; 0: no limit
};

// kInvalidArgument names the invalid option. That includes a norm that is not finite: a step that
// overflowed must not be applied.
Result<AdamwScalars> make_adamw_scalars(const AdamwOptions& options);

// One step over `elements` elements, with all of the executor's threads; nothing is allocated.
// Arrays must be aligned to their element type, and should be aligned to pages for speed. Piece i
// of the work is the same range of the arrays in every call of the same length, which keeps memory
// local to its core.
void adamw_step(aio::Executor& executor, Isa isa, const AdamwScalars& scalars,
                const AdamwArrays& arrays, std::uint64_t elements);

// The same over elements [begin, end) of the arrays, on the calling thread only.
void adamw_range(Isa isa, const AdamwScalars& scalars, const AdamwArrays& arrays,
                 std::uint64_t begin, std::uint64_t end);

}  // namespace sluice::offload
