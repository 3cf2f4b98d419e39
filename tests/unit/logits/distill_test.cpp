// labels: lanes
// Distillation from logits: numbers by hand, the presets of trainers, edges, and what it refuses.
#include <cmath>
#include <gdpo/logits.hpp>
#include <gdpo/presets/ms_swift.hpp>
#include <gdpo/presets/trl.hpp>
#include <gdpo/presets/verl.hpp>

#include "support/allocations.hpp"
#include "support/catch.hpp"
#include "support/message.hpp"

namespace distill_test {

namespace {

using gdpo::DistillationLoss, gdpo::DistillationResult, gdpo::Rest;
constexpr double inf = std::numeric_limits<double>::infinity();
using Numbers = std::vector<double>;

/// One position: logits log q over a vocabulary, and the teacher's tokens.
struct Position {
  Numbers logits, logp, gradient;
  std::vector<int> ids;

  DistillationResult operator()(const DistillationLoss& loss) {
    gdpo::LogitBatch<double, 2> batch;
    const auto vocabulary = static_cast<gdpo::index_t>(logits.size()),
               k = static_cast<gdpo::index_t>(ids.size());
    batch.logits = gdpo::view(logits.data(), 1, vocabulary);
    gradient.assign(logits.size(), -77);
    const gdpo::index_t offsets[2] = {0, 1};
    gdpo::TokenBatch<float> tokens;
    tokens.offsets = gdpo::view(offsets, 2);
    const gdpo::TeacherTopK<2, double, int> teacher{gdpo::view(logp.data(), 1, k),
                                                    gdpo::view(ids.data(), 1, k)};
    return gdpo::distillation_from_logits(loss, batch, teacher, tokens, gdpo::count(batch, tokens),
                                          gdpo::view(gradient.data(), 1, vocabulary));
  }
};
Numbers logs(Numbers p) {
  for (double& x : p) x = std::log(x);
  return p;
}
/// A few roundings of numbers of at most 4.
bool near(double a, double b) { return std::fabs(a - b) <= 64 * 0x1p-53; }
bool near(const Numbers& a, const Numbers& b) {
  bool all = a.size() == b.size();
  for (std::size_t k = 0; k < b.size() && all; ++k) all = near(a[k], b[k]);
  return all;
}

}  // namespace

TEST_CASE("distillation: one position by hand", "[logits][teacher]") {
  // q = 1/2, 1/4, 1/8, 1/8; the teacher lists token 2 with 1/2 and token 0 with 1/4.
  Position x{logs({0.5, 0.25, 0.125, 0.125}), logs({0.5, 0.25}), {}, {2, 0}};
  const double ln2 = std::log(2.0);
  // Forward KL: 1/2 log 4 + 1/4 log(1/2); c = -1/2 at 2, -1/4 at 0, C = -3/4.
  DistillationLoss loss;
  const DistillationResult r = x(loss);
  CHECK(near(r.loss, 0.75 * ln2));
  CHECK(near(x.gradient, {-0.25 + 0.375, 0.1875, -0.5 + 0.09375, 0.09375}));
  CHECK(near(r.metrics.student_mass.mean(), 0.625));
  CHECK(near(r.metrics.teacher_mass.mean(), 0.75));
  CHECK(r.metrics.loss.count == 1);
  // Reverse KL: 1/8 log(1/4) + 1/2 log 2; c = 1/8 (1 - log 4), 1/2 (1 + log 2).
  loss.beta = 1;
  CHECK(near(x(loss).loss, 0.25 * ln2));
  const double c2 = 0.125 - 0.25 * ln2, c0 = 0.5 + 0.5 * ln2, c = c2 + c0;
  CHECK(near(x.gradient, {c0 - 0.5 * c, -0.25 * c, c2 - 0.125 * c, -0.125 * c}));
  // Forward KL with a tail: p = 1/4, q = 3/8; C = -1, and 1/4 / (3/8) = 2/3.
  loss = {0, Rest::Tail};
  CHECK(near(x(loss).loss, 0.75 * ln2 + 0.25 * std::log(2.0 / 3)));
  CHECK(near(x.gradient, {0.5 - 0.25, 0.25 / 3, 0.125 - 0.5, 0.125 / 3}));
  // Renormalized: p = 2/3, 1/3 and q = 1/5, 4/5.
  loss = {0, Rest::Renormalize};
  CHECK(near(x(loss).loss, 2.0 / 3 * std::log(10.0 / 3) + 1.0 / 3 * std::log(5.0 / 12)));
  CHECK(near(x.gradient, {0.8 - 1.0 / 3, 0, 0.2 - 2.0 / 3, 0}));
  CHECK(x.gradient[1] == 0);
  // Half-way: m = 13/30, 17/30.
  loss.beta = 0.5;
  const double p2 = 2.0 / 3, p0 = 1.0 / 3, q2 = 0.2, q0 = 0.8, m2 = 13.0 / 30, m0 = 17.0 / 30;
  CHECK(near(x(loss).loss, 0.5 * (p2 * std::log(p2 / m2) + p0 * std::log(p0 / m0) +
                                  q2 * std::log(q2 / m2) + q0 * std::log(q0 / m0))));
}

TEST_CASE("distillation: a token that one of the two excludes", "[logits][teacher]") {
  Position x{{0, -inf, 0}, logs({0.5, 0.5}), {}, {1, 0}};
  CHECK(x({0}).loss == inf);
  CHECK(near(x.gradient, {-0.5 + 0.5, -0.5, 0.5}));  // C = -1, q = 1/2, 0, 1/2
  CHECK(near(x({1}).loss, 0));
  CHECK(x.gradient[1] == 0);
  const DistillationResult half = x({0.5});
  CHECK(near(half.loss, 0.25 * std::log(2.0)));  // of token 1: 1/2 1/2 log(p / (p / 2))
  CHECK(half.metrics.losses.count == 0);
  x.logp[0] = std::nan("");
  const DistillationResult bad = x({0});
  CHECK(std::isnan(bad.loss));
  CHECK((bad.metrics.losses.count == 1 && bad.metrics.losses.row == 0));
  for (const double g : x.gradient) CHECK(std::isnan(g));
}

TEST_CASE("distillation: no token at all", "[logits][teacher]") {
  for (const Rest rest : {Rest::Drop, Rest::Renormalize, Rest::Tail}) {
    Position x{{0, 1, 2}, {-inf, -inf}, {}, {-1, 99}};
    CHECK(x({0.5, rest}).loss == 0);
    CHECK(x.gradient == Numbers{0, 0, 0});
    Position none{{0, 1, 2}, {}, {}, {}};
    CHECK(none({1, rest}).loss == 0);
    CHECK(none.gradient == Numbers{0, 0, 0});
  }
}

TEST_CASE("distillation: the presets of trainers", "[logits][teacher]") {
  // verl: log q = log 1e-5 is held at -10, and 0.5 (log 0.5 + 10) + 0.5 (log 0.5 - log(1 - 1e-5)).
  Position x{logs({1e-5, 1 - 1e-5}), logs({0.5, 0.5}), {}, {0, 1}};
  CHECK(near(x(gdpo::verl::forward_kl_topk_loss).loss,
             0.5 * (std::log(0.5) + 10) + 0.5 * (std::log(0.5) - std::log1p(-1e-5))));
  // The held token has no slope of its own: c = 0, -1/2, C = -1/2.
  CHECK(near(x.gradient, {0.5e-5, -0.5 + 0.5 * (1 - 1e-5)}));
  // Below 0 the loss is held, and has no gradient.
  Position low{logs({0.9, 0.1}), logs({0.5}), {}, {0}};
  CHECK(low(gdpo::verl::forward_kl_topk_loss).loss == 0);
  CHECK(low.gradient == Numbers{0, 0});
  CHECK(gdpo::ms_swift::gkd_topk_loss.beta == 0.5);
  CHECK(gdpo::ms_swift::gkd_topk_loss.rest == Rest::Renormalize);
  CHECK(gdpo::trl::server_distillation_loss.beta == 0);
  CHECK(gdpo::trl::server_distillation_loss.rest == Rest::Tail);
}

TEST_CASE("distillation: nothing is allocated after a first call", "[logits][workspace]") {
  std::vector<float> logits(6 * 50, 0.5f), gradient(logits.size()), logp(6 * 3, -2.0f);
  std::vector<int> ids(18);
  for (int k = 0; k < 18; ++k) ids[static_cast<std::size_t>(k)] = k;
  gdpo::LogitBatch<float, 3> batch;
  batch.logits = gdpo::view(logits.data(), 2, 3, 50);
  const gdpo::TeacherTopK<3, float, int> teacher{gdpo::view(logp.data(), 2, 3, 3),
                                                 gdpo::view(ids.data(), 2, 3, 3)};
  const gdpo::Normalizer n = gdpo::count(batch);
  gdpo::DistillationWorkspace workspace;
  const auto run = [&] {
    gdpo::distillation_from_logits(gdpo::simd, DistillationLoss{0.5}, batch, teacher,
                                   gdpo::TokenBatch<float>{}, n,
                                   gdpo::view(gradient.data(), 2, 3, 50), workspace);
  };
  run();
  const long first = counted::allocations;
  for (int k = 0; k < 5; ++k) run();
  CHECK(counted::allocations == first);
}

TEST_CASE("distillation: what is refused", "[logits][errors]") {
  std::vector<float> logits(24, 0.5f), logp(12, -2.0f), gradient(24, 7);
  std::vector<std::int64_t> ids(12, 1);
  gdpo::LogitBatch<float, 3> batch;
  batch.logits = gdpo::view(logits.data(), 2, 3, 4);
  gdpo::TeacherTopK<3> teacher{gdpo::view(logp.data(), 2, 3, 2), gdpo::view(ids.data(), 2, 3, 2)};
  gdpo::Normalizer n = gdpo::count(batch);
  DistillationLoss loss;
  gdpo::TokenBatch<float> tokens;
  const auto said = [&] {
    return message_of([&] {
      gdpo::distillation_from_logits(loss, batch, teacher, tokens, n,
                                     gdpo::view(gradient.data(), 2, 3, 4));
    });
  };
  const std::string of = "gdpo::distillation_from_logits: ";
  CHECK(said() == "no error");
  loss.aggregate = gdpo::aggregate::group_mean();
  n.given = 1;
  CHECK(said().find(of + "batch.group_tokens: given no array") == 0);
  n.given = 0, loss = {};
  loss.beta = 1.5;
  CHECK(said() == of + "beta: given 1.5; needed: 0 to 1");
  loss = {};
  loss.teacher_temperature = 2;
  CHECK(said() == of + "teacher_temperature: given 2; needed: 1, or rest = renormalize");
  loss.rest = Rest::Renormalize;
  CHECK(said() == "no error");
  loss = {};
  loss.min_logp = 1;
  CHECK(said() == of + "min_logp: given 1; needed: at most 0 (-infinity: off)");
  loss = {};
  std::fill(gradient.begin(), gradient.end(), 7.0f);
  ids[5] = 4;
  CHECK(said() == of + "teacher.ids: given 4 at row (0, 2), place 1; needed: a token: from 0 to 3, "
                       "or a log-prob of -infinity");
  logp[5] = static_cast<float>(-inf);
  CHECK(said() == "no error");
  std::fill(gradient.begin(), gradient.end(), 7.0f);
  ids[5] = -1, logp[5] = -1;
  CHECK(said().find("teacher.ids: given -1 at row (0, 2), place 1;") != std::string::npos);
  ids[5] = 1;
  teacher.ids.extent[2] = 1;
  CHECK(said() == of + "teacher.ids: given (2, 3, 1); needed: (2, 3, 2), the rows of logits with K "
                       "tokens each");
  teacher.ids = gdpo::view(ids.data(), 2, 3, 2);
  teacher.logp.extent[1] = 2;
  CHECK(said().find("teacher.logp: given (2, 2, 2); needed: (2, 3, 2)") != std::string::npos);
  teacher.logp = {nullptr, {2, 3, 2}, {6, 2, 1}};
  CHECK(said().find("teacher.logp: given no array; needed: (2, 3, 2) numbers") !=
        std::string::npos);
  teacher.logp = gdpo::view(logp.data(), 2, 3, 2);
  batch.first_token = 3;
  CHECK(said().find("first_token: given 3; needed: 0") != std::string::npos);
  batch.first_token = 0, n.tokens = 5;
  CHECK(said().find("normalizer.tokens: given 5, for a loss of 6") != std::string::npos);
  n.tokens = 0;
  CHECK(said().find("normalizer.tokens: given 0") != std::string::npos);
  CHECK(gradient == std::vector<float>(24, 7));
  // A shard.
  n = gdpo::count(batch);
  gdpo::DistillationWorkspace workspace;
  std::vector<gdpo::LogitRow> rows(6);
  std::vector<double> topk(12);
  gdpo::DistillationSums sums{gdpo::view(rows), gdpo::view(topk.data(), 6, 2)};
  const auto of_shard = [&] {
    return message_of([&] {
      gdpo::distillation_from_sums(gdpo::seq, loss, batch, sums, teacher, tokens, n,
                                   gdpo::view(gradient.data(), 2, 3, 4), workspace);
    });
  };
  sums.topk.extent[1] = 1;
  CHECK(of_shard() ==
        "gdpo::distillation_from_sums: sums.topk: given (6, 1); needed: (6, 2) numbers");
  sums.topk = gdpo::view(topk.data(), 6, 2), sums.rows = {};
  CHECK(of_shard() ==
        "gdpo::distillation_from_sums: sums.rows: given no array; needed: one for "
        "each of the 6 rows of logits");
  loss.rest = Rest::Renormalize;
  CHECK(of_shard() == "no error");
  CHECK(message_of([&] {
          gdpo::topk_logits(gdpo::seq, batch, teacher, gdpo::view(topk.data(), 4, 3));
        }) == "gdpo::topk_logits: out: given (4, 3); needed: (6, 2)");
}

}  // namespace distill_test
