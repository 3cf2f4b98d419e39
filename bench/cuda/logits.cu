// Log-probs from logits (forward), their gradient (backward), and both in one call with the loss in
// between, in place (fused).
#include "bench.hpp"

namespace bench {
namespace {

constexpr index_t sequences = 8;

/// For for_each: random targets.
struct RandomToken {
  std::int32_t* to;
  index_t vocabulary;
  GDPO_DEVICE void operator()(index_t i) const {
    const auto token = static_cast<index_t>(uniform(i, 3) * static_cast<float>(vocabulary));
    to[i] = static_cast<std::int32_t>(token < vocabulary ? token : vocabulary - 1);
  }
};
/// For for_each: log-probs whose log-ratios to x have standard deviation 0.1.
struct Near {
  const float* x;
  float* to;
  unsigned seed;
  GDPO_DEVICE void operator()(index_t i) const { to[i] = x[i] + 0.1f * bell(i, seed); }
};

/// The figures of one vocabulary and one storage type T.
template <class T>
class Case {
 public:
  Case(Bench& b, const char* storage, index_t vocabulary)
      : b_(b),
        width_((std::max)(b.size(4096) / sequences, index_t{2})),
        vocabulary_(vocabulary),
        name_(std::string(", ") + storage + ", V = " + std::to_string(vocabulary)) {}

  void run() {
    const double table = static_cast<double>(rows()) * static_cast<double>(vocabulary_) * sizeof(T);
    const std::string forward_name = "forward" + name_, backward_name = "backward" + name_,
                      fused_name = "fused, in place" + name_;
    const double gate = sizeof(T) == 2 && vocabulary_ == 152064 ? 0.80 : 0;
    const bool wants_forward = b_.wants(forward_name), wants_backward = b_.wants(backward_name),
               wants_fused = b_.wants(fused_name, gate > 0);
    if (!wants_forward && !wants_backward && !wants_fused) return;
    if (!b_.fits("all" + name_, 2 * table + 1e8)) return;
    allocate();

    for (const auto* out : {&logp_, &entropy_}) out->poison(b_.stream());
    forward();
    check_forward(forward_name);
    for_each(b_.on(), rows(), Near{logp_.data(), old_logp_.data(), 10});
    for_each(b_.on(), rows(), Near{logp_.data(), ref_logp_.data(), 20});
    if (wants_forward) b_.add(forward_name, time([&] { forward(); }), table);

    if (wants_backward) {
      for_each(b_.on(), rows(), Uniform<float>{dlogp_.data(), 1, 0.5f, 30});
      dlogits_.poison(b_.stream());
      backward();
      check_gradient(backward_name, dlogp_.host());
      b_.add(backward_name, time([&] { backward(); }), 2 * table);
    }

    // The call writes over a copy of the logits.
    if (wants_fused) {
      copy_logits();
      dlogp_.poison(b_.stream());
      result_.poison(b_.stream());
      fused({{}, {}, gdpo::view(dlogp_.data(), sequences, width_), {}});
      check_fused(fused_name);
      b_.add(fused_name, time([&] { fused({}); }), 2 * table, gate);
    }
  }

 private:
  index_t rows() const { return sequences * width_; }
  gdpo::LogitBatch<T, 3> batch(const T* logits) const {
    gdpo::LogitBatch<T, 3> l;
    l.logits = gdpo::view(logits, sequences, width_, vocabulary_);
    l.targets = gdpo::view(targets_.data(), sequences, width_);
    return l;
  }
  gdpo::View<T, 3> dlogits() const {
    return gdpo::view(dlogits_.data(), sequences, width_, vocabulary_);
  }
  template <class X>
  gdpo::View<X, 2> of_tokens(const Array<X>& array) const {
    return gdpo::view(array.data(), sequences, width_);
  }
  gdpo::TokenBatch<float> tokens() const {
    gdpo::TokenBatch<float> t;
    t.old_logp = of_tokens(old_logp_), t.ref_logp = of_tokens(ref_logp_);
    t.advantages = gdpo::view(advantages_.data(), sequences);
    return t;
  }

  void allocate() {
    logits_ = Array<T>(rows() * vocabulary_), dlogits_ = Array<T>(rows() * vocabulary_);
    for (auto* array : {&logp_, &entropy_, &old_logp_, &ref_logp_, &dlogp_})
      *array = Array<float>(rows());
    logsumexp_ = Array<double>(rows());
    targets_ = Array<std::int32_t>(rows());
    advantages_ = Array<float>(sequences);
    for_each(b_.on(), logits_.size(), Bell<T>{logits_.data(), 2, 0, 1});
    for_each(b_.on(), rows(), RandomToken{targets_.data(), vocabulary_});
    for_each(b_.on(), sequences, Bell<float>{advantages_.data(), 1, 0.5f, 40});
    memory_ = Array<unsigned char>(
        static_cast<index_t>(gdpo::cuda::scratch_bytes(batch(logits_.data()), tokens())));
  }
  gdpo::Normalizer normalizer() const {
    const auto n = static_cast<double>(rows());
    return {n, sequences, sequences, 0};
  }

