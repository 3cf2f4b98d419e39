// labels: lanes, long
// seq, simd and parallel give the same bits: loss, gradient and every metric, for every kind of
// policy, also the caller's own, whatever the shape, the layout and the number of threads.
#include "support/catch.hpp"
#include "support/exec_cases.hpp"
#include "support/loss_archetypes.hpp"

namespace exec_test {

namespace {

using exec_cases::Case;
using exec_cases::Form;
using gdpo::Against;
using gdpo::Factors;
using gdpo::Kl;
using gdpo::Kls;
using gdpo::PolicyLoss;
using gdpo::surrogate::Ratio;
using gdpo::surrogate::Reinforce;
namespace aggregate = gdpo::aggregate;
namespace kl = gdpo::kl;
namespace level = gdpo::level;
namespace map = gdpo::map;

/// Small batches in every layout: rows of 0 to 70 tokens, masked rows, and in every third batch NaN
/// and infinities among the tokens. Every second batch has only the arrays that most calls have.
template <class S, class Loss>
void check_small(const Loss& loss) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    Random random(seed);
    const int rows = 1 + random.below(6), width = 1 + random.below(70);
    const Form form = exec_cases::all_forms[seed % 5];
    INFO("seed " << seed << ", " << rows << " rows of " << width << ", form "
                 << static_cast<int>(form));
    exec_cases::Data data =
        exec_cases::random_data(random, rows, width, seed % 3 == 0 ? 0.05 : 0.0);
    loss_product::add_level_log_weights(random, loss, data, seed % 3 == 0 ? 0.05 : 0.0);
    if (seed % 2 == 0) loss_product::simplify(random, data);
    CHECK(Case<S>(random, data, form).difference_of_targets(loss, false) == "");
  }
}
/// Large batches, with enough tokens for seven workers: more than 128 rows, so that a unit of work
/// has several, and rows of several blocks of tokens.
template <class S, class Loss>
void check_large(const Loss& loss) {
  const auto compare = [&](int rows, int width, Form form) {
    const auto seed = static_cast<std::uint64_t>(rows);
    INFO("seed " << seed << ", " << rows << " rows of " << width << ", form "
                 << static_cast<int>(form));
    Random random(seed);
    exec_cases::Data data = exec_cases::random_data(random, rows, width);
    loss_product::add_level_log_weights(random, loss, data, 0);
    const Case<S> c(random, data, form);
    CHECK(c.difference_of_targets(loss, true) == "");
  };
  compare(1801, 32, Form::Padded);
  compare(50, 2501, Form::Packed);
}
/// Small and large batches.
template <class S, class Loss>
void check(const Loss& loss) {
  check_small<S>(loss);
  check_large<S>(loss);
}

}  // namespace

TEST_CASE("GRPO on every target", "[loss][exec]") {
  check<float>(gdpo::grpo_loss);
  auto without_kl = gdpo::grpo_loss;
  without_kl.kl.beta = 0, without_kl.surrogate = {0.1, 0.2, 1.5, 2};
  check<float>(without_kl);
}

TEST_CASE("one ratio a segment, on every target", "[loss][exec]") {
  PolicyLoss<level::Sequence<map::Clamp>, Ratio, Kl<kl::K3, kl::ImportanceWeighted>> loss;
  loss.aggregate = gdpo::aggregate::token_mean();
  loss.level.map = {-0.2, 0.3}, loss.level.bounds = {-0.1, 0.05};
  check<float>(loss);
}

TEST_CASE("several KL terms and factors, on every target", "[loss][exec]") {
  PolicyLoss<level::Token<map::Clamp>, Reinforce,
             Kls<Kl<kl::K1, kl::ScoreFunction>, Kl<kl::Abs, kl::StraightThroughK2>>,
             gdpo::Aggregate, Factors<archetype::ClippedRatio, archetype::ByTag>>
      loss;
  loss.aggregate = gdpo::aggregate::seq_mean_token_sum();
  loss.kl.first.against = Against::Rollout, loss.kl.first.output = {-0.1, 0.1};
  loss.kl.rest.first.input = {-0.2, 0.1};
  loss.factor.first = {0.5, 1.5};
  check<float>(loss);
}

TEST_CASE("KL terms with factors and aggregates of their own, on every target", "[loss][exec]") {
  using Gate = Factors<gdpo::factor::TeacherGate>;
  using Gated = Kl<kl::ForwardK1, kl::Direct, Gate>;
  using Divided = Kl<kl::K3, kl::ImportanceWeightedK2, Factors<>, gdpo::Aggregate>;
  PolicyLoss<level::Token<>, Ratio, Kls<Divided, Gated>> loss;
  loss.kl.first.aggregate = gdpo::aggregate::token_mean();
  loss.kl.rest.first.against = Against::Teacher;
  check<float>(loss);
  check<float>(PolicyLoss<level::Token<>, Ratio, Divided>{});
  // A factor that reads no array of its own, in rows that have only what most calls have.
  Kl<kl::K3, kl::Direct, Factors<gdpo::factor::ClippedRatio>> bounded;
  bounded.factor.first = {0.9, 1.1};
  check_small<float>(gdpo::with_kl(gdpo::grpo_loss, bounded));
}

TEST_CASE("means over groups, of the loss and of a KL term, on every target", "[loss][exec]") {
  Kl<kl::K3, kl::Direct, Factors<>, gdpo::Aggregate> term;
  term.aggregate = aggregate::group_mean(gdpo::Over::Rows);
  auto loss = gdpo::with_kl(gdpo::grpo_loss, term);
  loss.aggregate = aggregate::group_mean();
  check_small<float>(loss);
}

TEST_CASE("the caller's surrogate, KL term and factor, in double", "[loss][exec][archetype]") {
  check<double>(PolicyLoss<level::Token<>, archetype::Soft, archetype::GatedTeacher,
                           archetype::RootOfLength, Factors<archetype::OfTheRow>>{});
}

#if defined(GDPO_TEST_FULL_PRODUCT)
TEST_CASE("the caller's maps and statistics, on every target", "[loss][exec][archetype]") {
  check<float>(PolicyLoss<level::Sequence<archetype::TrustRegion, archetype::SumOverRoot>, Ratio,
                          kl::None>{});
  check<float>(PolicyLoss<level::SequenceToken<archetype::WithoutTagZero>, Reinforce, Kl<kl::K2>,
                          gdpo::Aggregate, Factors<archetype::Gamma>>{});
}

TEST_CASE("in double, on every target", "[loss][exec]") {
  check<double>(gdpo::grpo_loss);
  check<double>(PolicyLoss<level::Sequence<>, Ratio, Kl<kl::K2>>{});
}
#endif

}  // namespace exec_test
