// Calls with logits: aligned and count, token_logprobs_into.
#include <gdpo/logits.hpp>
#include <reference/naive_logits.hpp>

#include "fuzz/trial.hpp"

namespace fuzz {
namespace {

/// Offsets of packed rows: at their beginnings and at the end of the last one.
struct Bounds {
  std::vector<index_t> at{0};
  AnyColumn<index_t> column;

  explicit Bounds(Trial& t) {
    const index_t sequences = t.in.below(4);
    for (index_t s = 0; s < sequences; ++s) at.push_back(at.back() + t.in.below(5));
    std::vector<index_t> given = at;
    if (t.in.hostile(32)) {
      const auto k = static_cast<std::size_t>(t.in.below(static_cast<int>(given.size())));
      given[k] = odd_extent(t.in, given[k]);
    }
    std::size_t next = 0;
    const auto value = [&] { return given[std::min(next++, given.size() - 1)]; };
    const std::array<index_t, 1> entries{static_cast<index_t>(given.size())};
    if (t.in.chance(128)) {
      column = column_of<index_t, std::int32_t>(t, entries, value);
    } else {
      column = column_of<index_t, std::int64_t>(t, entries, value);
    }
  }
  index_t rows() const { return at.back(); }
  /// Whether a call would walk over too many of them, even where it refuses something else.
  bool too_long() const {
    return column.present && column.large && column.size <= static_cast<real>(most_elements);
  }
  /// Whether they are offsets of that many rows.
  bool fits(index_t n) const {
    const std::vector<real>& x = column.integers;
    if (column.size < 1 || column.size > static_cast<real>(most_elements)) return false;
    if (column.large) return n == 0;  // one element stands for all
    for (std::size_t i = 1; i < x.size(); ++i) {
      if (x[i] < x[i - 1]) return false;
    }
    return x.front() == 0 && x.back() == static_cast<real>(n);
  }
  /// Whether row i is the last one of its sequence, which predicts nothing.
  bool ends(index_t i) const {
    for (const real x : column.integers) {
      if (x == static_cast<real>(i + 1)) return true;
    }
    return false;
  }
};

/// The counts of a step from a batch of logits, against those of plain loops.
void compare_counts(Trial& t, const gdpo::Normalizer& n, const std::vector<index_t>& of_rows) {
  real tokens = 0, rows = 0;
  for (const index_t own : of_rows) tokens += static_cast<real>(own), rows += own > 0;
  t.compare("tokens", n.tokens, tokens, 0);
  t.compare("rows", n.rows, static_cast<real>(of_rows.size()), 0);
  t.compare("non_empty_rows", n.non_empty_rows, rows, 0);
}

void aligned_padded(Trial& t) {
  const index_t rows = t.in.below(4), width = t.in.below(5);
  const bool mask_alone = t.in.chance(64);
  const auto logits = t.input<float, 3>({rows, width, 1 + t.in.below(3)});
  const auto ids = t.filled<int, 2>({rows, width}, [&] { return t.in.below(3); });
  auto mask = t.filled<unsigned char, 2>({rows, width}, [&] { return t.in.below(3); });
  if (!mask_alone && t.in.chance(48)) mask.data = nullptr;
  const auto of_logits = [&](const auto& a) {
    return a.extent(0) == logits.extent(0) && a.extent(1) == logits.extent(1);
  };
  if (mask_alone) {
    t.need(mask.sound(), "mask");
  } else {
    t.need(logits.shape.sound(), "logits");
    t.need(ids.sound() && of_logits(ids), "input_ids");
    t.need(mask.absent() || of_logits(mask), "mask");
  }
  t.leave_out_if(t.well_formed() && (mask.large() || (!mask_alone && ids.large())));
  gdpo::Normalizer n;
  if (!t.make_call({"gdpo::aligned", "gdpo::count"}, [&] {
        n = mask_alone ? gdpo::count(gdpo::aligned(mask.view()))
                       : gdpo::count(gdpo::aligned(logits.view(), ids.view(), mask.view()));
      }))
    return;
  const std::vector<double> flags = mask.numbers();
  const auto& shape = mask_alone ? mask.shape : ids.shape;
  std::vector<index_t> of_rows(static_cast<std::size_t>(shape.extent[0]));
  for (std::size_t i = 0; i < of_rows.size(); ++i) {
    for (index_t j = 1; j < shape.extent[1]; ++j) {
      const auto k = i * static_cast<std::size_t>(shape.extent[1]) + static_cast<std::size_t>(j);
      of_rows[i] += mask.absent() || flags[k] != 0;
    }
  }
  compare_counts(t, n, of_rows);
}

void aligned_packed(Trial& t) {
  const Bounds bounds(t);
  const index_t rows = bounds.rows();
  const bool mask_alone = t.in.chance(64);
  const auto logits = t.input<float, 2>({rows, 1 + t.in.below(3)});
  const auto ids = t.filled<std::int64_t, 1>({rows}, [&] { return t.in.below(3); });
  auto mask = t.filled<unsigned char, 1>({rows}, [&] { return t.in.below(3); });
  if (!mask_alone && t.in.chance(48)) mask.data = nullptr;
  index_t n_rows = mask.extent(0);
  if (mask_alone) {
    t.need(mask.sound(), "mask");
  } else {
    n_rows = logits.extent(0);
    t.need(logits.shape.sound(), "logits");
    t.need(ids.sound() && ids.extent(0) == n_rows, "input_ids");
    t.need(mask.absent() || mask.extent(0) == n_rows, "mask");
  }
  t.need(bounds.column.present && bounds.fits(n_rows), "offsets");
  t.leave_out_if(bounds.too_long() || (t.well_formed() && n_rows > most_work));
  gdpo::Normalizer n;
  if (!t.make_call({"gdpo::aligned", "gdpo::count"}, [&] {
        const gdpo::IndexColumn offsets = bounds.column.make();
        n = mask_alone
                ? gdpo::count(gdpo::aligned(mask.view(), offsets))
                : gdpo::count(gdpo::aligned(logits.view(), ids.view(), offsets, mask.view()));
      }))
    return;
  const std::vector<double> flags = mask.numbers();
  const std::vector<real>& at = bounds.column.integers;
  std::vector<index_t> of_rows(at.size() - 1);
  for (std::size_t s = 0; s < of_rows.size(); ++s) {
    // The first token of a sequence is not predicted.
    for (auto k = static_cast<std::size_t>(at[s]) + 1; k < static_cast<std::size_t>(at[s + 1]); ++k)
      of_rows[s] += mask.absent() || flags[k] != 0;
  }
  compare_counts(t, n, of_rows);
}

/// Log-probs of (N, V) or (B, T, V) logits. Rows: N, or B and T.
template <class T, class Exec, std::size_t Rows>
void token_logprobs(Trial& t) {
  constexpr std::size_t Rank = Rows + 1;
  const Bounds bounds(t);
  std::array<index_t, Rows> by_row{};
  std::array<index_t, Rank> table{};
  for (std::size_t r = 0; r < Rows; ++r) by_row[r] = t.in.below(5);
  const bool packed = t.in.chance(Rows == 1 ? 96 : 8);
  if (packed && Rows == 1) by_row[0] = bounds.rows();
  for (std::size_t r = 0; r < Rows; ++r) table[r] = by_row[r];
  const index_t vocabulary = 1 + t.in.below(20);
  table[Rows] = vocabulary;
  auto logits = t.filled<T>(table, [&] { return t.in.chance(6) ? -infinity : t.in.number(); });
  const bool odd_ids = t.in.hostile(24);
  const auto targets = t.filled<int>(by_row, [&] {
    const int token = t.in.below(static_cast<int>(vocabulary));
    return odd_ids && t.in.chance(64) ? t.in.pick({-1, 21, std::numeric_limits<int>::min()})
                                      : token;
  });
  auto mask = t.filled<unsigned char>(by_row, [&] { return t.in.below(4) < 3; });
  if (t.in.chance(128)) mask.data = nullptr;
  const auto out_logp = t.template output<float>(by_row);
  const auto out_entropy = t.template output<float>(by_row);
  const auto out_logsumexp = t.template output<double>(by_row);
  gdpo::LogitBatch<T, static_cast<int>(Rank)> batch;
  batch.temperature = t.in.hostile(16) ? odd_number(t.in) : t.in.pick({1.0, 0.5, 2.0});
  if (t.in.hostile(12)) batch.first_token = odd_extent(t.in, 0);

  const auto rows_of_logits = [&](const auto& a, bool without_last = false) {
    for (std::size_t r = 0; r < Rows; ++r) {
      const index_t wanted = logits.extent(r);
      const bool one_less = without_last && wanted > 0 && a.extent(r) == wanted - 1;
      if (a.extent(r) != wanted && !one_less) return false;
    }
    return true;
  };
  // Targets and mask of packed sequences may lack the entry of the last row.
  const bool ends = Rows == 1 && packed && bounds.column.present;
  t.need(logits.sound(), "logits");
  t.need(logits.extent(Rows) <= 1 || logits.stride[Rows] == 1, "stride 1 over the vocabulary");
  t.need(batch.temperature > 0 && std::isfinite(batch.temperature), "temperature");
  t.need(batch.first_token == 0, "first_token");
  // A null array of no elements has a shape that nobody reads.
  t.need(mask.absent() || rows_of_logits(mask, ends), "mask");
  t.need(targets.absent() || rows_of_logits(targets, ends), "targets");
  t.need(out_logp->absent() || rows_of_logits(*out_logp), "out.logp");
  t.need(out_entropy->absent() || rows_of_logits(*out_entropy), "out.entropy");
  t.need(out_logsumexp->absent() || rows_of_logits(*out_logsumexp), "out.logsumexp");
  index_t rows = 1;
  for (std::size_t r = 0; r < Rows && t.well_formed(); ++r) rows *= logits.extent(r);
  if (packed && bounds.column.present && t.well_formed())
    t.need(Rows == 1 && bounds.fits(rows), "offsets");
  t.need(out_logp->absent() || !targets.absent() || rows == 0, "targets");
  t.leave_out_if((packed && bounds.too_long()) || (t.well_formed() && logits.large()));
  const std::vector<double> ids = targets.numbers(), flags = mask.numbers();
  const auto valid = [&](std::size_t i) {
    return !(packed && bounds.column.present && bounds.ends(static_cast<index_t>(i))) &&
           (mask.absent() || flags[i] != 0);
  };
  const index_t columns = logits.extent(Rows);
  if (t.well_formed() && !logits.large() && !out_logp->absent()) {
    for (std::size_t i = 0; i < static_cast<std::size_t>(rows); ++i)
      t.need(!valid(i) || (ids[i] >= 0 && ids[i] < static_cast<double>(columns)), "a token");
  }
  if (!t.make_call({"gdpo::token_logprobs"}, [&] {
        batch.logits = logits.view();
        batch.targets = targets.view(), batch.mask = mask.view();
        if (packed) batch.offsets = bounds.column.make();
        gdpo::token_logprobs_into(Exec{}, batch,
                                  {out_logp->view(), out_entropy->view(), out_logsumexp->view()});
      }))
    return;
  if (columns == 0) return;  // what a row of no logits gives is written nowhere
  const std::vector<double> x = logits.numbers(), logp = out_logp->numbers(),
                            entropy = out_entropy->numbers(), sums = out_logsumexp->numbers();
  const real inverse = 1 / static_cast<real>(batch.temperature);
  for (std::size_t i = 0; i < static_cast<std::size_t>(rows); ++i) {
    const double* row = x.data() + i * static_cast<std::size_t>(columns);
    real expected[3] = {0, 0, 0};
    if (valid(i)) {
      bool none = true;
      for (index_t j = 0; j < columns; ++j) none = none && std::isinf(row[j]);
      const naive::Softmax s =
          naive::softmax(row, static_cast<std::size_t>(columns), batch.temperature);
      expected[0] = logp.empty() ? 0 : s.logp(static_cast<std::size_t>(ids[i]));
      expected[1] = s.entropy, expected[2] = s.logsumexp;
      if (none) expected[0] = expected[1] = nan, expected[2] = -infinity;
    }
    // The errors that token_logprobs_into documents, and the rounding to float.
    const real tolerance = 2e-6L + 1e-7L * 8 * inverse;
    if (!logp.empty()) t.compare("logp", logp[i], expected[0], tolerance);
    if (!entropy.empty()) t.compare("entropy", entropy[i], expected[1], tolerance);
    if (!sums.empty()) t.compare("logsumexp", sums[i], expected[2], tolerance);
  }
}

}  // namespace

const std::vector<Case>& logit_cases() {
  static const std::vector<Case> cases{
      {"aligned and count, padded", aligned_padded},
      {"aligned and count, packed", aligned_packed},
      {"token_logprobs_into", token_logprobs<float, gdpo::Simd, 1>},
      {"token_logprobs_into", token_logprobs<double, gdpo::Seq, 2>}};
  return cases;
}

}  // namespace fuzz
