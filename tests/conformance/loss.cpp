#include "loss.hpp"

#include <type_traits>
#include <utility>

namespace conformance {
namespace {

template <class>
constexpr bool is_importance_weighted_k3 = false;
template <>
constexpr bool is_importance_weighted_k3<gdpo::Kl<gdpo::kl::K3, gdpo::kl::ImportanceWeighted>> = true;

// The compositions that some trainer has: all others would only cost time to compile.
template <class Level, class Kl>
constexpr bool is_recorded = std::is_same_v<Level, gdpo::level::Token<>> ||
                             (is_importance_weighted_k3<Kl> &&
                              !std::is_same_v<Level, gdpo::level::Token<gdpo::map::Clamp>>);

// Doubles as bits; the first place that differs, or the size.
std::size_t first_difference(const std::vector<double>& a, const std::vector<double>& b) {
  std::size_t k = 0;
  while (k < a.size() && gdpo::math::bits_of(a[k]) == gdpo::math::bits_of(b[k])) ++k;
  return k;
}

}  // namespace

gdpo::ThreadPool& threads() {
  static gdpo::ThreadPool pool(3);
  return pool;
}

Array of_tokens(const TokenInputs& in, const std::vector<double>& tokens) {
  return {{static_cast<std::size_t>(in.rows), static_cast<std::size_t>(in.width)}, tokens};
}

LossRun run_loss(const LossSetup& setup, const TokenInputs& in) {
  return std::visit(
      [&](const auto& loss, const auto& kl) -> LossRun {
        using Kl = std::decay_t<decltype(kl)>;
        if constexpr (std::is_same_v<Kl, std::monostate>) {
          return run_loss(loss, in, setup.prepare, setup.given);
        } else if constexpr (is_recorded<std::decay_t<decltype(loss.level)>, Kl>) {
          return run_loss(gdpo::with_kl(loss, kl), in, setup.prepare, setup.given);
        } else {
          throw Unsupported("this KL term with this level is not mapped");
        }
      },
      setup.loss, setup.kl);
}

LossRun padded_and_packed(const TokenInputs& in, const std::function<LossRun(const TokenInputs&)>& run,
                          Comparison& comparison) {
  LossRun of_padded = run(in);
  const LossRun of_packed = run(packed(in));
  const auto text = [](double x) { return gdpo::contract::text(x); };
  const auto same = [&](const char* name, double a, double b) {
    comparison.law(gdpo::math::bits_of(a) == gdpo::math::bits_of(b),
                   std::string(name) + ": " + text(a) + " padded, " + text(b) + " packed");
  };
  same("loss", of_padded.result.loss, of_packed.result.loss);
  same("policy loss", of_padded.result.policy_loss, of_packed.result.policy_loss);
  same("kl loss", of_padded.result.kl_loss, of_packed.result.kl_loss);
  const std::size_t k = first_difference(of_padded.gradient, of_packed.gradient);
  if (k < of_padded.gradient.size()) {
    comparison.law(false, "gradient at position " + std::to_string(k) + ": " + text(of_padded.gradient[k]) +
                              " padded, " + text(of_packed.gradient[k]) + " packed");
  }
  for (std::size_t at = 0; at < of_padded.mask.size(); ++at) {
    if (of_padded.mask[at] != 0 || of_padded.gradient[at] == 0) continue;
    comparison.law(false, "gradient at masked position " + std::to_string(at) + ": " + text(of_padded.gradient[at]));
    break;
  }
  return of_padded;
}

}  // namespace conformance
