// adamw_replay KEY=VALUE...: trains one array like a training step (gradients cast and summed, the
// norm, AdamW), with all data from files, for comparison by a test in another language.
//
//   isa=auto|scalar|avx2|avx512  grad=fp32|bf16|fp16  form=split|fp32|fp32+fp16
//   mode=adamw|l2  lr= decay= clip= limit= scale=  elements= steps=  in=FILE out=FILE
//
// in:  p, then for each step the gradient times `scale`. All are fp32, little-endian like all
//      numbers here.
// out: p, m, v (fp32), the 16-bit parameter, unless form=fp32. Then for each step the norm and
//      s * scale (float64), the gradient's factor in addition to undoing the scale.
//
// Exits with 3 if this CPU lacks the isa.
#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "aio/executor.h"
#include "offload/adamw/adamw.h"
#include "offload/adamw/grad_stats.h"
#include "offload/adamw/isa.h"
#include "offload/adamw/split_master.h"

namespace sluice::offload {
namespace {

constexpr int kThreads = 2;
constexpr int kFailed = 1;
constexpr int kWrongUse = 2;
constexpr int kIsaMissing = 3;

struct Problem {
  Isa isa = Isa::kScalar;
  AdamwOptions options;
  GradType grad = GradType::kFp32;
  ParamForm form = ParamForm::kFp32;
  std::uint64_t elements = 0;
  int steps = 0;
};

// Throws std::out_of_range for a missing key, or for a value that is not listed above.
Problem problem_of(const std::map<std::string, std::string>& given, Isa isa) {
  static const std::map<std::string, GradType> grads = {
      {"fp32", GradType::kFp32}, {"bf16", GradType::kBf16}, {"fp16", GradType::kFp16}};
  static const std::map<std::string, ParamForm> forms = {{"split", ParamForm::kSplit},
                                                         {"fp32", ParamForm::kFp32},
                                                         {"fp32+fp16", ParamForm::kFp32AndFp16}};
  static const std::map<std::string, bool> modes = {{"adamw", true}, {"l2", false}};
  return {.isa = isa,
          .options = {.learning_rate = std::stod(given.at("lr")),
                      .weight_decay = std::stod(given.at("decay")),
                      .adam_w_mode = modes.at(given.at("mode")),
                      .loss_scale = std::stod(given.at("scale")),
                      .clip_norm = std::stod(given.at("clip")),
                      .clip_value = std::stod(given.at("limit"))},
          .grad = grads.at(given.at("grad")),
          .form = forms.at(given.at("form")),
          .elements = std::stoull(given.at("elements")),
          .steps = std::stoi(given.at("steps"))};
}

template <typename T>
void read(std::istream& in, std::vector<T>& values) {
  in.read(reinterpret_cast<char*>(values.data()),
          static_cast<std::streamsize>(values.size() * sizeof(T)));
}
template <typename T>
void write(std::ostream& out, const std::vector<T>& values) {
  out.write(reinterpret_cast<const char*>(values.data()),
            static_cast<std::streamsize>(values.size() * sizeof(T)));
}

class Replay {
 public:
  Replay(const Problem& problem, aio::Executor& executor)
      : problem_(problem),
        executor_(executor),
        p_(problem.elements),
        m_(problem.elements),
        v_(problem.elements),
        grad32_(problem.elements),
        grad16_(problem.elements),
        param16_(problem.elements),
        lo_(problem.elements),
        sum_(problem.elements) {}

  Status run(std::istream& in) {
    read(in, p_);
    for (std::size_t i = 0; i < p_.size(); ++i) {
      const SplitMaster halves = split_master(p_[i]);
      param16_[i] = halves.hi;
      lo_[i] = halves.lo;
    }
    for (int t = 1; t <= problem_.steps; ++t) {
      read(in, grad32_);
      SLUICE_RETURN_IF_ERROR(step(t));
    }
    if (problem_.form == ParamForm::kSplit)
      for (std::size_t i = 0; i < p_.size(); ++i)
        p_[i] = join_master({.hi = param16_[i], .lo = lo_[i]});
    return {};
  }

  void write_all(std::ostream& out) const {
    write(out, p_);
    write(out, m_);
    write(out, v_);
    if (problem_.form != ParamForm::kFp32) write(out, param16_);
    write(out, norms_);
    write(out, factors_);
  }

 private:
  Status step(int t) {
    sum_.reset(0);
    cast_and_sum(executor_, problem_.isa,
                 {.grad = grad32_.data(),
                  .to = problem_.grad,
                  .out = grad16_.data(),
                  .elements = problem_.elements},
                 sum_);
    AdamwOptions options = problem_.options;
    options.step = t;
    options.grad_norm = std::sqrt(sum_.total()) / options.loss_scale;
    SLUICE_ASSIGN_OR_RETURN(const AdamwScalars scalars, make_adamw_scalars(options));
    const AdamwArrays arrays{.grad_type = problem_.grad,
                             .param_form = problem_.form,
                             .grad = problem_.grad == GradType::kFp32
                                         ? static_cast<const void*>(grad32_.data())
                                         : grad16_.data(),
                             .master = p_.data(),
                             .param16 = param16_.data(),
                             .lo = lo_.data(),
                             .m = m_.data(),
                             .v = v_.data()};
    adamw_step(executor_, problem_.isa, scalars, arrays, problem_.elements);
    norms_.push_back(options.grad_norm);
    factors_.push_back(scalars.grad_scale * options.loss_scale);
    return {};
  }

  const Problem problem_;
  aio::Executor& executor_;
  std::vector<float> p_, m_, v_, grad32_;
  std::vector<std::uint16_t> grad16_, param16_, lo_;
  SquareSum sum_;
  std::vector<double> norms_, factors_;
};

int run(const std::map<std::string, std::string>& given) {
  const auto isa = choose_isa(given.at("isa"));
  if (!isa.ok()) {
    std::fprintf(stderr, "adamw_replay: %s\n", isa.error().message().c_str());
    return isa.error().code() == ErrorCode::kUnsupported ? kIsaMissing : kWrongUse;
  }
  const auto executor = aio::make_executor(kThreads);
  Replay replay(problem_of(given, *isa), *executor.value());
  std::ifstream in(given.at("in"), std::ios::binary);
  std::ofstream out(given.at("out"), std::ios::binary);
  const Status done = replay.run(in);
  replay.write_all(out);
  if (done.ok() && in && out.flush()) return 0;
  std::fprintf(
      stderr, "adamw_replay: %s\n",
      done.ok() ? "in= is too short, or out= cannot be written" : done.error().message().c_str());
  return kFailed;
}

}  // namespace
}  // namespace sluice::offload

int main(int argc, char** argv) {
  std::map<std::string, std::string> given;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const std::size_t equals = word.find('=');
    if (equals != std::string::npos) given[word.substr(0, equals)] = word.substr(equals + 1);
  }
  try {
    return sluice::offload::run(given);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "adamw_replay: a key is missing or has a wrong value (%s)\n",
                 error.what());
    return sluice::offload::kWrongUse;
  }
}
