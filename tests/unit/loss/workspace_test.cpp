// labels: sanitizers
// LossWorkspace: a call allocates nothing after the first one of its shape, also where every array
// has to be converted, and its bits do not depend on what the workspace served before.
#include <deque>
#include <gdpo/runtime.hpp>

#include "support/allocations.hpp"
#include "support/catch.hpp"
#include "support/generators.hpp"
#include "support/tolerance.hpp"

namespace workspace_test {

namespace {

/// How the arrays of a batch lie in memory.
enum class Form { Dense, Columns, Reversed, Rank3, Packed };

/// A batch with every array that a loss may read, stored as T in `form` and computed in S. Its
/// numbers are multiples of 2^-6 up to 2, which every T holds exactly.
template <class S, class T>
struct Input {
  gdpo::index_t rows, width;
  std::vector<T> logp, old, ref, teacher, rollout, advantages, weights, kl_weights, tags, entropies;
  std::vector<int> mask, segments, truncated, offsets;
  std::vector<double> row_weights;
  std::vector<S> gradient;
  gdpo::TokenBatch<S> batch;
  gdpo::TokenOut<S> out;
  gdpo::Normalizer normalizer;
  Form form;

  Input(const Input&) = delete;
  Input(std::uint64_t seed, int rows_, int width_, Form form_)
      : rows(rows_), width(width_), form(form_) {
    Random random(seed);
    const auto n = static_cast<std::size_t>(rows * width);
    const auto store = [](double x) {
      if constexpr (std::is_same_v<T, gdpo::BFloat16>) {
        return T{static_cast<std::uint16_t>(gdpo::math::bits_of(static_cast<float>(x)) >> 16)};
      } else {
        return static_cast<T>(x);
      }
    };
    // Numbers are drawn in row order for every form, so that a seed gives the same batch in each.
    std::vector<std::size_t> place(n);
    for (std::size_t i = 0; i < static_cast<std::size_t>(rows); ++i) {
      for (std::size_t t = 0; t < static_cast<std::size_t>(width); ++t) {
        const std::size_t k = i * static_cast<std::size_t>(width) + t;
        place[k] = form == Form::Columns    ? t * static_cast<std::size_t>(rows) + i
                   : form == Form::Reversed ? n - 1 - k
                                            : k;
      }
    }
    const auto tokens = [&](auto& v, auto& in, auto draw) {
      v.resize(n);
      for (std::size_t k = 0; k < n; ++k) v[place[k]] = draw();
      in = view_of<std::decay_t<decltype(in)>>(v.data());
    };
    const auto grid = [&](int from, int to) {
      return store((from + random.below(to - from)) * 0x1p-6);
    };
    tokens(logp, batch.logp, [&] { return grid(-128, 0); });
    tokens(old, batch.old_logp, [&] { return grid(-128, 0); });
    tokens(ref, batch.ref_logp, [&] { return grid(-128, 0); });
    tokens(teacher, batch.teacher_logp, [&] { return grid(-128, 0); });
    tokens(rollout, batch.rollout_logp, [&] { return grid(-128, 0); });
    tokens(advantages, batch.token_advantages, [&] { return grid(-64, 64); });
    tokens(weights, batch.weights, [&] { return grid(0, 128); });
    tokens(kl_weights, batch.kl_weights, [&] { return grid(0, 128); });
    tokens(tags, batch.tags, [&] { return grid(0, 128); });
    tokens(entropies, batch.entropies, [&] { return grid(0, 128); });
    tokens(mask, batch.mask, [&] { return random.below(3); });
    tokens(segments, batch.segments, [&] { return random.below(2); });
    for (int i = 0; i < rows; ++i)
      truncated.push_back(random.below(2)), row_weights.push_back(random.uniform());
    for (int i = 0; i <= rows; ++i) offsets.push_back(i * static_cast<int>(width));
    batch.truncated = gdpo::view(truncated);
    batch.row_weights = gdpo::view(row_weights);
    if (form == Form::Packed) batch.offsets = gdpo::view(offsets);
    gradient.resize(n);
    out = view_of<gdpo::TokenOut<S>>(gradient.data());
    normalizer = gdpo::count(batch);
    normalizer.given = 10;
  }

  /// The loss, the KL loss, two metrics, and dloss/dlogp in row order.
  template <class Loss>
  std::vector<double> run(const Loss& loss, gdpo::LossWorkspace<S>& workspace) {
    gradient.assign(gradient.size(), S(-3));
    const gdpo::LossResult r = loss(gdpo::seq, batch, normalizer, out, workspace);
    std::vector<double> all{r.loss, r.kl_loss, r.metrics.entropy.sum, r.metrics.advantage.m2};
    for (gdpo::index_t i = 0; i < rows; ++i) {
      const auto row = out.row(i, i * width, width);
      for (gdpo::index_t t = 0; t < width; ++t) all.push_back(static_cast<double>(row(t)));
    }
    return all;
  }
  template <class Loss>
  void run_only(const Loss& loss, gdpo::LossWorkspace<S>& workspace) {
    loss(gdpo::seq, batch, normalizer, out, workspace);
    loss(gdpo::seq, batch, normalizer, {}, workspace);
  }

