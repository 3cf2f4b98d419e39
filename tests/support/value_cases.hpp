// Value losses of random data: batches in memory of their own, what a call gave, and how two of
// them differ.
#pragma once
#include <cstring>
#include <gdpo/value/value_loss.hpp>
#include <reference/naive_value_loss.hpp>
#include <string>
#include <vector>

#include "support/generators.hpp"

namespace value_cases {

using gdpo::index_t, gdpo::view;
using naive_value::Data;

/// Random tokens whose values lie near their returns and their old values. Numbers are floats, so
/// that a batch of float holds the same. `valid` is the share of tokens that the mask lets in, and
/// 1 is no mask.
inline Data random_values(Random& random, int rows, int width, double valid = 0.7) {
  Data d;
  d.rows = rows, d.width = width;
  const auto number = [&](double spread) {
    return static_cast<double>(static_cast<float>(spread * (2 * random.uniform() - 1)));
  };
  for (int k = 0; k < rows * width; ++k) {
    d.values.push_back(number(2));
    d.old_values.push_back(static_cast<double>(static_cast<float>(d.values.back() + number(0.6))));
    d.returns.push_back(static_cast<double>(static_cast<float>(d.values.back() + number(1))));
    if (valid < 1) d.mask.push_back(random.chance(valid) ? 1 : 0);
  }
  return d;
}

/// The arrays of a Data as S, and a batch of them.
template <class S>
struct Arrays {
  std::vector<S> values, old_values, returns;
  std::vector<unsigned char> mask;
  std::vector<double> row_weights, group_tokens;
  std::vector<index_t> offsets;
  int rows, width;

  explicit Arrays(const Data& d)
      : values(d.values.begin(), d.values.end()),
        old_values(d.old_values.begin(), d.old_values.end()),
        returns(d.returns.begin(), d.returns.end()),
        mask(d.mask),
        row_weights(d.row_weights),
        group_tokens(d.group_tokens),
        rows(d.rows),
        width(d.width) {}
  /// The same with the first lengths[i] tokens of row i alone, packed.
  Arrays(const Data& d, const std::vector<int>& lengths)
      : row_weights(d.row_weights),
        group_tokens(d.group_tokens),
        offsets{0},
        rows(d.rows),
        width(d.width) {
    for (int i = 0; i < d.rows; ++i) {
      for (int t = 0; t < lengths[static_cast<std::size_t>(i)]; ++t) {
        const std::size_t k = d.at(i, t);
        values.push_back(static_cast<S>(d.values[k]));
        old_values.push_back(static_cast<S>(d.old_values[k]));
        returns.push_back(static_cast<S>(d.returns[k]));
        if (!d.mask.empty()) mask.push_back(d.mask[k]);
      }
      offsets.push_back(static_cast<index_t>(values.size()));
    }
  }
  template <class T>
  void bind(gdpo::TokenView<T>& to, const std::vector<T>& from) const {
    if (from.empty() && !values.empty()) return;
    if (offsets.empty()) {
      to = view(from.data(), rows, width);
    } else {
      to = view(from.data(), static_cast<index_t>(from.size()));
    }
  }
  gdpo::ValueBatch<S> batch() const {
    gdpo::ValueBatch<S> b;
    bind(b.values, values), bind(b.old_values, old_values), bind(b.returns, returns);
    if (!mask.empty()) bind(b.mask, mask);
    if (!row_weights.empty()) b.row_weights = view(row_weights);
    if (!group_tokens.empty()) b.group_tokens = view(group_tokens);
    if (!offsets.empty()) b.offsets = view(offsets);
    return b;
  }
  gdpo::TokenOut<S> out(std::vector<S>& gradient) const {
    if (offsets.empty()) return view(gradient.data(), rows, width);
    return view(gradient.data(), static_cast<index_t>(gradient.size()));
  }
};

/// What a call gave.
template <class S>
struct Outcome {
  gdpo::ValueLossResult result;
  std::vector<S> gradient;
};
template <class S, class Exec, class Loss>
Outcome<S> run(const Exec& exec, const Loss& loss, const Arrays<S>& arrays,
               const gdpo::Normalizer& normalizer) {
  Outcome<S> o;
  o.gradient.assign(arrays.values.size(), S(-77));
  gdpo::ValueWorkspace<S> workspace;
  o.result = loss(exec, arrays.batch(), normalizer, arrays.out(o.gradient), workspace);
  return o;
}
template <class S, class Exec, class Loss>
Outcome<S> run(const Exec& exec, const Loss& loss, const Arrays<S>& arrays) {
  return run(exec, loss, arrays, gdpo::count(arrays.batch()));
}

/// All numbers of a result, in a fixed order.
inline std::vector<double> numbers(const gdpo::ValueLossResult& r) {
  std::vector<double> all{r.loss, r.normalizer.tokens, r.normalizer.rows,
                          r.normalizer.non_empty_rows};
  const gdpo::ValueMetrics& m = r.metrics;
  for (const gdpo::Metric* x : {&m.loss, &m.value, &m.error, &m.clip_fraction}) {
    for (const double one :
         {x->sum, x->count, x->min, x->max, x->row_sum, x->rows, x->row_min, x->row_max})
      all.push_back(one);
  }
  for (const gdpo::Moments* x : {&m.returns, &m.residuals}) {
    for (const double one :
         {static_cast<double>(x->n), x->weight, x->mean, x->mean_low, x->m2, x->min, x->max})
      all.push_back(one);
  }
  const gdpo::ValueNonFinite& n = m.non_finite;
  for (const gdpo::NonFinite* x : {&n.values, &n.old_values, &n.returns, &n.weights}) {
    for (const index_t one : {x->count, x->row, x->token}) all.push_back(static_cast<double>(one));
  }
  all.push_back(static_cast<double>(m.rows)), all.push_back(static_cast<double>(m.empty_rows));
  return all;
}

/// Where two lists differ in a bit; "" where nowhere. Any NaN equals any NaN.
template <class T>
std::string difference(const std::vector<T>& a, const std::vector<T>& b) {
  if (a.size() != b.size()) return "sizes";
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] != a[i] && b[i] != b[i]) continue;
    if (std::memcmp(&a[i], &b[i], sizeof(T)) != 0) {
      return "[" + std::to_string(i) + "] " + gdpo::contract::text(static_cast<double>(a[i])) +
             " and " + gdpo::contract::text(static_cast<double>(b[i]));
    }
  }
  return "";
}
inline std::string difference(const gdpo::ValueLossResult& a, const gdpo::ValueLossResult& b) {
  return difference(numbers(a), numbers(b));
}
template <class S>
std::string difference(const Outcome<S>& a, const Outcome<S>& b) {
  const std::string of_results = difference(a.result, b.result);
  return of_results == "" ? difference(a.gradient, b.gradient) : of_results;
}

