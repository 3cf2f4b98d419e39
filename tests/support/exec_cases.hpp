// A batch in one of several layouts, and a loss of it on every execution target.
#pragma once
#include <cstring>

#include "support/executors.hpp"
#include "support/loss_calls.hpp"

namespace exec_cases {

using loss_product::Data;
using loss_product::Outcome;

enum class Form { Padded, Packed, Grouped, StridedGradient, SixteenBits };
constexpr Form all_forms[] = {Form::Padded, Form::Packed, Form::Grouped, Form::StridedGradient,
                              Form::SixteenBits};

/// A 16-bit type of the caller: the upper half of a float.
struct Upper {
  std::uint16_t bits;
  explicit Upper(double x)
      : bits(static_cast<std::uint16_t>(gdpo::math::bits_of(static_cast<float>(x)) >> 16)) {}
  explicit operator float() const {
    return gdpo::math::from_bits(static_cast<std::uint32_t>(bits) << 16);
  }
};

/// Makes all NaN the same NaN. Which bits a NaN has depends on the operand that the processor takes
/// it from.
inline void unify_nan(std::vector<double>& x) {
  for (double& v : x) v = std::isnan(v) ? std::numeric_limits<double>::quiet_NaN() : v;
}
/// "" where two outcomes have the same bits, all NaN being equal; else what differs.
inline std::string difference_but_nan(const Outcome& a, const Outcome& b) {
  std::vector<double> numbers[] = {a.gradient, b.gradient, loss_product::numbers(a.result),
                                   loss_product::numbers(b.result)};
  for (auto& x : numbers) unify_nan(x);
  const std::string gradient = difference(numbers[0], numbers[1]),
                    result = difference(numbers[2], numbers[3]);
  return (gradient.empty() ? "" : "gradient " + gradient) +
         (result.empty() ? "" : " result " + result);
}

/// loss_product::random_tokens with tags. `poison` is the share of tokens that are NaN or infinite
/// in one of the arrays.
inline Data random_data(Random& random, int rows, int width, double poison = 0) {
  Data d =
      loss_product::random_tokens(random, rows, width, random.pick({1e-3, 0.1, 0.6, 30.0}), true);
  const auto n = static_cast<std::size_t>(rows * width);
  for (std::size_t k = 0; k < n; ++k) d.tags.push_back(random.below(3));
  if (d.old_logp.empty()) d.old_logp = d.logp;  // KL terms against the old policy need it
  for (std::size_t k = 0; k < n && poison > 0; ++k) {
    if (!random.chance(poison)) continue;
    constexpr double infinite = std::numeric_limits<double>::infinity();
    std::vector<double>& array =
        d.*
        loss_product::token_arrays[random.below(static_cast<int>(loss_product::arrays_of_numbers))];
    if (!array.empty()) array[k] = random.pick({std::nan(""), infinite, -infinite});
  }
  return d;
}

/// A batch of S in one layout.
template <class S>
class Case {
 public:
  Case(Random& random, const Data& data, Form form)
      : form_(form),
        data_(data),
        packed_(loss_product::pack<std::int32_t>(data, lengths(random, data))) {
    const Data& stored = form == Form::Packed ? packed_.data : data_;
    arrays_ = std::make_unique<loss_product::Arrays<S>>(stored);
    if (form == Form::SixteenBits)
      sixteen_ = std::make_unique<loss_product::Arrays<S, Upper>>(data_);
    if (form == Form::Packed) {
      batch_ = loss_product::packed_batch(*arrays_, packed_.offsets);
    } else if (form == Form::Grouped && data.rows % 2 == 0) {
      batch_ = arrays_->grouped_batch(2);
    } else {
      batch_ = sixteen_ ? sixteen_->batch() : arrays_->batch();
    }
    normalizer_ = gdpo::count(batch_);
    normalizer_.given = 3;
  }
  Case(const Case&) = delete;
  Case& operator=(const Case&) = delete;

  const gdpo::TokenBatch<S>& batch() const { return batch_; }
  const gdpo::Normalizer& normalizer() const { return normalizer_; }
  /// An output view over `gradient`. In the form StridedGradient, tokens are two numbers apart; the
  /// numbers between them are -77 and must stay so on every target.
  gdpo::TokenOut<S> out(std::vector<S>& gradient) const {
    const gdpo::index_t rows = data_.rows, width = data_.width,
                        step = form_ == Form::StridedGradient ? 2 : 1;
    const auto n = form_ == Form::Packed ? packed_.data.logp.size() : data_.logp.size();
    gradient.assign(n * static_cast<std::size_t>(step), S(-77));
    if (form_ == Form::Packed) return gdpo::view(gradient);
    if (batch_.logp.rank() == 3) return gdpo::view(gradient.data(), 2, rows / 2, width);
    return gdpo::View<S, 2>{gradient.data(), {rows, width}, {step * width, step}};
  }
  template <class Exec, class Loss>
  Outcome on(const Exec& exec, const Loss& loss, gdpo::LossWorkspace<S>& workspace) const {
    std::vector<S> gradient;
    const gdpo::TokenOut<S> to = out(gradient);
    Outcome o;
    o.result = loss(exec, batch_, normalizer_, to, workspace);
    o.gradient.assign(gradient.begin(), gradient.end());
    return o;
  }
  /// "" where all targets give the bits of seq. A small batch stays on one thread, so simd is the
  /// only other target that needs a run.
  template <class Loss>
  std::string difference_of_targets(const Loss& loss, bool large) const {
    gdpo::LossWorkspace<S> workspace;
    const Outcome expected = on(gdpo::seq, loss, workspace);
    std::string differences;
    const auto compare = [&](const auto& exec, const std::string& name) {
      const std::string different = difference_but_nan(on(exec, loss, workspace), expected);
      if (!different.empty()) differences += name + ": " + different + "\n";
    };
    if (large) {
      executors::for_each_target(compare);
    } else {
      compare(gdpo::simd, "simd");
    }
    return differences;
  }

 private:
  static std::vector<int> lengths(Random& random, const Data& data) {
    std::vector<int> n;
    for (int i = 1; i < data.rows; ++i) n.push_back(random.below(data.width + 1));
    n.push_back(data.width);
    return n;
  }
  Form form_;
  Data data_;
  loss_product::Packed<std::int32_t> packed_;
  std::unique_ptr<loss_product::Arrays<S>> arrays_;
  std::unique_ptr<loss_product::Arrays<S, Upper>> sixteen_;
  gdpo::TokenBatch<S> batch_;
  gdpo::Normalizer normalizer_;
};

}  // namespace exec_cases
