// The published update rules of Lagrange multipliers, each as its source writes it, for one
// constraint: a number in, a multiplier out. `Controller` is the library's own controller, written
// from its documentation. From the library come only the settings. `product` rounds a product by
// itself, without fused multiply-add: a rule that multiplies through it has the same bits in every
// build.
#pragma once
#include <algorithm>
#include <cmath>
#include <deque>
#include <gdpo/constraint/pid_gains.hpp>
#include <gdpo/constraint/set_point.hpp>
#include <vector>

namespace naive_pid {

inline double product(double a, double b) {
  const volatile double rounded = a * b;
  return rounded;
}

/// Stooke, Achiam, Abbeel 2020, algorithm 2: lambda = (Kp D + Ki I + Kd dJ)_+, where D is the cost
/// less its limit, I <- (I + D)_+, and dJ = (J - J of the step before)_+ with J = 0 before the
/// first.
struct Stooke {
  double kp, ki, kd, limit = 0;
  double integral = 0, previous = 0;
  double operator()(double cost) {
    const double delta = cost - limit, rise = std::max(0.0, cost - previous);
    integral = std::max(0.0, integral + delta);
    previous = cost;
    return std::max(0.0, product(kp, delta) + product(ki, integral) + product(kd, rise));
  }
};

/// The code of Stooke et al. (rlpyt, cppo_pid.py) and OmniSafe's pid_lagrange.py. Unlike algorithm
/// 2, Ki is inside the integral, the averages start at 0 without bias correction, and the
/// derivative compares the averaged cost with the oldest entry of a queue that starts with a single
/// 0.
struct OmniSafe {
  enum class Norm { Sum, Diff, None };
  Norm norm = Norm::Sum;
  double limit = 25, kp = 0.1, ki = 0.01, kd = 0.01, p_alpha = 0.95, d_alpha = 0.95,
         penalty_max = 100;
  std::size_t delay = 10;
  double integral = 0.001, p = 0, c = 0;
  std::deque<double> costs{0.0};
  double operator()(double cost) {
    const double delta = cost - limit;
    integral = std::max(0.0, integral + product(delta, ki));
    if (norm == Norm::Diff) integral = std::max(0.0, std::min(1.0, integral));
    p = product(p_alpha, p) + product(1 - p_alpha, delta);
    c = product(d_alpha, c) + product(1 - d_alpha, cost);
    const double d = std::max(0.0, c - costs.front());
    const double output = product(kp, p) + integral + product(kd, d);
    double lambda = std::max(0.0, output);
    if (norm == Norm::Diff) lambda = std::min(1.0, lambda);
    if (norm == Norm::None) lambda = std::min(lambda, penalty_max);
    costs.push_back(c);
    if (costs.size() > delay) costs.pop_front();
    return lambda;
  }
};

/// The docstring of OmniSafe, lambda_{t+1} = lambda_t + (P + I + D). It accumulates the positional
/// output, so the error is integrated twice.
struct Docstring {
  double kp, ki;
  double integral = 0, lambda = 0;
  double operator()(double e) {
    integral = std::max(0.0, integral + product(ki, e));
    return lambda = std::max(0.0, lambda + (product(kp, e) + integral));
  }
};

/// Sohrabi et al. 2024 (nuPI): theta += Ki e + Kp (xi - xi_prev), projected to theta >= 0, where xi
/// is the exponential average of e with share nu. There are three starts:
///   Zeros        xi is 0 before the first error (Cooper's init ZEROS).
///   FirstError   xi is the first error (init SGD in the paper and in Cooper's documentation).
///   CooperSgd    the first step is Ki e alone and leaves xi = 0 (init SGD in Cooper's code).
struct NuPi {
  enum class Start { Zeros, FirstError, CooperSgd };
  double kp, ki, nu = 0;
  Start start = Start::Zeros;
  double lambda = 0, xi = 0;
  bool first = true;
  double operator()(double e) {
    if (first && start == Start::FirstError) xi = e;
    double next = product(nu, xi) + product(1 - nu, e);
    if (first && start == Start::FirstError) next = e;  // nu e + (1 - nu) e without its rounding
    if (first && start == Start::CooperSgd) next = 0;
    first = false;
    const double step = product(ki, e) + product(kp, next - xi);
    xi = next;
    return lambda = std::max(0.0, lambda + step);
  }
};

/// Dual ascent: lambda <- (lambda + rate e)_+.
struct DualAscent {
  double rate, lambda = 0;
  double operator()(double e) { return lambda = std::max(0.0, lambda + product(rate, e)); }
};

/// torch.optim.Adam on the loss -lambda e, followed by the projection to lambda >= 0 (OmniSafe's
/// Lagrange).
struct DualAscentAdam {
  double rate = 0.035, lambda = 0.001, beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double m = 0, v = 0;
  int t = 0;
  double operator()(double e) {
    const double gradient = -e;
    ++t;
    m = beta1 * m + (1 - beta1) * gradient;
    v = beta2 * v + (1 - beta2) * gradient * gradient;
    const double m_hat = m / (1 - std::pow(beta1, t)), v_hat = v / (1 - std::pow(beta2, t));
    return lambda = std::max(0.0, lambda - rate * m_hat / (std::sqrt(v_hat) + eps));
  }
};

/// torch.optim.RMSprop on the loss -lambda e, without momentum and not centered, followed by the
/// projection onto 0 .. upper_bound. A negative multiplier starts at 0 (OmniSafe's Lagrange). Each
/// operation rounds by itself, in torch's order: weight times gradient, times gradient; rate times
/// gradient, over the root.
struct DualAscentRmsProp {
  double rate = 0.035, init = 0.001, upper_bound = HUGE_VAL, alpha = 0.99, eps = 1e-8;
  double lambda = std::max(init, 0.0), square_avg = 0;
  double operator()(double e) {
    const double gradient = -e;
    square_avg = product(alpha, square_avg) + product(product(1 - alpha, gradient), gradient);
    lambda += product(-rate, gradient) / (std::sqrt(square_avg) + eps);
    return lambda = std::min(std::max(lambda, 0.0), upper_bound);
  }
};

/// Safe RLHF: gradient ascent on lambda e by log lambda, whose derivative is lambda e. log lambda
/// is at most log(lambda_max).
struct SafeRlhfLog {
  double rate = 0.1, log_lambda = 0, lambda_max = 5;
  double operator()(double e) {
    log_lambda = std::min(log_lambda + rate * std::exp(log_lambda) * e, std::log(lambda_max));
    return std::exp(log_lambda);
  }
};

/// The controller that PidGains documents, for one constraint. It keeps every error and
/// measurement, so that a delay is an index and an average is computed anew from the whole past. It
/// is for numbers of moderate size: unlike the library it does not look for results that overflow.
struct Controller {
  gdpo::PidGains g;
  gdpo::SetPoint s{};

