#pragma once
// The operators of a second normalization over the tokens of a mask.
#include <gdpo/advantage/whiten.hpp>
#include <gdpo/with/torch_stable/running.hpp>

GDPO_BEGIN_NAMESPACE
namespace torch_stable {

namespace detail {

/// A tensor of elements T, (rows, tokens) or packed (tokens), as a view of rank 2.
template <class T>
View<T, 2> table_of(const Call& call, const char* name, const TensorInfo& info) {
  if (info.rank == 1)
    return gdpo::detail::as_table(gdpo::detail::checked_view<T, 1>(call.function, name, info));
  gdpo::detail::check_rank(call.function, name, info, 1, 2, "(rows, tokens) or packed (tokens)");
  return gdpo::detail::checked_view<T, 2>(call.function, name, info);
}
/// Calls f(values, mask) with views of these.
template <class F>
void with_counted(const Call& call, const Tensor& values, const Array& mask, const F& f) {
  const TensorInfo info = info_of(call, "values", values);
  View<const unsigned char, 2> valid;
  if (mask) {
    const TensorInfo bytes = info_of(call, "mask", *mask);
    gdpo::detail::check_dtype<const unsigned char>(call.function, "mask", bytes);
    valid = table_of<const unsigned char>(call, "mask", bytes);
    if (bytes.rank != info.rank) call.fail("mask", "another rank", "the shape of values");
  }
  gdpo::detail::visit_elements(call.function, "values", info, gdpo::detail::RealTypes{},
                               [&](auto* element) {
                                 using T = std::remove_pointer_t<decltype(element)>;
                                 f(table_of<T>(call, "values", info), valid);
                               });
}

}  // namespace detail

/// What an operator of this name declares.
inline constexpr const char* token_moments_schema =
    "token_moments(Tensor values, Tensor? mask=None) -> Tensor";
/// The moments of the values that a mask selects (stats/masked.hpp): (1, 7) float64, as `measure`
/// returns them. The arguments are those of `whiten`.
inline Tensor token_moments(const Tensor& values, const Array& mask) {
  Moments moments;
  detail::with_counted("gdpo::whiten", values, mask, [&](const auto& x, const auto& valid) {
    moments = masked_moments(x, valid);
  });
  return detail::moments_tensor(moments);
}

/// What an operator of this name declares.
inline constexpr const char* whiten_schema =
    "whiten(Tensor values, str line, Tensor? mask=None, Tensor? moments=None) -> Tensor";
/// The values that a mask selects, whitened, and 0 elsewhere (advantage/whiten.hpp).
///
/// `values`: (rows, tokens) or (tokens), of floating-point numbers. `line`: that of
/// runtime::configured_whitening. `mask`: bytes or bool, in the shape of the values. `moments`:
/// those of the tokens of all ranks, as token_moments returns them; without them those of the
/// values.
///
/// Returns a new tensor in the shape of the values, float64 for float64, else float32. Errors:
/// those of whiten_into, and `invalid_input` for tensors that do not fit.
inline Tensor whiten(const Tensor& values, const std::string& line, const Array& mask,
                     const Array& moments) {
  const detail::Call call("gdpo::whiten");
  const Renorm renorm = runtime::detail::configured(call.function, line, &runtime::whitening).value;
  const bool wide = values.scalar_type() == ScalarType::Double;
  const Tensor out =
      detail::new_like(call, values, 0, wide ? ScalarType::Double : ScalarType::Float);
  detail::with_counted(call, values, mask, [&](const auto& x, const auto& valid) {
    using Out = result_t<std::decay_t<decltype(*x.data)>>;
    const View<Out, 2> table = detail::table_of<Out>(call, "out", detail::written(out));
    if (!moments) return whiten_into(x, valid, renorm, table);
    whiten_into(x, valid, renorm, detail::moments_in(call, "moments", *moments), table);
  });
  return out;
}

}  // namespace torch_stable
GDPO_END_NAMESPACE
