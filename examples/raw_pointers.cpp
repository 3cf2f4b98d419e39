// The policy loss on buffers that belong to a trainer: plain pointers, no Eigen, no copy. The
// program computes the loss of the same nine tokens twice, once from padded rows with a mask and
// once packed end to end with cu_seqlens, and checks that both layouts give the same loss and the
// same gradient, bit for bit. Read quickstart.cpp first.
//
// Build and run, from the root of the repository:
//   g++ -std=c++17 -I include examples/raw_pointers.cpp -o raw_pointers
//   ./raw_pointers
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <gdpo/loss.hpp>
#include <vector>

int main() {
  const int rows = 3, width = 4;
  // Completion i has the packed tokens cu_seqlens[i] to cu_seqlens[i + 1] - 1: 4, 2 and 3 tokens.
  const std::int64_t cu_seqlens[] = {0, 4, 6, 9};
  const float packed_logp[] = {-0.9f, -1.4f, -0.2f, -2.1f, -0.5f, -0.7f, -1.1f, -0.3f, -0.8f};
  const float packed_old[] = {-1.0f, -1.1f, -0.2f, -2.6f, -0.6f, -0.7f, -1.5f, -0.2f, -0.8f};
  const float advantages[] = {0.8f, -1.2f, 0.4f};

  // The padded layout: row i holds completion i, and the mask is 1 at its tokens. The padding may
  // hold anything, here 1e38, because tokens whose mask is 0 are never read.
  std::vector<float> logp(rows * width, 1e38f), old_logp(rows * width, 1e38f), dlogp(rows * width);
  std::vector<std::uint8_t> mask(rows * width, 0);
  for (int i = 0; i < rows; ++i) {
    const std::int64_t begin = cu_seqlens[i], length = cu_seqlens[i + 1] - begin;
    std::copy_n(packed_logp + begin, length, logp.begin() + i * width);
    std::copy_n(packed_old + begin, length, old_logp.begin() + i * width);
    std::fill_n(mask.begin() + i * width, length, std::uint8_t{1});
  }

  // DAPO: ratios are clipped to [1 - 0.2, 1 + 0.28], there is no KL term, and the loss is the mean
  // over all tokens.
  const auto loss = gdpo::dapo_loss;
  gdpo::TokenBatch<float> padded;
  padded.logp = gdpo::view(logp.data(), rows, width);
  padded.old_logp = gdpo::view(old_logp.data(), rows, width);
  padded.mask = gdpo::view(mask.data(), rows, width);
  padded.advantages = gdpo::view(advantages, rows);  // one per completion
  // count() gives what the loss is divided by: the numbers of tokens and rows. The call writes
  // dloss/dlogp into the last argument and returns the loss with its metrics.
  const gdpo::LossResult a =
      loss(padded, gdpo::count(padded), gdpo::view(dlogp.data(), rows, width));

  // The packed layout: one array of all tokens, with offsets in place of the mask.
  float packed_dlogp[9];
  gdpo::TokenBatch<float> packed;
  packed.logp = gdpo::view(packed_logp, 9);
  packed.old_logp = gdpo::view(packed_old, 9);
  packed.offsets = gdpo::view(cu_seqlens, rows + 1);
  packed.advantages = gdpo::view(advantages, rows);
  const gdpo::LossResult b = loss(packed, gdpo::count(packed), gdpo::view(packed_dlogp, 9));

  // Compare bit for bit.
  bool same = a.loss == b.loss;
  for (int i = 0; i < rows; ++i) {
    const std::int64_t begin = cu_seqlens[i], length = cu_seqlens[i + 1] - begin;
    same = same && std::equal(packed_dlogp + begin, packed_dlogp + begin + length,
                              dlogp.begin() + i * width);
  }
  std::printf("padded %.6f, packed %.6f: %s\n", a.loss, b.loss,
              same ? "the same gradient" : "they differ");
  // The metrics, by the keys that TRL and ms-swift log.
  for (const auto& [key, value] : a.metrics.to_map("train/"))
    std::printf("  %-32s %g\n", key.c_str(), value);
  return same ? 0 : 1;
}
