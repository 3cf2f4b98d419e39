// labels: sanitizers
// The second normalization as a value: what estimators have by default, what is refused, and one of
// the caller's own. Its numbers are tested with the product of axes.
#include <gdpo/advantages.hpp>
#include <gdpo/cuda/advantage/device_two_stages.hpp>

#include "support/catch.hpp"
#include "support/device.hpp"
#include "support/generators.hpp"
#include "support/message.hpp"
#include "support/renormed.hpp"
#include "support/tolerance.hpp"

namespace renorm_test {

namespace {

using gdpo::EpsAt, gdpo::Renorm, gdpo::RenormOver;
namespace renorm = gdpo::renorm;
using Numbers = std::vector<double>;

constexpr bool same(const Renorm& a, const Renorm& b) {
  return a.over == b.over && a.ddof == b.ddof && a.eps == b.eps && a.eps_at == b.eps_at &&
         a.count_eps == b.count_eps && a.keep_mean == b.keep_mean;
}

constexpr Renorm batch_of_paper{RenormOver::Batch, 1, 0, EpsAt::Std, 0, false};
static_assert(same(gdpo::Gdpo{}.renorm, batch_of_paper));
static_assert(same(gdpo::ShrunkGdpo{}.renorm, batch_of_paper));
static_assert(gdpo::Grpo{}.renorm.over == RenormOver::None);
static_assert(gdpo::DrGrpo{}.renorm.over == RenormOver::None);
static_assert(gdpo::Rloo{}.renorm.over == RenormOver::None);
static_assert(gdpo::ShrunkGrpo{}.renorm.over == RenormOver::None);
static_assert(gdpo::before_renorm(gdpo::Gdpo{}).renorm.over == RenormOver::None);
static_assert(same(renorm::none(), Renorm{}));
static_assert(same(renorm::batch(), batch_of_paper));
static_assert(same(renorm::per_group(), {RenormOver::Group, 1, 0, EpsAt::Std, 0, false}));
static_assert(same(renorm::token_weighted_batch(),
                   {RenormOver::Tokens, 1, 1e-8, EpsAt::Var, 0, false}));
static_assert(same(renorm::token_weighted_batch(0, 0.5, EpsAt::Std, 0.25, true),
                   {RenormOver::Tokens, 0, 0.5, EpsAt::Std, 0.25, true}));

/// A renormalization of the caller's own: that of the library, times a power of two.
struct Doubled {
  RenormOver over = RenormOver::Batch;
  double factor = 2;
  GDPO_DEVICE gdpo::Affine operator()(const gdpo::RenormArgs& a) const {
    gdpo::Affine map = renorm::batch()(a);
    map.multiplier *= factor;
    return map;
  }
};
using Own = gdpo::GroupAdvantage<gdpo::baseline::Mean, gdpo::scale::StdDev,
                                 gdpo::combine::NormalizeThenSum, Doubled>;

struct Rows {
  Numbers rewards, tokens;
  gdpo::RewardBatch<double, gdpo::GroupsOf> batch;
  Rows() {
    Random random(5);
    for (int i = 0; i < 48; ++i) rewards.push_back(random.uniform());
    for (int i = 0; i < 24; ++i) tokens.push_back(1 + random.below(9));
    batch = {gdpo::view(rewards.data(), 24, 2), gdpo::groups_of(4)};
  }
  Rows(const Rows&) = delete;
};

template <class Estimator>
Numbers on_device(const Rows& r, const Estimator& e) {
  OnDevice<double> rewards(r.rewards), tokens(r.tokens), out(Numbers(24));
  gdpo::RewardBatch<double, gdpo::GroupsOf> batch{
      gdpo::view(static_cast<const double*>(rewards.data()), 24, 2), gdpo::groups_of(4)};
  batch.tokens = gdpo::view(static_cast<const double*>(tokens.data()), 24);
  TestScratch scratch(gdpo::cuda::scratch_bytes(e, batch));
  gdpo::advantages_into(test_device(), batch, e, gdpo::view(out.data(), 24), scratch());
  return out.host();
}

}  // namespace

TEST_CASE("renorm: a value that is no enumerator is refused, in every call", "[renorm]") {
  const Rows r;
  const auto odd = static_cast<RenormOver>(99);
  gdpo::Gdpo e;
  e.renorm.over = odd;
  const std::string needed =
      "renorm.over: given 99, which is no enumerator; needed: one of none, batch, group, tokens";
  Numbers out(24);
  gdpo::Workspace workspace;
  CHECK(message_of([&] { gdpo::advantages(gdpo::seq, r.batch, e); }) ==
        "gdpo::advantages: " + needed);
  CHECK(message_of([&] { gdpo::first_stage(gdpo::seq, r.batch, e, workspace); }) ==
        "gdpo::first_stage: " + needed);
  CHECK(message_of([&] { gdpo::finish(gdpo::seq, r.batch, e, {}, gdpo::view(out), workspace); }) ==
        "gdpo::finish: " + needed);
  CHECK(message_of([&] { gdpo::cuda::scratch_bytes(e, r.batch); }) ==
        "gdpo::cuda::scratch_bytes: " + needed);
  CHECK(message_of([&] {
          gdpo::whiten_into(gdpo::view(std::as_const(r.tokens)), gdpo::View<const bool, 1>{},
                            e.renorm, gdpo::view(out));
        }) == "gdpo::whiten_into: " + needed);
}

TEST_CASE("renorm: tokens are needed over tokens, and only there", "[renorm]") {
  Rows r;
  for (const Renorm& over : {renorm::none(), renorm::batch(), renorm::per_group()}) {
    CHECK(message_of([&] {
            gdpo::advantages(r.batch.rewards, r.batch.groups, renormed(gdpo::Gdpo{}, over));
          }) == "no error");
  }
  const auto e = renormed(gdpo::Gdpo{}, renorm::token_weighted_batch());
  const std::string needed =
      "batch.tokens: given no column; needed: token counts, because renorm.over is Tokens";
  CHECK(message_of([&] { gdpo::advantages(gdpo::seq, r.batch, e); }) ==
        "gdpo::advantages: " + needed);
  CHECK(message_of([&] { gdpo::cuda::scratch_bytes(e, r.batch); }) ==
        "gdpo::cuda::scratch_bytes: " + needed);
  r.batch.tokens = gdpo::view(std::as_const(r.tokens));
  CHECK(message_of([&] { gdpo::advantages(gdpo::seq, r.batch, e); }) == "no error");
}

TEST_CASE("renorm: values of tokens are whitened over tokens", "[renorm]") {
  const Numbers x{1, 2, 4};
  Numbers out(3, 42);
  const auto whiten = [&](const Renorm& over) {
    return message_of([&] {
      gdpo::whiten_into(gdpo::view(x), gdpo::View<const bool, 1>{}, over, gdpo::view(out));
    });
  };
  const std::string needed = "; needed: tokens, because the values are those of tokens";
  CHECK(whiten(renorm::none()) == "gdpo::whiten_into: renorm.over: given none" + needed);
  CHECK(whiten(renorm::batch()) == "gdpo::whiten_into: renorm.over: given batch" + needed);
  CHECK(whiten(renorm::per_group()) == "gdpo::whiten_into: renorm.over: given group" + needed);
  CHECK(out == Numbers(3, 42));
  CHECK(whiten(renorm::token_weighted_batch()) == "no error");
}

TEST_CASE("renorm: one of the caller's own, on the host, a device and in two stages",
          "[renorm][archetype]") {
  Rows r;
  r.batch.tokens = gdpo::view(std::as_const(r.tokens));
  for (const RenormOver over :
       {RenormOver::None, RenormOver::Batch, RenormOver::Group, RenormOver::Tokens}) {
    INFO("over " << static_cast<int>(over));
    Own own;
    own.renorm.over = over;
    gdpo::Gdpo plain;
    plain.renorm.over = over;
    Numbers twice = gdpo::advantages(gdpo::seq, r.batch, plain);
    for (double& a : twice) a *= over == RenormOver::None ? 1 : 2;
    CHECK(difference(gdpo::advantages(gdpo::seq, r.batch, own), twice) == "");
    CHECK(difference(gdpo::advantages(gdpo::simd, r.batch, own), twice) == "");
    CHECK(difference(on_device(r, own), twice) == "");
    gdpo::Workspace workspace;
    const auto moments = gdpo::first_stage(gdpo::seq, r.batch, own, workspace);
    Numbers out(24);
    gdpo::finish(gdpo::seq, r.batch, own, moments, gdpo::view(out), workspace);
    CHECK(difference(out, twice) == "");
    CHECK(difference(gdpo::advantages(gdpo::seq, r.batch, gdpo::before_renorm(own)),
                     gdpo::advantages(gdpo::seq, r.batch, gdpo::before_renorm(plain))) == "");
  }
}

}  // namespace renorm_test