  /// One per update so far, in units of SetPoint::scale: the error, and the measurement with its
  /// sign turned so that a larger one is worse.
  std::vector<double> errors{}, measured{};
  std::vector<double> lambdas{std::max(g.lambda_init, 0.0)};
  double integral = g.lambda_init;
  double p = 0, d = 0, raw = 0;
  int held = 0, saturated_steps = 0;

  double lambda() const { return lambdas.back(); }

  void call(double sum, double count) {
    if (!std::isfinite(sum) || !std::isfinite(count) || count == 0) {
      ++held;
      return;
    }
    update(sum / count);
  }

  void update(double x) {
    using namespace gdpo;
    const bool cost = s.bound == Bound::AtMost;
    const double e = (cost ? x - s.limit : s.limit - x) / s.scale;
    errors.push_back(e);
    measured.push_back((cost ? x : -x) / s.scale);

    double before = product(g.kp, p) + product(g.kd, d);
    p = average_of_errors();
    d = std::max(difference(), 0.0);
    const double pd = product(g.kp, p) + product(g.kd, d);
    if (errors.size() == 1 && g.p_start == EmaStart::FirstValue) before = pd;

    switch (g.form) {
      case PidForm::Positional:
        integrate(e, pd);
        raw = product(g.kp, p) + integral + product(g.kd, d);
        break;
      case PidForm::Velocity:
        raw = lambda() + (product(g.ki, e) + (pd - before));
        break;
      case PidForm::Adam:
        raw = lambda() + adam();
        break;
      case PidForm::RmsProp:
        raw = lambda() + rmsprop();
        break;
      case PidForm::Log:
        raw = lambda() * std::exp(g.ki * lambda() * e);
        break;
    }
    lambdas.push_back(std::min(std::max(raw, 0.0), g.lambda_max));
    saturated_steps = lambda() >= g.lambda_max ? saturated_steps + 1 : 0;
  }