  void forward() const {
    gdpo::token_logprobs_into(b_.on(), batch(logits_.data()),
                              {of_tokens(logp_), of_tokens(entropy_), of_tokens(logsumexp_)});
  }
  void backward() const {
    gdpo::token_logprobs_backward(b_.on(), batch(logits_.data()), {of_tokens(dlogp_), {}},
                                  of_tokens(logsumexp_), {}, dlogits());
  }
  void copy_logits() const {
    check("cudaMemcpyAsync", cudaMemcpyAsync(dlogits_.data(), logits_.data(), logits_.bytes(),
                                             cudaMemcpyDeviceToDevice, b_.stream()));
  }
  void fused(const gdpo::cuda::FromLogits& out) const {
    gdpo::policy_loss_from_logits(b_.on(), loss_, batch(dlogits_.data()), tokens(), normalizer(),
                                  dlogits(), result_.data(), {memory_.data(), memory_.bytes()},
                                  out);
  }

  /// Times each call behind a copy of the logits. The copy is not timed; it keeps the device busy
  /// until the call has been enqueued.
  template <class F>
  Time time(const F& enqueue) const {
    return b_.watch().time(1, enqueue, [&] { copy_logits(); });
  }

  std::vector<double> row_of(const Array<T>& table, index_t row) const {
    std::vector<double> x;
    for (const T& entry : table.host(row * vocabulary_, vocabulary_))
      x.push_back(gdpo::load(entry));
    return x;
  }
  static double logsumexp(const std::vector<double>& x) {
    double sum = 0;  // |x| < 8: no exponential overflows
    for (const double entry : x) sum += std::exp(entry);
    return std::log(sum);
  }
  std::vector<index_t> some_rows() const { return {0, rows() / 2, rows() - 1}; }

  void check_forward(const std::string& name) const {
    const auto logp = logp_.host();
    const auto targets = targets_.host();
    for (const float x : logp) {
      if (std::isfinite(x)) continue;
      b_.wrong(name, "a log-prob is not finite");
      break;
    }
    for (const index_t row : some_rows()) {
      const auto at = static_cast<std::size_t>(row);
      const auto x = row_of(logits_, row);
      b_.close(name, "a log-prob", static_cast<double>(logp[at]),
               x[static_cast<std::size_t>(targets[at])] - logsumexp(x), 5e-6);
    }
  }
  /// Checks dlogits = dlogp (onehot - softmax) in some rows, and that no entry is NaN.
  void check_gradient(const std::string& name, const std::vector<float>& dlogp) const {
    if (const index_t nan = count_nan(b_.on(), dlogits_))
      b_.wrong(name, std::to_string(nan) + " NaN");
    const auto targets = targets_.host();
    const double within = sizeof(T) == 2 ? 1.0 / 200 : 3e-5;
    for (const index_t row : some_rows()) {
      const auto at = static_cast<std::size_t>(row);
      const auto x = row_of(logits_, row), got = row_of(dlogits_, row);
      const double lse = logsumexp(x), g = static_cast<double>(dlogp[at]);
      index_t different = 0;
      for (std::size_t j = 0; j < x.size(); ++j) {
        const double hit = static_cast<std::int32_t>(j) == targets[at] ? 1 : 0,
                     want = g * (hit - std::exp(x[j] - lse));
        different += !(std::abs(got[j] - want) <= within * std::abs(want));
      }
      if (different > 0)
        b_.wrong(name, std::to_string(different) + " entries of row " + std::to_string(row));
    }
  }
  void check_fused(const std::string& name) const {
    const auto logp = logp_.host(), old_logp = old_logp_.host(), ref_logp = ref_logp_.host(),
               advantages = advantages_.host(), dlogp = dlogp_.host();
    const auto of = [&](const auto& values) {
      return gdpo::view(values.data(), sequences, width_);
    };
    gdpo::TokenBatch<float> t;
    t.logp = of(logp), t.old_logp = of(old_logp), t.ref_logp = of(ref_logp);
    t.advantages = gdpo::view(advantages);
    std::vector<float> want(dlogp.size());
    const gdpo::LossResult expected =
        loss_(t, normalizer(), gdpo::view(want.data(), sequences, width_));
    b_.close(name, "the loss", result_.host()[0].loss, expected.loss, 1e-5);
    index_t different = 0;
    for (std::size_t i = 0; i < want.size(); ++i) {
      const double x = static_cast<double>(want[i]);
      different += !(std::abs(static_cast<double>(dlogp[i]) - x) <= 1e-4 * std::abs(x) + 1e-9);
    }
    // One token may differ: its ratio stands at an edge of the clip range.
    if (different > 1) b_.wrong(name, std::to_string(different) + " entries of dlogp");
    check_gradient(name, dlogp);
  }

  Bench& b_;
  index_t width_, vocabulary_;
  std::string name_;
  gdpo::PolicyLoss<> loss_ = gdpo::grpo_loss;
  Array<T> logits_, dlogits_;
  Array<float> logp_, entropy_, old_logp_, ref_logp_, dlogp_, advantages_;
  Array<double> logsumexp_;
  Array<std::int32_t> targets_;
  Array<unsigned char> memory_;
  Array<gdpo::LossResult> result_{1};
};

}  // namespace

void logits(Bench& b) {
  if (!b.section("logits, 4096 rows")) return;
  // 50257 (GPT-2) and 128257 are odd, so most rows begin in the middle of a 16-byte vector.
  for (const index_t vocabulary : {32000, 128256, 152064, 50257, 128257}) {
    Case<gdpo::BFloat16>(b, "bfloat16", vocabulary).run();
    Case<float>(b, "float", vocabulary).run();
  }
}

}  // namespace bench
