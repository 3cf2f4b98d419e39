#pragma once
// A KL penalty inside the reward of each token, and token advantages that carry it.
#include <gdpo/loss/kl.hpp>
#include <gdpo/stats/masked.hpp>

GDPO_BEGIN_NAMESPACE

namespace penalty {

/// KL inside the reward of each token: A_it = A_i - coef kl_it.
///
///     // verl, kl_penalty="kl" (K1) and "low_var_kl"
///     penalty::Token<>{0.04}
///     penalty::Token{0.04, Kl<kl::K3>{0, Against::Ref, {-20, 20}, {-10, 10}}}
template <class KlTerm = Kl<kl::K1>>
struct Token {
  double coef = 0;  ///< In units of the reward per nat, finite; 0: off, and no log-prob is read.
  /// A KL term of the loss (loss/kl.hpp). Its value is used, clamps included. Its beta and
  /// `against` are not: coef and the array of reference log-probs take their place. Nor are factors
  /// and an aggregate of its own.
  KlTerm kl{};
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("coef", s.coef, finite(), "in units of the reward per nat; 0: off");
    field("kl", s.kl, "the KL term, whose beta and `against` are not read");
  }
  /// Throws for Against::Data, which is no policy that log-probs could be given of.
  void check_together(const char* function, const detail::FieldPath& path) const {
    if (kl.against != Against::Data) return;
    contract::fail(function, path.text("kl.against"), "data",
                   "another policy: a penalty takes the log-probs that it is given");
  }
};
/// Deduces the KL term.
template <class KlTerm>
Token(double, KlTerm) -> Token<KlTerm>;

}  // namespace penalty

/// Gives each token the advantage of its row minus a KL penalty.
///
///     out(i, t) = advantages(i) - coef kl(logp(i, t), ref_logp(i, t))  where the mask is not 0
///     out(i, t) = 0 exactly                                            elsewhere
///
///     gdpo::token_advantages_into(advantages, mask, old_logp, ref_logp,
///                                 gdpo::penalty::Token<>{0.04}, out);
///     gdpo::whiten_into(out, mask, gdpo::verl::masked_whiten, out);  // if it is to be normalized
///
/// Shapes: advantages (N); mask, logp, ref_logp and out (N, T); any strides. A null mask selects
/// every token. logp and ref_logp are in nats; they are required where coef is not 0, and
/// otherwise not read. logp is that of the policy that wrote the tokens (verl's compute_rewards
/// takes old_log_prob), because the loss treats the result as a constant. Computed in double and
/// rounded once; what the mask hides is not read. A NaN shows at its token and at no other. Other
/// shapes and settings throw invalid_input before anything is written. Allocates nothing.
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
  detail::check_fields(function, "penalty", penalty);
  contract::check_array(function, "advantages", advantages);
  contract::check_written(function, "out", out);
  if (out.extent[0] != advantages.extent[0]) {
    contract::fail(
        function, "out", contract::shape(2, out.extent),
        "(N, T) with N = " + contract::text(advantages.extent[0]) + ", the number of advantages");
  }
  if (mask) detail::check_shape(function, "mask", mask, out, "out");
  const bool penalized = penalty.coef != 0 && out.extent[0] > 0 && out.extent[1] > 0;
  const auto check = [&](const char* name, const auto& tokens) {
    if (tokens) detail::check_shape(function, name, tokens, out, "out");
    if (penalized && !tokens) {
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
        if (penalized) {
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
