#pragma once
#include <gdpo/loss/kl.hpp>
#include <gdpo/stats/masked.hpp>

GDPO_BEGIN_NAMESPACE
namespace penalty {

/// KL inside the reward of each token: A_it = A_i - coef kl_t, coef in reward units per nat; 0: off, and no log-prob is
/// read. kl: a KL term of the loss (loss/kl.hpp), of which the value is taken, clamps included; its beta and `against`
/// are not used: coef and the array that is given stand for them.
///   penalty::Token<>{0.04}                                                        verl's kl_penalty="kl", K1
///   penalty::Token{0.04, Kl<kl::K3>{0, Against::Ref, {-20, 20}, {-10, 10}}}       "low_var_kl"
template <class KlTerm = Kl<kl::K1>>
struct Token {
  double coef = 0;
  KlTerm kl{};

  void check(const char* function) const {
    if (math::not_finite(coef))
      contract::fail(function, "penalty.coef", contract::text(coef), "a finite number");
    detail::Checks<KlTerm>::run(kl, function);
  }
};
template <class KlTerm>
Token(double, KlTerm) -> Token<KlTerm>;

}  // namespace penalty

/// Rows to tokens, `Broadcast`: out(i, t) = advantages(i) where mask(i, t) != 0, exactly 0 elsewhere (whatever the mask
/// hides). Shapes: advantages (N), mask (N, T), out (N, T); other shapes: invalid_input. TRL, verl, ms-swift.
template <class A, class M, class R>
void broadcast_into(View<A, 1> advantages, View<M, 2> mask, View<R, 2> out) {
  using contract::text;
  const index_t rows = advantages.extent[0], length = mask.extent[1];
  if (mask.extent[0] != rows || out.extent[0] != rows || out.extent[1] != length) {
    contract::fail("gdpo::broadcast_into", "mask, out",
                   "(" + text(mask.extent[0]) + ", " + text(length) + ") and (" +
                       text(out.extent[0]) + ", " + text(out.extent[1]) + ")",
                   "the same (N, T) with N = " + text(rows) + ", the number of advantages");
  }
  for (index_t i = 0; i < rows; ++i) {
    const R value = static_cast<R>(load(advantages(i)));
    for (index_t t = 0; t < length; ++t) out(i, t) = detail::counts(mask, i, t) ? value : R(0);
  }
}

/// Rows to tokens with a KL penalty: out(i, t) = advantages(i) - coef kl(logp(i, t), ref_logp(i, t)) where the mask is
/// not 0 (a null view: everywhere), exactly 0 elsewhere. In double; what the mask hides is not read.
///   gdpo::token_advantages_into(advantages, mask, old_logp, ref_logp, gdpo::penalty::Token<>{0.04}, out);
///   gdpo::whiten_into(out, mask, gdpo::verl::masked_whiten, out);        the second normalisation, where it is wanted
/// logp: of the policy that wrote the tokens (verl's compute_rewards: old_log_prob), for the result is a constant of
/// the loss. Shapes: advantages (N), the rest (N, T).
template <class A, class M = const unsigned char, class L = const float, class F = const float,
          class KlTerm, class R>
void token_advantages_into(View<A, 1> advantages, View<M, 2> mask, View<L, 2> logp,
                           View<F, 2> ref_logp, const penalty::Token<KlTerm>& penalty,
                           View<R, 2> out) {
  constexpr const char* function = "gdpo::token_advantages_into";
  static_assert(detail::gives_term_v<KlTerm, double>,
                "penalty::Token needs one KL term: template <class V> Term<V> operator()(const "
                "gdpo::Token<V>&) const");
  static_assert(std::is_same_v<R, float> || std::is_same_v<R, double>,
                "advantages are written as float or double");
  penalty.check(function);
  if (out.extent[0] != advantages.extent[0]) {
    contract::fail(
        function, "out", contract::shape(2, out.extent),
        "(N, T) with N = " + contract::text(advantages.extent[0]) + ", the number of advantages");
  }
  if (mask) detail::check_shape(function, "mask", mask, out, "out");
  const bool penalised = penalty.coef != 0 && out.extent[0] > 0 && out.extent[1] > 0;
  const auto check = [&](const char* name, const auto& tokens) {
    if (tokens) detail::check_shape(function, name, tokens, out, "out");
    if (penalised && !tokens) {
      contract::fail(function, name, "no array",
                     "the log-probs of the tokens, because penalty.coef is not 0");
    }
  };
  check("logp", logp);
  check("ref_logp", ref_logp);
  for (index_t i = 0; i < out.extent[0]; ++i) {
    const double advantage = load(advantages(i));
    for (index_t t = 0; t < out.extent[1]; ++t) {
      double value = 0;
      if (detail::counts(mask, i, t)) {
        value = advantage;
        if (penalised) {
          Token<double> token{};
          token.logp = load(logp(i, t));
          token.ref_logp = token.old_logp = token.rollout_logp = token.teacher_logp =
              load(ref_logp(i, t));
          token.ratio = 1;
          value -= math::mul(penalty.coef, penalty.kl(token).value);
        }
      }
      out(i, t) = static_cast<R>(value);
    }
  }
}

GDPO_END_NAMESPACE
