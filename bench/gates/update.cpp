// Gradient clipping and Polyak averaging, which the memory bounds: their speed over loops that read
// and write the same arrays once and compute next to nothing.
#include <gdpo/update/clip_grad_norm.hpp>
#include <gdpo/update/polyak.hpp>
#include <memory>

#include "experiments.hpp"
#include "machine.hpp"
#include "probes.hpp"

namespace gates {
namespace {

/// An array of parameters or gradients, and another one to average it with.
template <class T>
struct Arrays {
  std::vector<T> a, b;
  double checked = 0, measured = 0;  // the norm at first, in long double and by the library
  double bound = 0;

  explicit Arrays(gdpo::index_t n) : a(static_cast<std::size_t>(n)), b(a.size()) {
    std::mt19937 random(1);
    std::uniform_real_distribution<float> uniform(-1, 1);
    long double sum = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
      gdpo::store(a[i], uniform(random)), gdpo::store(b[i], uniform(random));
      const long double x = gdpo::load(a[i]);
      sum += x * x;
    }
    checked = static_cast<double>(std::sqrt(sum));
  }
  /// Clips to less than the norm, so that each call has to scale.
  void clip() {
    bound = 0.99 * (bound > 0 ? bound : checked);
    const double norm = gdpo::update::clip_grad_norm({gdpo::view(a)}, bound).norm;
    if (measured == 0) measured = norm;
  }
};

/// What the probes compute with: the storage itself, or integers for 16-bit floats.
template <class T>
using Plain = std::conditional_t<sizeof(T) == 2, std::uint16_t, T>;

/// In place: what scaling reads and writes.
template <class T>
[[gnu::noinline]] void touch(T* x, std::ptrdiff_t n) {
  for (std::ptrdiff_t i = 0; i < n; ++i) x[i] = static_cast<T>(x[i] + T(1));
}
/// x = x / 2 + y / 2: what averaging reads and writes.
template <class T>
[[gnu::noinline]] void average(T* x, const T* y, std::ptrdiff_t n) {
  for (std::ptrdiff_t i = 0; i < n; ++i) x[i] = static_cast<T>(x[i] / T(2) + y[i] / T(2));
}
template <class T>
void set_up(Bench& bench, gdpo::index_t n) {
  const auto arrays = std::make_shared<Arrays<T>>(n);
  const auto work = static_cast<double>(n);
  const auto right = [=] {
    const double off = std::abs(arrays->measured / arrays->checked - 1);
    return off <= 1e-12 ? std::string() : "norm off by " + std::to_string(off);
  };
  bench.add(
      "clip_grad_norm 1T", work, [=] { arrays->clip(); }, right);
  bench.add_probe("polyak 1T", work, [=] {
    gdpo::update::polyak({gdpo::view(arrays->a)}, {gdpo::view(arrays->b)}, 0.01);
  });
  if (bench.library_alone()) return;
  // They work on copies, which they may turn into anything.
  const auto x = std::make_shared<std::vector<Plain<T>>>(arrays->a.size(), Plain<T>(1));
  const auto y = std::make_shared<std::vector<Plain<T>>>(*x);
  bench.add_probe("read, then read and write 1T", work, [=] {
    volatile std::uint64_t sum = probes::read(x->data(), n);
    (void)sum;
    touch(x->data(), n);
  });
  bench.add_probe("read both, write one 1T", work, [=] { average(x->data(), y->data(), n); });
}

template <class T>
Experiment experiment(const std::string& type, gdpo::index_t n, Gate gate) {
  return {"update, " + std::to_string(n >> 20) + " Mi elements of " + type,
          {{"clip_grad_norm: speed over reading, then reading and writing", gate,
            "read, then read and write 1T", "clip_grad_norm 1T"},
           {"polyak: speed over reading both and writing one", gate, "read both, write one 1T",
            "polyak 1T"}},
          [=](Bench& bench) { set_up<T>(bench, n); }};
}

}  // namespace

std::vector<Experiment> update() {
  constexpr gdpo::index_t n = gdpo::index_t{1} << 26;
  return {experiment<float>("float", n, at_least(0.8).on(zen5)),
          experiment<double>("double", n / 2, at_least(0.8).on(zen5)),
          experiment<gdpo::BFloat16>("bfloat16", n, no_gate())};
}

}  // namespace gates