/// The library's aggregate of these settings.
inline gdpo::Aggregate aggregate_of(const naive_value::Settings& s) {
  using naive_value::Aggregate;
  namespace aggregate = gdpo::aggregate;
  switch (s.aggregate) {
    case Aggregate::TokenMean:
      return aggregate::token_mean();
    case Aggregate::RowsTokenMean:
      return aggregate::seq_mean_token_mean();
    case Aggregate::NonEmptyRowsTokenMean:
      return aggregate::seq_mean_token_mean(gdpo::Over::NonEmptyRows);
    case Aggregate::RowsTokenSum:
      return aggregate::seq_mean_token_sum();
    case Aggregate::TokenSum:
      break;
  }
  return aggregate::token_sum();
}
/// The loss of these settings, to f.
template <class F>
void with_loss(const naive_value::Settings& s, const F& f) {
  gdpo::ValueLoss<> loss;
  if (s.clips) loss.clip = s.clip;
  loss.half = s.half, loss.delta = s.delta, loss.aggregate = aggregate_of(s);
  f(loss);
}
inline naive_value::Settings random_settings(Random& random) {
  naive_value::Settings s;
  s.clips = random.chance(0.7), s.half = random.chance(0.5);
  s.clip = random.pick({0.0, 0.1, 0.2, 0.5});
  if (random.chance(0.4)) s.delta = random.pick({0.05, 0.3, 0.7});
  using naive_value::Aggregate;
  s.aggregate =
      random.pick({Aggregate::TokenMean, Aggregate::RowsTokenMean, Aggregate::NonEmptyRowsTokenMean,
                   Aggregate::RowsTokenSum, Aggregate::TokenSum});
  return s;
}

}  // namespace value_cases