 private:
  template <class View, class U>
  View view_of(U* data) const {
    const gdpo::index_t last = rows * width - 1, outer = rows % 2 ? 1 : 2;
    switch (form) {
      case Form::Columns:
        return gdpo::View<U, 2>{data, {rows, width}, {1, rows}};
      case Form::Reversed:
        return gdpo::View<U, 2>{data + last, {rows, width}, {-width, -1}};
      case Form::Rank3:
        return gdpo::view(data, outer, rows / outer, width);
      case Form::Packed:
        return gdpo::view(data, rows * width);
      default:
        return gdpo::view(data, rows, width);
    }
  }
};

constexpr Form forms[] = {Form::Dense, Form::Columns, Form::Reversed, Form::Rank3, Form::Packed};

using Everything = gdpo::PolicyLoss<
    gdpo::level::Sequence<gdpo::map::Clamp>, gdpo::surrogate::Ratio,
    gdpo::Kls<gdpo::Kl<gdpo::kl::K3, gdpo::kl::ImportanceWeighted>, gdpo::Kl<gdpo::kl::K1>>>;
Everything everything() {
  Everything loss;
  loss.kl.first = {0.1, gdpo::Against::Teacher}, loss.kl.rest.first = {0.1, gdpo::Against::Rollout};
  return loss;
}

template <class S, class T>
void allocates_nothing(Form form) {
  Input<S, T> input(1, 6, 40, form);
  const auto check = [&](const auto& loss) {
    gdpo::LossWorkspace<S> workspace;
    const long start = counted::allocations;
    input.run_only(loss, workspace);
    const long first = counted::allocations;
    for (int k = 0; k < 5; ++k) input.run_only(loss, workspace);
    const long after = counted::allocations;
    CHECK(first > start);  // the counter works
    CHECK(after == first);
  };
  INFO("form " << static_cast<int>(form));
  check(gdpo::grpo_loss);
  check(gdpo::gspo_loss);
  check(gdpo::gspo_token_loss);
  check(everything());
  const gdpo::runtime::Loss by_name = gdpo::runtime::loss("verl::vanilla");
  std::visit(check, by_name);

  // A smaller batch is served by the same memory.
  gdpo::LossWorkspace<S> workspace;
  input.run_only(everything(), workspace);
  Input<S, T> smaller(2, 9, 17, form);
  const long before = counted::allocations;
  smaller.run_only(everything(), workspace);
  smaller.run_only(gdpo::dapo_loss, workspace);
  CHECK(counted::allocations == before);
}

}  // namespace

TEST_CASE("a loss allocates nothing after the first call with a shape", "[loss][workspace]") {
  for (const Form form : forms) {
    allocates_nothing<float, float>(form);
    allocates_nothing<float, gdpo::BFloat16>(form);
    allocates_nothing<double, double>(form);
    allocates_nothing<double, float>(form);
  }
}

TEST_CASE("a micro-batch without tokens allocates nothing either, whatever divides it",
          "[loss][workspace]") {
  const std::vector<float> logp(200, -1.0f), advantages(4, 1.0f);
  const std::vector<unsigned char> mask(200, 0);
  gdpo::TokenBatch<float> batch;
  batch.logp = gdpo::view(logp.data(), 4, 50), batch.mask = gdpo::view(mask.data(), 4, 50);
  batch.advantages = gdpo::view(advantages);
  gdpo::LossWorkspace<float> workspace;
  const auto loss = gdpo::dapo_loss;
  loss(gdpo::seq, batch, {}, {}, workspace);
  const long before = counted::allocations;
  for (int k = 0; k < 3; ++k) loss(gdpo::seq, batch, gdpo::count(batch), {}, workspace);
  CHECK(counted::allocations == before);
}

TEST_CASE(
    "a loss gives the same bits, whatever the workspace served before and however the batch is "
    "stored",
    "[loss][workspace]") {
  // One seed and shape is one batch in every form; the numbers are the same in every storage type.
  struct Shape {
    std::uint64_t seed;
    int rows, width;
  };
  const Shape shapes[] = {{1, 4, 9}, {2, 1, 64}, {3, 7, 1}, {4, 6, 33}};
  const auto check = [&](const auto& loss) {
    Random random(11);
    gdpo::LossWorkspace<float> shared;
    for (int round = 0; round < 60; ++round) {
      const Shape& shape = shapes[random.below(4)];
      const Form form = forms[random.below(5)];
      const bool narrow = random.chance(0.5);
      Input<float, float> plain(shape.seed, shape.rows, shape.width, Form::Dense);
      gdpo::LossWorkspace<float> fresh;
      const std::vector<double> expected = plain.run(loss, fresh);
      INFO("round " << round << ", form " << static_cast<int>(form) << ", 16 bits " << narrow);
      if (narrow) {
        Input<float, gdpo::BFloat16> input(shape.seed, shape.rows, shape.width, form);
        CHECK(difference(input.run(loss, shared), expected) == "");
      } else {
        Input<float, float> input(shape.seed, shape.rows, shape.width, form);
        CHECK(difference(input.run(loss, shared), expected) == "");
      }
    }
  };
  check(gdpo::grpo_loss);
  check(gdpo::gspo_token_loss);
  check(everything());
}

}  // namespace workspace_test
