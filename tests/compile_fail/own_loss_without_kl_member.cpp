// expect: a loss is a gdpo::PolicyLoss, or has its members
#include <gdpo/loss.hpp>

struct Own {
  gdpo::level::Token<> level;
  gdpo::surrogate::Ratio surrogate;
  gdpo::Aggregate aggregate;
  gdpo::Factors<> factor;
  static constexpr gdpo::metrics::All metrics{};
};
void use(const gdpo::TokenBatch<float>& batch, gdpo::LossWorkspace<float>& workspace) {
  gdpo::evaluate(gdpo::simd, Own{}, batch, gdpo::count(batch), {}, workspace);
}
