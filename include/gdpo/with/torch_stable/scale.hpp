#pragma once
// Operators that multiply a gradient by the logits, which a loss has left, by that of the loss.
#include <gdpo/storage/stored_as.hpp>
#include <gdpo/with/torch_stable/tensor.hpp>

GDPO_BEGIN_NAMESPACE
namespace torch_stable {

namespace detail {

/// Finds the rows of a table (N, V) or (B, T, V) with stride 1 over V.
template <class T>
struct TableRows {
  T* data;
  index_t stride[2] = {};
  index_t width = 1, rows, vocabulary;  ///< width: T, or 1 for (N, V)

  explicit TableRows(const Tensor& table)
      : data(static_cast<T*>(table.mutable_data_ptr())),
        rows(static_cast<index_t>(table.size(0))),
        vocabulary(static_cast<index_t>(table.size(table.dim() - 1))) {
    stride[0] = static_cast<index_t>(table.stride(0));
    if (table.dim() == 2) return;
    width = static_cast<index_t>(table.size(1)), stride[1] = static_cast<index_t>(table.stride(1));
    rows *= width;
  }
  GDPO_INLINE T* operator()(index_t i) const {
    return data + i / width * stride[0] + i % width * stride[1];
  }
};

/// A scalar of float32 or float64, read where it lies.
struct Factor {
  const void* data;
  StoredAs type;

  Factor(const Call& call, const Tensor& factor) : data(factor.const_data_ptr()) {
    if (!call.has(factor) || factor.numel() != 1)
      call.fail("by", "another tensor", "a scalar on the device of the table");
    const TensorInfo info = info_of(factor);
    gdpo::detail::check_dtype(call.function, "by", info, gdpo::detail::RealTypes{});
    type = info.stored_as;
  }
  template <class S>
  GDPO_INLINE S value() const {
    return load_stored<S>(data, type, 0);
  }
};

/// out = source times the factor, in double for double and else in float, rounded once.
template <class T, class S>
GDPO_INLINE void scale_number(const T& source, T& out, S factor) {
  store(out, static_cast<S>(load(source)) * factor);
}
/// The type in which scale_number computes.
template <class T>
using ScaledIn = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// Checks a table and calls f(a null pointer to its type).
template <class F>
void with_table(const Call& call, const Tensor& table, const F& f) {
  const TensorInfo info = table_info(call, "table", table);
  if (info.extent[info.rank - 1] > 1 && info.stride[info.rank - 1] != 1)
    call.fail("table", "another stride", "stride 1 over the vocabulary");
  gdpo::detail::visit_elements(call.function, "table", info, gdpo::detail::RealTypes{}, f);
}

template <class T, class S>
void scale_rows(const TableRows<T>& source, const TableRows<T>& out, S factor) {
  Threads{}.for_each(source.rows, [&](index_t i) {
    const T* x = source(i);
    T* y = out(i);
    for (index_t v = 0; v < source.vocabulary; ++v) scale_number(x[v], y[v], factor);
  });
}
inline void scale_table(const Call& call, const Tensor& source, const Tensor& factor,
                        const Tensor& out) {
  with_table(call, source, [&](auto* element) {
    using T = std::remove_const_t<std::remove_pointer_t<decltype(element)>>;
    scale_rows(TableRows<T>(source), TableRows<T>(out), Factor(call, factor).value<ScaledIn<T>>());
  });
}

}  // namespace detail

/// What an operator of this name declares.
inline constexpr const char* scaled_schema = "scaled(Tensor table, Tensor by) -> Tensor";
/// A table of gradients, (N, V) or (B, T, V) with stride 1 over the vocabulary, times a scalar of
/// its device. The product is computed in float32 at least and rounded once; PyTorch itself would
/// round the factor to the type of the table, and so bias the whole gradient.
inline Tensor scaled(const Tensor& table, const Tensor& by) {
  const detail::Call call("gdpo::scaled");
  Tensor out = detail::new_like(call, table, 0, table.scalar_type());
  detail::scale_table(call, table, by, out);
  return out;
}

/// What an operator of this name declares.
inline constexpr const char* scale_in_place_schema = "scale_(Tensor(a!) table, Tensor by) -> ()";
/// The same in place. By 1 the table is left as it is, without a pass over it.
inline void scale_in_place(const Tensor& table, const Tensor& by) {
  const detail::Call call("gdpo::scale_");
  if (detail::Factor(call, by).value<double>() == 1) return;
  detail::scale_table(call, table, by, table);
}

}  // namespace torch_stable
GDPO_END_NAMESPACE
