// expect: a Surrogate needs: template <class V> gdpo::Term<V> operator()(const gdpo::Token<V>&) const
#include <gdpo/loss.hpp>

struct Own {
  gdpo::level::Token<> level;
  gdpo::map::Clamp surrogate;
  gdpo::kl::None kl;
  gdpo::Aggregate aggregate;
  gdpo::Factors<> factor;
  static constexpr gdpo::metrics::All metrics{};
};
void use(const gdpo::TokenBatch<float>& batch, gdpo::LossWorkspace<float>& workspace) {
  gdpo::evaluate(gdpo::simd, Own{}, batch, gdpo::count(batch), {}, workspace);
}
