#pragma once
// clip_grad_norm: bounds the norm of a gradient in many arrays, over all ranks.
#include <gdpo/dist/agree.hpp>
#include <gdpo/math/check_fields.hpp>
#include <gdpo/update/engine/grad_norm.hpp>

GDPO_BEGIN_NAMESPACE
namespace update {

/// Which norm of the whole gradient is bounded.
enum class Norm {
  Two,  ///< The root of the sum of squares over all elements of all arrays.
  Max   ///< The largest magnitude (norm_type=inf of PyTorch).
};
/// The enumerators of Norm with their words.
GDPO_DATA_INLINE constexpr auto enumerators(Norm) {
  using E = Enumerator<Norm>;
  return std::array{E{"two", Norm::Two}, E{"max", Norm::Max}};
}

/// What happens to a gradient with a NaN or an infinity.
enum class OnNonFinite {
  /// It stays as it is, and `ClippedGradient::take_step` is false: leave the optimizer step out
  /// (verl's `_optimizer_step`).
  Skip,
  Zero,  ///< It becomes 0 in all arrays, and the step is taken: moments decay, weights decay.
  Throw  ///< invalid_input, before anything is written (error_if_nonfinite=True of PyTorch).
};
/// The enumerators of OnNonFinite with their words.
GDPO_DATA_INLINE constexpr auto enumerators(OnNonFinite) {
  using E = Enumerator<OnNonFinite>;
  return std::array{E{"skip", OnNonFinite::Skip}, E{"zero", OnNonFinite::Zero},
                    E{"throw", OnNonFinite::Throw}};
}

/// Settings of clip_grad_norm().
struct ClipSettings {
  Norm norm = Norm::Two;                          ///< Which norm.
  OnNonFinite on_non_finite = OnNonFinite::Skip;  ///< What happens to a NaN or an infinity.
  /// Added to the norm in the divisor, at least 0. PyTorch, DeepSpeed and Megatron-LM add 1e-6,
  /// which makes the clipped norm that much smaller. By default there is none.
  double eps = 0;
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("norm", s.norm, "which norm of the whole gradient is bounded");
    field("on_non_finite", s.on_non_finite, "what happens to a NaN or an infinity");
    field("eps", s.eps, at_least(0), "added to the norm in the divisor");
  }
};

/// What clip_grad_norm() saw and did. It is the same on all ranks.
struct ClippedGradient {
  /// The norm before clipping. NaN where the gradient has a NaN, else infinite where it has an
  /// infinity, or where the norm is beyond the range of double.
  double norm = 0;
  /// What the gradient was multiplied by; 1: it is as it was. Where the factor is too small for a
  /// double it is rounded here, but not where it is applied.
  double scale = 1;
  bool clipped = false;   ///< The norm was too large, and the gradient was scaled.
  bool take_step = true;  ///< False: leave the optimizer step out (OnNonFinite::Skip).
  index_t nans = 0,       ///< Elements that are NaN; those of replicated arrays count once.
      infinities = 0;     ///< Elements that are infinite.
  /// Where the first array with such an element stands: its rank, and its place in the list of
  /// that rank; -1 without one.
  int fault_rank = -1;
  index_t fault_array = -1;  ///< \copydoc fault_rank
  /// Ranks whose replicated arrays have another norm than those of rank 0: the gradients have not
  /// been reduced, or the replicas have drifted apart. 0 is as it should be.
  int differing_ranks = 0;
  /// Ranks whose shards have the same norm as those of rank 0, bit for bit. 0 is as it should be:
  /// otherwise the arrays are probably no shards, and `norm` is too large by the root of the number
  /// of ranks. Mark them by replicated().
  int equal_ranks = 0;
};

}  // namespace update

