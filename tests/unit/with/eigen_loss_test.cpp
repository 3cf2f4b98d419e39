// labels: sanitizers
// Eigen's arrays, maps, refs, blocks and tensors, in either storage order, as the arrays of a loss
// and as its gradient: the bits of the call on raw pointers.
#include <gdpo/gdpo.hpp>
#include <gdpo/with/eigen_tensor.hpp>

#include "support/catch.hpp"
#include "support/generators.hpp"
#include "support/tolerance.hpp"

namespace eigen_loss_test {

namespace {

constexpr int rows = 6, width = 5;
template <class T, int Order>
using Array = Eigen::Array<T, Eigen::Dynamic, Eigen::Dynamic, Order>;
template <class T, int Order>
using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Order>;

/// The values that every form below is filled with, and the results on raw pointers.
template <class S>
struct Raw {
  std::vector<S> logp, old, ref, weights, entropies;
  std::vector<int> mask, segments;
  std::vector<S> advantages, truncated;
  std::vector<S> gradient = std::vector<S>(rows * width);
  std::vector<double> expected[3];  // at level Token, at level Sequence, and there after pre-passes

  Raw() {
    Random random(5);
    for (int k = 0; k < rows * width; ++k) {
      logp.push_back(static_cast<S>(-2 * random.uniform()));
      old.push_back(logp.back() + static_cast<S>(0.8 * (random.uniform() - 0.5)));
      ref.push_back(logp.back() + static_cast<S>(0.8 * (random.uniform() - 0.5)));
      weights.push_back(static_cast<S>(2 * random.uniform()));
      entropies.push_back(static_cast<S>(random.uniform()));
      mask.push_back(random.chance(0.8));
      segments.push_back(random.below(2));
    }
    for (int i = 0; i < rows; ++i) {
      advantages.push_back(static_cast<S>(2 * random.uniform() - 1));
      truncated.push_back(static_cast<S>(i == 2));
    }
    gdpo::TokenBatch<S> b;
    b.logp = at(logp), b.old_logp = at(old), b.ref_logp = at(ref), b.weights = at(weights);
    b.entropies = at(entropies), b.mask = at(mask), b.segments = at(segments);
    b.advantages = gdpo::view(advantages), b.truncated = gdpo::view(truncated);
    all(
        b, gdpo::view(gradient.data(), rows, width), [&] { return gradient; }, expected);
  }
  template <class V>
  static auto at(V& v) {
    return gdpo::view(v.data(), rows, width);
  }
  /// Loss, metrics and gradient of three compositions; dense() returns the gradient row by row.
  template <class Out, class Dense>
  static void all(const gdpo::TokenBatch<S>& batch, const Out& out, const Dense& dense,
                  std::vector<double>* results) {
    const auto run = [&](const auto& loss, const gdpo::TokenBatch<S>& b) {
      const gdpo::LossResult r = loss(b, gdpo::count(b), out);
      std::vector<double> values{r.loss, r.kl_loss, r.metrics.entropy.sum,
                                 r.metrics.clipped_completions.row_sum};
      for (const S g : dense()) values.push_back(static_cast<double>(g));
      return values;
    };
    results[0] = run(gdpo::grpo_loss, batch);
    results[1] = run(gdpo::gspo_loss, batch);
    gdpo::PrepassMemory<S> memory;
    results[2] =
        run(gdpo::gspo_loss, gdpo::prepare(batch, memory, gdpo::prepass::Overlong{batch.truncated},
                                           gdpo::prepass::TopEntropy{0.3}));
  }
};

/// Checks one form. make(values) returns an object that holds `values` in that form. A batch and a
/// gradient in that form must give what raw pointers give, and nothing around the gradient may be
/// written.
template <class S, class Make>
void same(const char* what, const Make& make) {
  INFO(what);
  const Raw<S> raw;
  auto logp = make(raw.logp), old = make(raw.old), ref = make(raw.ref), weights = make(raw.weights);
  auto entropies = make(raw.entropies);
  auto mask = make(raw.mask), segments = make(raw.segments);
  auto gradient = make(std::vector<S>(rows * width, S(-9)));
  Eigen::Matrix<S, Eigen::Dynamic, 1> advantages =
      Eigen::Map<const Eigen::Matrix<S, Eigen::Dynamic, 1>>(raw.advantages.data(), rows);
  Eigen::Array<S, 1, Eigen::Dynamic> truncated =
      Eigen::Map<const Eigen::Array<S, 1, Eigen::Dynamic>>(raw.truncated.data(), rows);
  gdpo::TokenBatch<S> b;
  b.logp = logp.view(), b.old_logp = old.view(), b.ref_logp = ref.view(),
  b.weights = weights.view();
  b.entropies = entropies.view(), b.mask = mask.view(), b.segments = segments.view();
  b.advantages = gdpo::view(advantages), b.truncated = gdpo::view(truncated);
  std::vector<double> got[3];
  Raw<S>::all(
      b, gradient.view(), [&] { return gradient.values(); }, got);
  for (int k = 0; k < 3; ++k) {
    INFO("loss " << k);
    CHECK(difference(got[k], raw.expected[k]) == "");
  }
  CHECK(gradient.untouched());
}

/// A form that is one Eigen object with elements (i, t).
template <class E>
struct Dense {
  E object;
  auto view() { return gdpo::view(object); }
  std::vector<typename E::Scalar> values() const {
    std::vector<typename E::Scalar> v;
    for (int i = 0; i < rows; ++i) {
      for (int t = 0; t < width; ++t) v.push_back(object(i, t));
    }
    return v;
  }
  bool untouched() const { return true; }
};
template <class E, class T>
E filled(const std::vector<T>& values) {
  E e(rows, width);
  for (int i = 0; i < rows; ++i) {
    for (int t = 0; t < width; ++t) e(i, t) = values[static_cast<std::size_t>(i * width + t)];
  }
  return e;
}

/// A form inside a larger matrix, of which it takes a block or every second row and column. The
/// rest of the matrix must stay as it is.
enum class Inside { Block, Map, StridedMap, Ref };
template <class T, int Order, Inside How>
struct Part {
  using Whole = Matrix<T, Order>;
  static constexpr int step = How == Inside::StridedMap ? 2 : 1;
  Whole whole = Whole::Constant(2 * rows + 3, 2 * width + 3, T(55));

