// labels: lanes, sanitizers
// Pre-passes that write row by row give the bits that they give as pre-passes of the whole batch,
// in lanes, with scalars and on several threads, alone and together; masked tokens change none.
#include <gdpo/loss.hpp>
#include <gdpo/with/thread_pool.hpp>

#include "support/catch.hpp"
#include "support/prepass_batch.hpp"

namespace rows_test {

namespace {

using namespace prepass_batch;
using gdpo::TokenBatch;

/// A pre-pass of the library as one of a user's own, which prepare() knows nothing else of.
template <class P>
struct Whole {
  P pass;
  Reach reach = pass.reach;
  template <class S>
  auto operator()(const gdpo::PrepassArgs<S>& args) const {
    return pass(args);
  }
  bool is_shared() const { return gdpo::detail::is_shared(pass); }
};
template <class P>
Whole<P> whole(const P& pass) {
  return {pass};
}

/// What a prepare() has decided of the valid tokens, as bits; NaN is one number.
template <class S>
std::vector<double> decisions(const TokenBatch<S>& prepared, const Numbers& d) {
  std::vector<double> all;
  const auto layout = gdpo::detail::layout_of("test", prepared, gdpo::detail::NeedsLogp::No);
  const auto add = [&all](double x) { all.push_back(std::isnan(x) ? 1e300 : x + 0.0); };
  for (index_t i = 0; i < layout.rows; ++i) {
    const auto span = layout(i);
    for (index_t t = 0; t < span.length; ++t) {
      if (!d.mask.empty() && d.mask[static_cast<std::size_t>(span.begin + t)] == 0) continue;
      const auto of = [&](const auto& tokens) {
        add(tokens ? static_cast<double>(tokens.at(i, span.begin, t)) : -7);
      };
      of(prepared.mask), of(prepared.completion_mask), of(prepared.weights);
      of(prepared.kl_weights), of(prepared.entropy_weights), of(prepared.level_log_weights);
    }
  }
  const gdpo::NonFinite& found = prepared.rollout_non_finite;
  for (const index_t x : {found.count, found.row, found.token}) add(static_cast<double>(x));
  add(prepared.entropy_threshold), add(prepared.prepared.mask_changes);
  return all;
}

/// The ways to run pre-passes that must agree; the name of the first that does not, or "".
template <class S, class... P>
std::string differs(const Numbers& d, gdpo::ThreadPool& pool, const P&... passes) {
  const Stored<S, OnHost> stored(d), other(poisoned(d));
  const auto bind = [](auto pass, const auto& to) {
    AnyPass any;
    any.chosen = pass;
    return std::get<decltype(pass)>(bound(any, to).chosen);
  };
  gdpo::PrepassMemory<S> memory;
  const auto expected =
      decisions(gdpo::prepare(stored.batch, memory, whole(bind(passes, stored))...), d);
  if (decisions(gdpo::prepare(stored.batch, memory, bind(passes, stored)...), d) != expected)
    return "row by row";
  if (decisions(gdpo::prepare(gdpo::seq, stored.batch, memory, bind(passes, stored)...), d) !=
      expected)
    return "seq";
  if (decisions(gdpo::prepare(gdpo::parallel(pool), stored.batch, memory, bind(passes, stored)...),
                d) != expected)
    return "parallel";
  gdpo::PrepassMemory<S> fresh;
  if (decisions(gdpo::prepare(other.batch, fresh, bind(passes, other)...), d) != expected)
    return "poisoned";
  return "";
}

template <class P>
P random_one(Random& random, int kind) {
  const AnyPass any = random_pass(random, kind);
  P pass = std::get<P>(any.chosen);
  pass.reach = any.reach;
  return pass;
}

}  // namespace

TEST_CASE("a pre-pass row by row is that of the whole batch", "[prepass]") {
  gdpo::ThreadPool pool(3);
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    Random random(seed);
    // Some batches are large enough for several threads, and for bins in place of sorting.
    const bool large = seed % 25 == 3;
    const Numbers d =
        random_numbers(random, large ? 9 : 12, large ? 5000 : 70, random.pick({0.0, 0.05, 0.3}));
    for (int kind = 0; kind < kinds; ++kind) {
      const AnyPass any = random_pass(random, kind);
      std::visit(
          [&](auto pass) {
            pass.reach = any.reach;
            INFO("seed " << seed << ", pre-pass " << pass.name);
            CHECK((seed % 2 ? differs<float>(d, pool, pass) : differs<double>(d, pool, pass)) ==
                  "");
          },
          any.chosen);
    }
  }
}

TEST_CASE("several pre-passes row by row are those of the whole batch", "[prepass]") {
  gdpo::ThreadPool pool(3);
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    INFO("seed " << seed);
    Random random(1000 + seed);
    const bool large = seed % 25 == 3;
    const Numbers d =
        random_numbers(random, large ? 9 : 12, large ? 3000 : 70, random.pick({0.0, 0.05, 0.3}));
    const auto weight = random_one<prepass::Importance>(random, 0);
    const auto gate = random_one<prepass::Gate>(random, 1),
               next = random_one<prepass::Gate>(random, 1);
    const auto mean_one = random_one<prepass::MeanOne>(random, 2);
    const auto overlong = random_one<prepass::Overlong>(random, 3);
    const auto top = random_one<prepass::TopEntropy>(random, 5);
    const auto covariance = random_one<prepass::Covariance>(random, 7);
    const auto check = [&](auto s) {
      using S = decltype(s);
      CHECK(differs<S>(d, pool, weight, gate, next) == "");
      CHECK(differs<S>(d, pool, overlong, weight, mean_one, gate) == "");
      CHECK(differs<S>(d, pool, weight, top, next, covariance, mean_one, gate) == "");
    };
    seed % 2 ? check(0.0f) : check(0.0);
  }
}

TEST_CASE("count on several threads is count", "[prepass]") {
  gdpo::ThreadPool pool(3);
  Random random(5);
  for (const index_t width : {1, 64, 20000}) {
    std::vector<unsigned char> mask(static_cast<std::size_t>(100 * width));
    for (auto& byte : mask) byte = random.chance(width == 1 ? 0.5 : 0.9) ? 255 : 0;
    gdpo::TokenBatch<float> batch;
    batch.mask = gdpo::view(mask.data(), 100, width);
    const gdpo::Normalizer one = gdpo::count(batch),
                           many = gdpo::count(gdpo::parallel(pool), batch),
                           seq = gdpo::count(gdpo::seq, batch);
    for (const gdpo::Normalizer& n : {many, seq}) {
      CHECK(n.tokens == one.tokens);
      CHECK(n.rows == one.rows);
      CHECK(n.non_empty_rows == one.non_empty_rows);
      CHECK(n.counted.tokens == one.counted.tokens);
    }
  }
}

}  // namespace rows_test