namespace detail {

/// What a rank sends about its gradients.
struct GradientRecord {
  NormParts sharded, replicated;
  std::int64_t first_fault = -1;  // the first array with a number that is not finite
  std::int64_t replicated_elements = 0;
};

/// What becomes of the gradients: they are multiplied by both factors, one after the other.
struct Clipping {
  update::ClippedGradient result;
  double first = 1, second = 1;
};

/// The factors that bound a finite norm.
inline Clipping clipping_of(const ScaledNorm& scaled, double max_norm, double eps) {
  Clipping c;
  c.result.norm = scaled.norm();
  c.result.clipped = c.result.norm + eps > max_norm;
  if (!c.result.clipped) return c;
  // The divisor is d u. An eps beside a norm in units of 2^-600 is added in units of 1.
  const bool tiny = scaled.unit < 1 && eps > 0;
  const double d = tiny ? c.result.norm + eps : scaled.value + eps / scaled.unit,
               u = tiny ? 1 : scaled.unit;
  c.first = c.result.scale = u < 1 ? max_norm / u / d : max_norm / d / u;
  if (max_norm > 0 && c.first < 0x1p-1000) {
    // The scale is too small for a double, but a gradient times it may not be.
    c.first = math::mul(max_norm, 0x1p400) / (u > 1 ? d : math::mul(d, 0x1p-600));
    c.second = 0x1p-1000;
  }
  return c;
}

/// What all ranks conclude from what all of them have.
inline Clipping clipping_of(const char* function, const std::vector<GradientRecord>& ranks,
                            double max_norm, const update::ClipSettings& settings) {
  using namespace update;
  // Replicas count once: those of rank 0, or of the first rank whose replicas have a fault.
  std::size_t replica = 0;
  for (std::size_t k = ranks.size(); k-- > 0;) {
    if (ranks[k].replicated.not_finite() > 0) replica = k;
  }
  NormParts all = ranks[replica].replicated;
  int differing = 0, equal = 0, fault_rank = -1;
  for (std::size_t k = 0; k < ranks.size(); ++k) {
    if (ranks[k].replicated_elements != ranks[0].replicated_elements) {
      const auto words = [](const GradientRecord& r) {
        return std::to_string(r.replicated_elements) + " replicated elements";
      };
      fail_between(function, "gradients", words(ranks[0]), 0, words(ranks[k]), k,
                   "the same replicated arrays on all ranks");
    }
    all += ranks[k].sharded;
    if (!(ranks[k].replicated == ranks[0].replicated)) ++differing;
    if (k > 0 && ranks[k].sharded == ranks[0].sharded && !(ranks[k].sharded == NormParts{}))
      ++equal;
    if (fault_rank < 0 && ranks[k].first_fault >= 0) fault_rank = static_cast<int>(k);
  }
  Clipping c;
  if (all.not_finite() == 0) {
    const ScaledNorm norm = settings.norm == Norm::Max ? max_norm_of(all) : two_norm(all);
    c = clipping_of(norm, max_norm, settings.eps);
  } else {
    c.result.norm = all.nans > 0 ? math::nan() : math::infinity;
    c.result.nans = static_cast<index_t>(all.nans);
    c.result.infinities = static_cast<index_t>(all.infinities);
    c.result.fault_rank = fault_rank;
    c.result.fault_array = ranks[static_cast<std::size_t>(fault_rank)].first_fault;
    if (settings.on_non_finite == OnNonFinite::Throw) {
      contract::fail(
          function, "gradients",
          contract::text(c.result.nans) + " NaN and " + contract::text(c.result.infinities) +
              " infinite elements, the first in gradients[" + contract::text(c.result.fault_array) +
              "] of rank " + contract::text(index_t{fault_rank}),
          "finite gradients, because on_non_finite is Throw");
    }
    c.result.take_step = settings.on_non_finite == OnNonFinite::Zero;
    if (c.result.take_step) c.first = c.result.scale = 0;
  }
  c.result.differing_ranks = differing, c.result.equal_ranks = equal;
  return c;
}

}  // namespace detail