 private:
  double average_of_errors() const {
    double average = 0, weight = 1;
    for (std::size_t t = 0; t < errors.size(); ++t) {
      average = product(g.p_ema, average) + product(1 - g.p_ema, errors[t]);
      weight = product(weight, g.p_ema);
      if (t == 0 && g.p_start == gdpo::EmaStart::FirstValue) average = errors[0];
      if (t == 0 && g.p_start == gdpo::EmaStart::AfterFirst) average = 0;
    }
    return g.p_start == gdpo::EmaStart::BiasCorrected ? average / (1 - weight) : average;
  }
  /// The averaged measurement now, less the one of d_delay updates ago. Before the first update
  /// that is the first one if d_start is FirstValue, otherwise 0.
  double difference() const {
    const bool from_first = g.d_start == gdpo::EmaStart::FirstValue;
    std::vector<double> averages;
    double average = 0;
    for (std::size_t t = 0; t < measured.size(); ++t) {
      average = product(g.d_ema, average) + product(1 - g.d_ema, measured[t]);
      if (t == 0 && from_first) average = measured[0];
      averages.push_back(average);
    }
    const std::size_t now = averages.size() - 1, delay = static_cast<std::size_t>(g.d_delay);
    const double then = now >= delay ? averages[now - delay] : from_first ? averages[0] : 0.0;
    return averages[now] - then;
  }
  /// AntiWindup::Conditional limits the integral: it rises no further than to where the output is
  /// at its upper bound. An integral that is beyond already stays. One that began below 0 is at
  /// least 0 after its first step.
  void integrate(double e, double rest) {
    const double before = integral, highest = g.lambda_max - rest;
    integral = std::min(std::max(before + product(g.ki, e), 0.0), g.integral_max);
    if (g.anti_windup != gdpo::AntiWindup::Conditional) return;
    if (integral > before && integral > highest) integral = std::max(before, highest);
    integral = std::max(integral, 0.0);
  }
  double adam() const {
    double m = 0, v = 0;
    for (const double e : errors) {
      m = g.beta1 * m + (1 - g.beta1) * e;
      v = g.beta2 * v + (1 - g.beta2) * e * e;
    }
    const double t = static_cast<double>(errors.size());
    const double m_hat = m / (1 - std::pow(g.beta1, t)), v_hat = v / (1 - std::pow(g.beta2, t));
    const double spread = std::sqrt(v_hat) + g.adam_eps;
    return spread > 0 ? g.ki * m_hat / spread : 0;
  }
  double rmsprop() const {
    double square_avg = 0;
    for (const double e : errors)
      square_avg = product(g.beta2, square_avg) + product(product(1 - g.beta2, e), e);
    const double spread = std::sqrt(square_avg) + g.adam_eps;
    return spread > 0 ? product(g.ki, errors.back()) / spread : 0;
  }
};

}  // namespace naive_pid
