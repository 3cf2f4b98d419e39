#pragma once
// place_turns_into: rewards of turns as rewards of tokens, each at the last token of its turn.
#include <gdpo/stats/masked.hpp>
#include <gdpo/storage/column.hpp>
#include <gdpo/value/engine/valid_runs.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// The positions of a row: whether each one is valid, and where its reward is written.
template <class M, class R>
struct TurnsOfRow {
  View<M, 1> mask;
  View<R, 1> out;

  /// Calls f(t) for the last token t of each turn, from the last turn to the first.
  template <class F>
  void for_each_turn(const F& f) const {
    const index_t length = mask.extent[0];
    if constexpr (std::is_integral_v<M> && sizeof(M) == 1) {
      if (mask.stride[0] == 1) {
        const auto* const bytes = reinterpret_cast<const unsigned char*>(mask.data);
        for (ValidRun run = last_run(bytes, length); run.end > 0; run = last_run(bytes, run.begin))
          f(run.end - 1);
        return;
      }
    }
    bool in_turn = false;
    for (index_t t = length - 1; t >= 0; --t) {
      const bool valid = !math::is_zero(load(mask(t)));
      if (valid && !in_turn) f(t);
      in_turn = valid;
    }
  }
  index_t count() const {
    index_t turns = 0;
    for_each_turn([&](index_t) { ++turns; });
    return turns;
  }
  /// Writes the reward of each position. With gamma 0, each turn has its own reward.
  template <class A>
  void place(const View<A, 2>& rewards, index_t row, double gamma) const {
    for (index_t t = 0; t < out.extent[0]; ++t) store(out(t), 0.0);
    index_t turn = count();
    double carried = 0;
    for_each_turn([&](index_t t) {
      const double reward = static_cast<double>(load(rewards(row, --turn)));
      carried = gamma > 0 ? reward + math::mul(gamma, carried) : reward;
      store(out(t), carried);
    });
  }
};

/// Calls row(i) for the positions of each row, checks that no row has more turns than rewards, and
/// then writes all rows.
template <class A, class RowOf>
void place_turns(const char* function, const View<A, 2>& rewards, double gamma, const RowOf& row) {
  if (!(gamma >= 0 && gamma <= 1))
    contract::fail(function, "gamma", contract::text(gamma), "0 to 1 (discount of a turn)");
  const index_t rows = rewards.extent[0];
  for (index_t i = 0; i < rows; ++i) {
    const index_t turns = row(i).count();
    if (turns > rewards.extent[1]) {
      contract::fail(
          function, "mask", contract::text(turns) + " turns in row " + contract::text(i),
          "at most " + contract::text(rewards.extent[1]) + ", the columns of turn_rewards");
    }
  }
  for (index_t i = 0; i < rows; ++i) row(i).place(rewards, i, gamma);
}

}  // namespace detail

/// Places the rewards of turns at the last token of each turn, for ReturnBatch::rewards. A turn is
/// a run of valid tokens: what a tool wrote between two turns is masked.
///
///     out(i, t) = G_ik  where turn k of row i ends at t,  exactly 0 elsewhere
///     G_ik = r_ik + gamma G_i,k+1                          gamma 0: r_ik alone
///
/// Shapes: turn_rewards (B, K), where K is at least the number of turns of each row and what is
/// behind the last turn is not read; mask (B, T) of any arithmetic type, where every number but 0,
/// also NaN, marks a valid token; out (B, T) of float, double or a 16-bit float. Strides are any.
/// It is computed in double and rounded once, to a 16-bit float by way of float. A NaN or an
/// infinity shows at its turn, and with gamma above 0 at the turns before it. A row without a valid
/// token gives zeros.
///
/// Rewards of turns may be discounted by tokens or by turns:
///
///     by tokens  gamma 0 here; then RewardToGo or Gae with Steps::Valid carries a reward to the
///                tokens before it, over turns as well
///     by turns   the discount of a turn here; then RewardToGo{1, Steps::Turns}, by which all
///                tokens of a turn get its G
///     not        gamma 0 here and RewardToGo{1, Steps::Turns}: all tokens of a turn get its own
///                reward, or its advantage, if that is what turn_rewards has
///
/// Errors: invalid_input for other shapes, a gamma outside 0 to 1, and a row with more turns than
/// turn_rewards has columns, before anything is written. Allocates nothing.
template <class A, class M, class R>
void place_turns_into(View<A, 2> turn_rewards, View<M, 2> mask, View<R, 2> out, double gamma = 0) {
  constexpr const char* function = "gdpo::place_turns_into";
  contract::check_array(function, "turn_rewards", turn_rewards);
  contract::check_array(function, "mask", mask);
  contract::check_written(function, "out", out);
  contract::check_entries(function, "mask", mask.extent[0], turn_rewards.extent[0]);
  detail::check_shape(function, "out", out, mask, "mask");
  detail::place_turns(function, turn_rewards, gamma, [&](index_t i) {
    const bool any = mask.extent[1] > 0;  // arrays without elements may be null
    return detail::TurnsOfRow<M, R>{
        {any ? mask.data + i * mask.stride[0] : nullptr, {mask.extent[1]}, {mask.stride[1]}},
        {any ? out.data + i * out.stride[0] : nullptr, {out.extent[1]}, {out.stride[1]}}};
  });
}
/// The same for packed rows: mask and out (tokens), offsets (B + 1), from 0 to the number of
/// tokens. A turn ends with its row.
template <class A, class M, class R>
void place_turns_into(View<A, 2> turn_rewards, View<M, 1> mask, const IndexColumn& offsets,
                      View<R, 1> out, double gamma = 0) {
  constexpr const char* function = "gdpo::place_turns_into";
  contract::check_array(function, "turn_rewards", turn_rewards);
  contract::check_array(function, "mask", mask);
  contract::check_written(function, "out", out);
  detail::check_shape(function, "out", out, mask, "mask");
  const index_t rows = turn_rewards.extent[0], tokens = mask.extent[0];
  detail::check_column(function, "offsets", offsets);
  if (offsets.size() != rows + 1) {
    contract::fail(function, "offsets", contract::text(offsets.size()) + " entries",
                   contract::text(rows + 1) + ", one more than rows");
  }
  for (index_t i = 0; i <= rows; ++i) {
    const index_t least = i == 0 ? 0 : offsets(i - 1), most = i == 0 ? 0 : tokens;
    if (offsets(i) >= least && offsets(i) <= most && (i < rows || offsets(i) == tokens)) continue;
    contract::fail(function, "offsets", contract::text(offsets(i)) + " at " + contract::text(i),
                   "offsets from 0 to " + contract::text(tokens) + " that never decrease");
  }
  detail::place_turns(function, turn_rewards, gamma, [&](index_t i) {
    const index_t begin = offsets(i), length = offsets(i + 1) - begin;
    return detail::TurnsOfRow<M, R>{
        {mask.data + begin * mask.stride[0], {length}, {mask.stride[0]}},
        {out.data + begin * out.stride[0], {length}, {out.stride[0]}}};
  });
}

GDPO_END_NAMESPACE