  explicit Part(const std::vector<T>& values) { block() = filled<Whole>(values); }
  auto block() {
    const gdpo::index_t outer = whole.outerStride();
    T* first = whole.data() + whole.outerStride() + 2;
    using Stride = Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>;
    return Eigen::Map<Whole, Eigen::Unaligned, Stride>(first, rows, width,
                                                       Stride(step * outer, step));
  }
  auto view() {
    if constexpr (How == Inside::Block) {
      return Order == Eigen::RowMajor ? gdpo::view(whole.block(1, 2, rows, width))
                                      : gdpo::view(whole.block(2, 1, rows, width));
    } else if constexpr (How == Inside::Ref) {
      using Stride = Eigen::OuterStride<>;
      Eigen::Ref<Whole, 0, Stride> ref = Order == Eigen::RowMajor ? whole.block(1, 2, rows, width)
                                                                  : whole.block(2, 1, rows, width);
      return gdpo::view(ref);
    } else {
      return gdpo::view(block());
    }
  }
  std::vector<T> values() { return Dense<Whole>{Whole(block())}.values(); }
  bool untouched() {
    Whole rest = whole;
    rest.swap(whole);
    block().setConstant(T(55));
    const bool same = (whole.array() == T(55)).all();
    whole.swap(rest);
    return same;
  }
};

template <class T, int Order>
struct ArrayForm : Dense<Array<T, Order>> {
  explicit ArrayForm(const std::vector<T>& v)
      : Dense<Array<T, Order>>{filled<Array<T, Order>>(v)} {}
};
template <class T, int Order>
struct MatrixForm : Dense<Matrix<T, Order>> {
  explicit MatrixForm(const std::vector<T>& v)
      : Dense<Matrix<T, Order>>{filled<Matrix<T, Order>>(v)} {}
};

/// A tensor of rank 2, or of rank 3 as (2, rows / 2, width), with its own memory or as a map of it.
template <class T, int Order, int Rank, bool Mapped>
struct TensorForm {
  using Tensor = Eigen::Tensor<T, Rank, Order>;
  Tensor own;
  explicit TensorForm(const std::vector<T>& v) {
    if constexpr (Rank == 2) {
      own = Tensor(rows, width);
    } else {
      own = Tensor(2, rows / 2, width);
    }
    for (int i = 0; i < rows; ++i) {
      for (int t = 0; t < width; ++t) at(i, t) = v[static_cast<std::size_t>(i * width + t)];
    }
  }
  T& at(int i, int t) {
    if constexpr (Rank == 2) {
      return own(i, t);
    } else {
      return own(i / (rows / 2), i % (rows / 2), t);
    }
  }
  auto view() {
    if constexpr (Mapped) {
      return gdpo::view(Eigen::TensorMap<Tensor>(own.data(), own.dimensions()));
    } else {
      return gdpo::view(own);
    }
  }
  std::vector<T> values() {
    std::vector<T> v;
    for (int i = 0; i < rows; ++i) {
      for (int t = 0; t < width; ++t) v.push_back(at(i, t));
    }
    return v;
  }
  bool untouched() const { return true; }
};

template <class S, int Order>
void every_form() {
  const auto check = [](const char* what, auto form) {
    same<S>(what, [&](const auto& values) { return form(values); });
  };
  check("Array", [](const auto& v) { return ArrayForm<std::decay_t<decltype(v[0])>, Order>(v); });
  check("Matrix", [](const auto& v) { return MatrixForm<std::decay_t<decltype(v[0])>, Order>(v); });
  check("Block",
        [](const auto& v) { return Part<std::decay_t<decltype(v[0])>, Order, Inside::Block>(v); });
  check("Map",
        [](const auto& v) { return Part<std::decay_t<decltype(v[0])>, Order, Inside::Map>(v); });
  check("strided Map", [](const auto& v) {
    return Part<std::decay_t<decltype(v[0])>, Order, Inside::StridedMap>(v);
  });
  check("Ref",
        [](const auto& v) { return Part<std::decay_t<decltype(v[0])>, Order, Inside::Ref>(v); });
  check("Tensor 2",
        [](const auto& v) { return TensorForm<std::decay_t<decltype(v[0])>, Order, 2, false>(v); });
  check("TensorMap 2",
        [](const auto& v) { return TensorForm<std::decay_t<decltype(v[0])>, Order, 2, true>(v); });
  check("Tensor 3",
        [](const auto& v) { return TensorForm<std::decay_t<decltype(v[0])>, Order, 3, false>(v); });
  check("TensorMap 3",
        [](const auto& v) { return TensorForm<std::decay_t<decltype(v[0])>, Order, 3, true>(v); });
}

}  // namespace

TEST_CASE("a loss on Eigen's objects is the loss on raw pointers, float", "[loss][eigen]") {
  every_form<float, Eigen::RowMajor>();
  every_form<float, Eigen::ColMajor>();
}

TEST_CASE("a loss on Eigen's objects is the loss on raw pointers, double", "[loss][eigen]") {
  every_form<double, Eigen::RowMajor>();
  every_form<double, Eigen::ColMajor>();
}

TEST_CASE("packed tokens, masks of bool and 16-bit log-probs of Eigen", "[loss][eigen]") {
  const Raw<float> raw;
  const auto n = static_cast<Eigen::Index>(rows * width);
  Eigen::ArrayXf logp = Eigen::Map<const Eigen::ArrayXf>(raw.logp.data(), n), gradient(n),
                 padded(n);
  const Eigen::Array<Eigen::bfloat16, Eigen::Dynamic, 1> narrow = logp.cast<Eigen::bfloat16>();
  const Eigen::Array<Eigen::half, Eigen::Dynamic, 1> half = logp.cast<Eigen::half>();
  const Eigen::ArrayXf rounded = narrow.cast<float>(), halved = half.cast<float>();
  const Eigen::Array<bool, Eigen::Dynamic, 1> mask =
      Eigen::Map<const Eigen::ArrayXi>(raw.mask.data(), n).cast<bool>();
  const Eigen::ArrayXi offsets = Eigen::ArrayXi::LinSpaced(rows + 1, 0, rows * width);
  const Eigen::VectorXf advantages = Eigen::Map<const Eigen::VectorXf>(raw.advantages.data(), rows);
  gdpo::TokenBatch<float> packed, by_pointer;
  packed.old_logp = gdpo::view(logp), packed.mask = gdpo::view(mask);
  packed.offsets = gdpo::view(offsets), packed.advantages = gdpo::view(advantages);
  by_pointer.old_logp = gdpo::view(raw.logp.data(), rows, width),
  by_pointer.mask = Raw<float>::at(raw.mask);
  by_pointer.advantages = gdpo::view(raw.advantages);
  const auto check = [&](const auto& stored, const Eigen::ArrayXf& same_values) {
    packed.logp = gdpo::view(stored);
    by_pointer.logp = gdpo::view(same_values.data(), rows, width);
    const gdpo::LossResult a = gdpo::dapo_loss(packed, gdpo::count(packed), gdpo::view(gradient));
    const gdpo::LossResult b = gdpo::dapo_loss(by_pointer, gdpo::count(by_pointer),
                                               gdpo::view(padded.data(), rows, width));
    CHECK(same_bits(a.loss, b.loss));
    CHECK(a.loss != 0);
    CHECK(difference(gradient, padded) == "");
  };
  check(narrow, rounded);
  check(half, halved);
  check(logp, logp);
}

}  // namespace eigen_loss_test