namespace update {

/// Bounds the norm of the whole gradient, over all arrays and all ranks, by scaling all of it.
///
///     gdpo::update::ClippedGradient c =
///         gdpo::update::clip_grad_norm(gdpo::simd, comm, gradients, 1.0);
///     if (c.take_step) optimizer_step();
///     log("optim/grad_norm", c.norm);
///
/// The formula: norm = (sum over arrays and elements of g^2)^(1/2), or the largest |g|;
/// scale = max_norm / (norm + eps) if norm + eps > max_norm, else 1; g' = scale g. Source: Pascanu,
/// Mikolov, Bengio (arXiv 1211.5063), algorithm 1; `clip_grad_norm_` of PyTorch, whose eps is 1e-6.
///
/// exec: seq, simd or parallel(executor); all give the same bits. comm: the ranks that hold shards
/// of one gradient (dist/communicator.hpp). An array that all of them hold in full is marked by
/// replicated(), and counts once; unmarked, its norm would be too large by the root of the number
/// of ranks (ClippedGradient::equal_ranks). With DistributedDataParallel all arrays are such, and
/// the gradients have to be reduced before the call. Each rank passes its own list, which may be
/// empty, and has to come to the call. gradients: changed in place. max_norm: at least 0; 0 makes
/// all gradients 0, as in PyTorch, and math::infinity bounds nothing. Trainers whose max_grad_norm
/// of 0 or None means "do not clip" pass infinity.
///
/// One read of the arrays measures; only where the norm is too large, a second read and a write
/// scale. Between ranks go 64 bytes and a record of 112 from each.
///
/// Accuracy: squares are added in double, whatever the storage, in chunks of 4096 elements whose
/// 16 lanes are added as a tree; 16 chunks are added in order, the sums of these as a tree, then
/// arrays and ranks in order. So the norm is within 1e-12 relative for thousands of arrays of any
/// size, and norms of 1e-200 and 1e200 are exact to the same degree (Blue's three ranges). Each
/// product is computed in double and rounded to float or double, then to a 16-bit storage. An
/// array in any storage order is walked as it stands in memory; a strided one costs a copy in the
/// first cache.
///
/// A gradient with a NaN or an infinity is no mistake of the caller: `settings.on_non_finite` says
/// what becomes of it, `ClippedGradient` where it stands. No gradient at all has the norm 0.
///
/// Errors, of all ranks where one has them, before anything is written: invalid_input for a
/// negative or NaN max_norm, for settings out of range or different on ranks, for an array that is
/// a null pointer, of const elements, with a stride of 0, for two arrays that begin at the same
/// element (a tied weight) or, where both are dense, that overlap, and for replicated arrays of
/// different sizes on ranks.
template <class Exec, class Comm, std::enable_if_t<dist::is_communicator_v<Comm>, int> = 0>
ClippedGradient clip_grad_norm(const Exec& exec, const Comm& comm,
                               const std::vector<ParameterView>& gradients, double max_norm,
                               const ClipSettings& settings = {}) {
  static_assert(detail::needs_exec<Exec>());
  using namespace gdpo::detail;
  constexpr const char* function = "gdpo::update::clip_grad_norm";
  std::vector<index_t> elements;
  std::optional<ParameterGrid> grid;
  const Records records = exchange(function, comm, [&](Contribution& mine) {
    check_fields(function, "", settings);
    if (!(max_norm >= 0) || math::is_nan(max_norm))
      contract::fail(function, "max_norm", contract::text(max_norm), "a number of at least 0");
    elements = written_elements(function, "gradients", gradients);
    grid.emplace(elements);
    GradientRecord record;
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      if (gradients[i].held() == Held::Replicated) record.replicated_elements += elements[i];
    }
    const std::vector<NormParts> array_parts =
        parts_of_norms(exec, gradients, *grid, elements, settings.norm == Norm::Max);
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      (gradients[i].held() == Held::Sharded ? record.sharded : record.replicated) += array_parts[i];
      if (record.first_fault < 0 && array_parts[i].not_finite() > 0)
        record.first_fault = static_cast<std::int64_t>(i);
    }
    mine.settings = "max_norm " + description(max_norm) + ", " + description(settings);
    mine.put(&record, 1);
  });
  std::vector<GradientRecord> ranks;
  for (int rank = 0; rank < records.ranks(); ++rank)
    ranks.push_back(RecordReader(records, rank).get<GradientRecord>());
  const Clipping clipping = clipping_of(function, ranks, max_norm, settings);
  if (clipping.first != 1 || clipping.second != 1)
    scale_elements(exec, gradients, *grid, elements, clipping.first, clipping.second);
  return clipping.result;
}
/// The same for the gradient of one process.
template <class Exec>
ClippedGradient clip_grad_norm(const Exec& exec, const std::vector<ParameterView>& gradients,
                               double max_norm, const ClipSettings& settings = {}) {
  return clip_grad_norm(exec, dist::Single{}, gradients, max_norm, settings);
}
/// The same on one thread, in lanes.
inline ClippedGradient clip_grad_norm(const std::vector<ParameterView>& gradients, double max_norm,
                                      const ClipSettings& settings = {}) {
  return clip_grad_norm(simd, gradients, max_norm, settings);
}

}  // namespace update
GDPO_END_NAMESPACE
