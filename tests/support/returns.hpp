// Batches for advantages_and_returns_into, in every layout that it reads.
#pragma once
#include <gdpo/value/advantages_and_returns.hpp>

#include "reference/naive_value.hpp"
#include "support/generators.hpp"

namespace return_cases {

using gdpo::index_t;

/// The rows of a batch, one after the other. All numbers are multiples of 2^-8 below 4, so that
/// float holds them, and bfloat16 holds `rewards`.
struct Data {
  std::vector<index_t> lengths;
  std::vector<double> rewards, values, logp, ref_logp;
  std::vector<unsigned char> mask;
  std::vector<double> row_rewards, bootstrap;

  index_t rows() const { return static_cast<index_t>(lengths.size()); }
  index_t tokens() const { return static_cast<index_t>(mask.size()); }
  std::vector<index_t> offsets() const {
    std::vector<index_t> o{0};
    for (const index_t n : lengths) o.push_back(o.back() + n);
    return o;
  }
  index_t width() const {
    index_t w = 0;
    for (const index_t n : lengths) w = std::max(w, n);
    return w;
  }
};

/// Adds a row of `length` tokens, of which about `share` are valid, with runs of masked ones.
inline void add_row(Random& random, Data& d, index_t length, double share) {
  d.lengths.push_back(length);
  const auto number = [&](double from, double to) {
    return std::floor((from + (to - from) * random.uniform()) * 256) / 256;
  };
  bool valid = random.chance(share);
  for (index_t t = 0; t < length; ++t) {
    if (random.chance(0.3)) valid = random.chance(share);
    d.mask.push_back(valid ? static_cast<unsigned char>(random.pick({1, 1, 2, 255})) : 0);
    d.rewards.push_back(random.chance(0.5) ? 0.0 : random.below(16) / 8.0 - 1);
    d.values.push_back(number(-2, 2));
    d.logp.push_back(number(-3, 0));
    d.ref_logp.push_back(d.logp.back() + number(-1, 1));
  }
  d.row_rewards.push_back(number(-2, 2));
  d.bootstrap.push_back(random.chance(0.5) ? 0.0 : number(-2, 2));
}
inline Data random_rows(Random& random, int rows, int longest) {
  Data d;
  for (int i = 0; i < rows; ++i) {
    add_row(random, d, random.chance(0.1) ? 0 : 1 + random.below(longest),
            random.pick({0.0, 0.5, 0.8, 0.8, 1.0, 1.0}));
  }
  return d;
}

template <class S>
struct Out {
  std::vector<S> advantages, returns;
};
template <class S>
bool operator==(const Out<S>& a, const Out<S>& b) {
  const auto same = [](const std::vector<S>& x, const std::vector<S>& y) {
    return x.size() == y.size() &&
           (x.empty() || std::memcmp(x.data(), y.data(), x.size() * sizeof(S)) == 0);
  };
  return same(a.advantages, b.advantages) && same(a.returns, b.returns);
}

template <class S>
std::vector<S> stored(const std::vector<double>& x) {
  return std::vector<S>(x.begin(), x.end());
}

/// Runs a call on packed arrays of S.
template <class S, class Exec, class Estimator>
Out<S> packed(const Exec& exec, const Data& d, const Estimator& estimator,
              gdpo::ReturnsWorkspace<S>& workspace) {
  const auto rewards = stored<S>(d.rewards), values = stored<S>(d.values), logp = stored<S>(d.logp),
             ref_logp = stored<S>(d.ref_logp);
  const std::vector<index_t> offsets = d.offsets();
  gdpo::ReturnBatch<S> b;
  b.rewards = gdpo::view(rewards), b.values = gdpo::view(values);
  b.logp = gdpo::view(logp), b.ref_logp = gdpo::view(ref_logp);
  b.mask = gdpo::view(d.mask);
  b.offsets = gdpo::view(offsets);
  b.row_rewards = gdpo::view(d.row_rewards), b.bootstrap = gdpo::view(d.bootstrap);
  Out<S> out{std::vector<S>(d.mask.size(), S(42)), std::vector<S>(d.mask.size(), S(42))};
  gdpo::advantages_and_returns_into(exec, b, estimator, gdpo::view(out.advantages),
                                    gdpo::view(out.returns), workspace);
  return out;
}
template <class S, class Exec, class Estimator>
Out<S> packed(const Exec& exec, const Data& d, const Estimator& estimator) {
  gdpo::ReturnsWorkspace<S> workspace;
  return packed<S>(exec, d, estimator, workspace);
}

/// How padded arrays lie in memory.
enum class Form { Dense, Columns, Reversed, Rank3, Gaps };

/// An array (rows, width) of T in some form; place(i, t) says where a token stands.
template <class T>
struct Padded {
  index_t rows, width;
  Form form;
  std::vector<T> data;
  Padded(index_t rows_, index_t width_, Form form_, T fill)
      : rows(rows_), width(width_), form(form_) {
    data.assign(static_cast<std::size_t>((rows + 2) * (2 * width + 3)), fill);
  }
  T& at(index_t i, index_t t) { return *(first() + i * row_step() + t * step()); }
  T* first() { return form == Form::Reversed ? data.data() + rows * width : data.data(); }
  index_t row_step() const {
    return form == Form::Columns    ? 1
           : form == Form::Reversed ? -width
           : form == Form::Gaps     ? 2 * width + 1
                                    : width;
  }
  index_t step() const {
    return form == Form::Columns ? rows : form == Form::Reversed ? -1 : form == Form::Gaps ? 2 : 1;
  }
  template <class View>
  View view() {
    if (form == Form::Rank3 && rows % 2 == 0) {
      gdpo::View<T, 3> v{first(), {rows / 2, 2, width}, {2 * row_step(), row_step(), step()}};
      return v;
    }
    gdpo::View<T, 2> v{first(), {rows, width}, {row_step(), step()}};
    return v;
  }
};

/// Runs a call on padded arrays whose rows begin `left` tokens from the left, everything else
/// being masked and filled with NaN. Stored: the type of the inputs.
template <class S, class Stored, class Exec, class Estimator>
Out<S> padded(const Exec& exec, const Data& d, const Estimator& estimator, Form form, index_t left,
              gdpo::ReturnsWorkspace<S>& workspace, bool in_place = false) {
  const index_t rows = d.rows(), width = left + d.width() + 1;
  const auto nan = static_cast<Stored>(std::numeric_limits<float>::quiet_NaN());
  Padded<Stored> rewards(rows, width, form, nan), values(rows, width, form, nan),
      logp(rows, width, form, nan), ref_logp(rows, width, form, nan);
  Padded<unsigned char> mask(rows, width, form, 0);
  Padded<S> advantages(rows, width, form, S(42)), returns(rows, width, form, S(42));
  const auto each = [&](const auto& f) {
    std::size_t k = 0;
    for (index_t i = 0; i < rows; ++i)
      for (index_t t = 0; t < d.lengths[static_cast<std::size_t>(i)]; ++t) f(i, left + t, k++);
  };
  each([&](index_t i, index_t t, std::size_t k) {
    mask.at(i, t) = d.mask[k];
    rewards.at(i, t) = static_cast<Stored>(d.rewards[k]);
    values.at(i, t) = static_cast<Stored>(d.values[k]);
    logp.at(i, t) = static_cast<Stored>(d.logp[k]);
    ref_logp.at(i, t) = static_cast<Stored>(d.ref_logp[k]);
  });
  using Tokens = gdpo::TokenView<S>;
  gdpo::ReturnBatch<S> b;
  b.rewards = rewards.template view<Tokens>(), b.values = values.template view<Tokens>();
  b.logp = logp.template view<Tokens>(), b.ref_logp = ref_logp.template view<Tokens>();
  b.mask = mask.template view<gdpo::TokenView<unsigned char>>();
  b.row_rewards = gdpo::view(d.row_rewards), b.bootstrap = gdpo::view(d.bootstrap);
  using Writes = gdpo::TokenOut<S>;
  Writes to = advantages.template view<Writes>(), also = returns.template view<Writes>();
  if constexpr (std::is_same_v<S, Stored>) {  // the outputs over the inputs
    if (in_place) to = rewards.template view<Writes>(), also = values.template view<Writes>();
  }
  gdpo::advantages_and_returns_into(exec, b, estimator, to, also, workspace);
  Out<S> out;
  each([&](index_t i, index_t t, std::size_t) {
    out.advantages.push_back(in_place ? static_cast<S>(rewards.at(i, t)) : advantages.at(i, t));
    out.returns.push_back(in_place ? static_cast<S>(values.at(i, t)) : returns.at(i, t));
  });
  if (!in_place) {  // padding is exactly 0
    const Out<S> zero{{S(0)}, {S(0)}};
    for (index_t i = 0; i < rows; ++i) {
      for (index_t t = 0; t < width; ++t) {
        if (mask.at(i, t) == 0 && !(Out<S>{{advantages.at(i, t)}, {returns.at(i, t)}} == zero))
          out.advantages.push_back(S(7));  // makes the comparison of the caller fail
      }
    }
  }
  return out;
}

/// What the definition gives. kl: the penalty of each token without its coefficient.
template <class Kl>
naive::ReturnsResult expected(const Data& d, const naive::ReturnsSettings& s, double coef,
                              const gdpo::Bounds& clip, const Kl& kl) {
  naive::ReturnsResult all;
  std::size_t k = 0;
  for (std::size_t i = 0; i < d.lengths.size(); ++i) {
    naive::ReturnsRow row;
    row.row_reward = std::max(std::min(d.row_rewards[i], clip.hi), clip.lo);
    row.bootstrap = d.bootstrap[i];
    for (index_t t = 0; t < d.lengths[i]; ++t, ++k) {
      row.rewards.push_back(d.rewards[k]), row.values.push_back(d.values[k]);
      row.penalties.push_back(static_cast<long double>(coef) *
                              kl(static_cast<long double>(d.logp[k]) - d.ref_logp[k]));
      row.valid.push_back(d.mask[k] != 0);
    }
    const naive::ReturnsResult one = naive::returns_of_row(row, s);
    all.advantages.insert(all.advantages.end(), one.advantages.begin(), one.advantages.end());
    all.returns.insert(all.returns.end(), one.returns.begin(), one.returns.end());
  }
  return all;
}

constexpr gdpo::Steps all_steps[] = {gdpo::Steps::Valid, gdpo::Steps::Row,
                                     gdpo::Steps::RowRewardOnValid, gdpo::Steps::Turns};

}  // namespace return_cases
