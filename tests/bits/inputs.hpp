// Inputs of the bit tests: integers times powers of two, which every compiler computes exactly.
#pragma once
#include <cstdint>
#include <gdpo/loss.hpp>
#include <limits>
#include <vector>

namespace {

using gdpo::index_t;

/// A sequence of integers that is the same on every machine.
class Integers {
 public:
  explicit Integers(std::uint64_t seed) : state_(seed) {}
  /// The next integer, from -most to most.
  std::int64_t operator()(std::int64_t most) {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<std::int64_t>((state_ >> 33) % static_cast<std::uint64_t>(2 * most + 1)) -
           most;
  }
  bool one_in(std::int64_t n) { return (*this)(n * 8) % n == 0; }

 private:
  std::uint64_t state_;
};

/// n 2^-20, which is exact in float below 16.
template <class S>
S in_millionths(std::int64_t n) {
  return static_cast<S>(static_cast<double>(n) * 0x1p-20);
}

/// Which arrays a batch has beside logp, old_logp and ref_logp, and what they hold.
struct Shape {
  const char* name;
  int rows, width;
  bool masked = false;     // has a mask, with NaN where it is 0
  bool packed = false;     // rows of 0 to width tokens, end to end
  bool all = false;        // has every array there is, and advantages by token
  bool poisoned = false;   // has NaN and infinities among the valid tokens
  bool on_policy = false;  // has no old_logp
};
constexpr Shape shapes[] = {
    {"padded", 5, 48},
    {"odd", 3, 37},
    {"masked", 7, 70, true},
    {"packed", 71, 70, false, true},
    {"full", 9, 51, true, false, true},
    {"full_packed", 40, 39, false, true, true},
    {"poisoned", 12, 33, true, false, true, true},
    {"on_policy", 4, 21, true, false, false, false, true},
    {"many_rows", 300, 9, true},
    {"long", 2, 2500, true},
    {"threads", 64, 1024, true},  // enough tokens for eight workers (detail::worth_a_thread)
    {"threads_packed", 700, 190, false, true, true},
};

/// A batch of one shape; S is float or double.
template <class S>
class Tokens {
 public:
  explicit Tokens(const Shape& shape) : shape_(shape) {
    Integers integers(static_cast<std::uint64_t>(shape.rows * 1000 + shape.width));
    std::size_t n = 0;
    for (int i = 0; i < shape.rows; ++i) {
      n += static_cast<std::size_t>(shape.packed ? (i * 13) % (shape.width + 1) : shape.width);
      offsets_.push_back(static_cast<std::int32_t>(n));
    }
    std::int64_t id = 0;
    for (std::size_t k = 0; k < n; ++k) {
      const bool valid = !shape.masked || !integers.one_in(4);
      mask_.push_back(valid);
      const std::int64_t at = integers(1 << 22) - (5 << 20),
                         step = integers(1 << (integers.one_in(5) ? 22 : 16));
      const auto token = [&](std::int64_t millionths) {
        if (!valid) return std::numeric_limits<S>::quiet_NaN();
        if (shape.poisoned && integers.one_in(40)) {
          constexpr S infinite = std::numeric_limits<S>::infinity();
          const S odd[] = {std::numeric_limits<S>::quiet_NaN(), infinite, -infinite};
          return odd[integers(1) + 1];
        }
        return in_millionths<S>(millionths);
      };
      logp_.push_back(token(at));
      old_logp_.push_back(token(at + step));
      ref_logp_.push_back(token(at + integers(1 << 17)));
      rollout_logp_.push_back(token(at + integers(1 << 15)));
      teacher_logp_.push_back(token(at + integers(1 << 19)));
      token_advantages_.push_back(integers.one_in(9) ? S(0) : token(integers(1 << 21)));
      weights_.push_back(integers.one_in(6) ? S(0) : token(integers(1 << 20) + (1 << 20)));
      kl_weights_.push_back(integers.one_in(6) ? S(0) : token(integers(1 << 20) + (1 << 20)));
      tags_.push_back(in_millionths<S>(integers(1 << 20) + (1 << 20)));
      entropies_.push_back(token(integers(1 << 20) + (1 << 20)));
      segments_.push_back(integers.one_in(17) ? ++id : id);
    }
    for (int i = 0; i < shape.rows; ++i) {
      advantages_.push_back(i % 6 == 5 ? S(0) : in_millionths<S>(integers(1 << 21)));
      row_weights_.push_back(in_millionths<double>(integers(1 << 19) + (1 << 20)));
      truncated_.push_back(integers.one_in(3));
    }
  }
  Tokens(const Tokens&) = delete;
  Tokens& operator=(const Tokens&) = delete;

  gdpo::TokenBatch<S> batch() const {
    gdpo::TokenBatch<S> b;
    const auto set = [this](auto& to, const auto& from) {
      if (shape_.packed) {
        to = gdpo::view(from);
      } else {
        to = gdpo::view(from.data(), shape_.rows, shape_.width);
      }
    };
    set(b.logp, logp_);
    if (!shape_.on_policy) set(b.old_logp, old_logp_);
    set(b.ref_logp, ref_logp_);
    set(b.rollout_logp, rollout_logp_);
    set(b.teacher_logp, teacher_logp_);
    set(b.tags, tags_);
    if (shape_.packed) b.offsets = gdpo::view(offsets_);
    if (shape_.masked) set(b.mask, mask_);
    if (!shape_.all) {
      b.advantages = gdpo::view(advantages_);
      return b;
    }
    set(b.token_advantages, token_advantages_);
    set(b.weights, weights_), set(b.kl_weights, kl_weights_), set(b.entropies, entropies_);
    set(b.segments, segments_);
    b.row_weights = gdpo::view(row_weights_);
    b.truncated = gdpo::view(truncated_);
    return b;
  }
  std::size_t size() const { return logp_.size(); }
  gdpo::TokenOut<S> out(std::vector<S>& gradient) const {
    if (shape_.packed) return gdpo::view(gradient);
    return gdpo::view(gradient.data(), shape_.rows, shape_.width);
  }

 private:
  const Shape& shape_;
  std::vector<S> logp_, old_logp_, ref_logp_, rollout_logp_, teacher_logp_, token_advantages_,
      weights_, kl_weights_, tags_, entropies_, advantages_;
  std::vector<double> row_weights_;
  std::vector<unsigned char> mask_, truncated_;
  std::vector<std::int64_t> segments_;
  std::vector<std::int32_t> offsets_{0};
};

}  // namespace
