// A loss with a surrogate of your own: SPO (arXiv 2401.16025), which pulls the ratio back towards 1
// by a parabola where PPO clips it. A surrogate is one struct with one formula; the library brings
// levels, KL terms, denominators, the gradient over tokens, metrics, lanes and threads. Read
// trainer_step.cpp first; custom_estimator.cpp does the same for advantages.
//
// Build and run, from the root of the repository:
//   g++ -std=c++17 -I include examples/custom_loss.cpp -o custom_loss
//   ./custom_loss
#include <cstdio>
#include <gdpo/loss.hpp>
#include <vector>

/// The loss of a token is -A r + |A| (r - 1)^2 / (2 eps), with advantage A and ratio r.
///
/// V is a number or a register of numbers, so that one formula serves scalar code, vector lanes and
/// kernels of devices. It has unary and binary minus, plus, comparisons, and the functions of
/// gdpo::math: products are math::mul, constants math::constant<V>, and a choice is math::select.
struct ParabolicClip {
  double eps = 0.2;

  template <class V>
  gdpo::Term<V> operator()(const gdpo::Token<V>& t) const {
    using gdpo::math::constant, gdpo::math::mul;
    const V away = t.ratio - constant<V>(1.0);
    const V strength = mul(gdpo::math::abs(t.advantage), constant<V>(1 / eps));
    const V value =
        mul(-t.advantage, t.ratio) + mul(mul(strength, constant<V>(0.5)), mul(away, away));
    // d r / d log r = r, so the derivative by the log ratio is r times that by r.
    const V d_log_ratio = mul(t.ratio, mul(strength, away) - t.advantage);
    // The third number is the derivative by the token's own logp beside the ratio: there is none.
    return {value, d_log_ratio, constant<V>(0.0)};
  }
};

int main() {
  // The other parts come from the library: one ratio a token, no KL term, the mean over tokens.
  gdpo::PolicyLoss<gdpo::level::Token<>, ParabolicClip, gdpo::kl::None> loss;
  loss.aggregate = gdpo::aggregate::token_mean();
  loss.surrogate.eps = 0.3;

  const int B = 2, T = 3;  // completions, tokens; log-probs in nats
  std::vector<float> logp = {-0.9f, -1.4f, -0.2f, -0.5f, -0.7f, -1.0f}, dlogp(logp.size());
  const std::vector<float> old_logp = {-1.0f, -1.1f, -0.2f, -0.6f, -0.4f, -1.2f};
  const std::vector<float> advantages = {1, -1};
  gdpo::TokenBatch<float> batch;
  batch.logp = gdpo::view(logp.data(), B, T);
  batch.old_logp = gdpo::view(old_logp.data(), B, T);
  batch.advantages = gdpo::view(advantages);
  const gdpo::Normalizer normalizer = gdpo::count(batch);
  const double before = loss(batch, normalizer, gdpo::view(dlogp.data(), B, T)).loss;
  std::printf("loss %.4f\n", before);

  // A formula and its derivative are written by hand, so check one against the other.
  const float step = 1e-2f, own = dlogp[1];
  logp[1] += step;
  const double after = loss(batch, normalizer).loss;
  logp[1] -= 2 * step;
  const double difference = (after - loss(batch, normalizer).loss) / (2 * step);
  std::printf("gradient %.4f, difference quotient %.4f\n", own, difference);
}
