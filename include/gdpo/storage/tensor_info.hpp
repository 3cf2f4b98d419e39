#pragma once
// Tensors of other libraries, whose element type, rank and strides are known at run time only: what
// one is in memory, and views and columns of it.
#include <gdpo/storage/column.hpp>
#include <string>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// What a tensor is in memory. The adapter of its library fills this in and checks what only that
/// library has: devices, layouts, versions. Everything else is checked here.
struct TensorInfo {
  void* data = nullptr;                  ///< The element with all indices 0.
  StoredAs stored_as = StoredAs::Other;  ///< UInt8 for bool.
  bool is_bool = false;                  ///< Bytes that must stay 0 or 1.
  bool read_only = false;                ///< Elements must not be written.
  int rank = 0;                          ///< Any; a view has at most 3.
  const index_t* extent = nullptr;       ///< One for each axis.
  const index_t* stride = nullptr;  ///< One for each axis, in elements; null: dense, row by row.
  std::string other;                ///< The dtype in words, where `stored_as` is Other.
};

/// A type of elements in the words of PyTorch and NumPy.
constexpr const char* dtype_words(StoredAs stored_as) {
  constexpr const char* words[] = {"another type", "float32", "float64", "float16", "bfloat16",
                                   "int8",         "uint8",   "int16",   "uint16",  "int32",
                                   "uint32",       "int64",   "uint64"};
  return words[static_cast<int>(stored_as)];
}
GDPO_COLD inline std::string dtype_words(const TensorInfo& tensor) {
  if (tensor.stored_as == StoredAs::Other) return tensor.other;
  return tensor.is_bool ? "bool" : dtype_words(tensor.stored_as);
}

/// Types of elements that a call takes.
template <class... Ts>
struct ElementTypes {};
using IntegerTypes =
    ElementTypes<std::int64_t, std::int32_t, std::int16_t, std::int8_t, unsigned char>;
using RealTypes = ElementTypes<float, double, BFloat16, Float16>;
using NumberTypes = ElementTypes<float, double, BFloat16, Float16, std::int64_t, std::int32_t,
                                 std::int16_t, std::int8_t, unsigned char>;
using NarrowTypes = ElementTypes<float, BFloat16, Float16, std::int64_t, std::int32_t, std::int16_t,
                                 std::int8_t, unsigned char>;  ///< all but double

/// Whether bytes of bool may be viewed as T. Bytes for writing may not.
template <class T>
constexpr bool reads_bool_v = std::is_same_v<T, const unsigned char>;
/// Whether elements of the tensor may be viewed as T.
template <class T>
bool holds(const TensorInfo& tensor) {
  constexpr bool is_bool = std::is_same_v<layout_t<std::remove_const_t<T>>, bool>;
  return tensor.stored_as == stored_as<T>() &&
         (tensor.is_bool == is_bool || (tensor.is_bool && reads_bool_v<T>));
}
/// The dtypes that may be viewed as one of the types: "one of float32, int64, uint8 or bool".
template <class... Ts>
GDPO_COLD std::string dtypes_in_words() {
  std::string words;
  const auto add = [&words](const char* word, bool or_bool) {
    words += (words.empty() ? "" : ", ") + std::string(word) + (or_bool ? " or bool" : "");
  };
  (add(std::is_same_v<layout_t<std::remove_const_t<Ts>>, bool> ? "bool"
                                                               : dtype_words(stored_as<Ts>()),
       reads_bool_v<Ts>),
   ...);
  return sizeof...(Ts) > 1 ? "one of " + words : words;
}
/// Throws unless elements of the tensor may be viewed as one of the types.
template <class... Ts>
void check_dtype(const char* function, const contract::Text& name, const TensorInfo& tensor) {
  static_assert(((stored_as<Ts>() != StoredAs::Other) && ...),
                "no dtype has elements of this type: use float, double, Float16, BFloat16, an "
                "integer or bool");
  if (!(holds<Ts>(tensor) || ...))
    contract::fail(function, name, dtype_words(tensor), dtypes_in_words<Ts...>());
}
/// The same for reading.
template <class... Ts>
void check_dtype(const char* function, const contract::Text& name, const TensorInfo& tensor,
                 ElementTypes<Ts...>) {
  check_dtype<const Ts...>(function, name, tensor);
}
/// Throws unless the tensor has from `least` to `most` axes; `needed` says which.
inline void check_rank(const char* function, const contract::Text& name, const TensorInfo& tensor,
                       int least, int most, const contract::Text& needed) {
  if (tensor.rank < least || tensor.rank > most)
    contract::fail(function, name, contract::shape(tensor.rank, tensor.extent), needed);
}

/// The view of a tensor whose dtype and rank have been checked.
template <class T, int Rank>
View<T, Rank> view_of(const TensorInfo& tensor) {
  View<T, Rank> v;
  v.data = static_cast<T*>(tensor.data);
  index_t dense = 1;
  for (int r = Rank - 1; r >= 0; --r) {
    v.extent[r] = tensor.extent[r];
    v.stride[r] = tensor.stride ? tensor.stride[r] : dense;
    dense *= v.extent[r];
  }
  return v;
}
/// The view of a tensor whose dtype has been checked. Throws for another rank, for elements that
/// are missing and, unless T is const, for a tensor that must not be written and for elements that
/// several indices share.
template <class T, int Rank>
View<T, Rank> checked_view(const char* function, const contract::Text& name,
                           const TensorInfo& tensor) {
  static_assert(Rank >= 1 && Rank <= 3, "a view has rank 1, 2 or 3");
  check_rank(function, name, tensor, Rank, Rank, "rank " + contract::text(index_t{Rank}));
  if (!std::is_const_v<T> && tensor.read_only) {
    contract::fail(function, name, "a tensor for reading only",
                   "one that may be written, or a view of const elements");
  }
  const index_t elements = contract::check_extents(function, name, Rank, tensor.extent);
  if (elements > 0 && !tensor.data) contract::fail_null(function, name, Rank, tensor.extent);
  const View<T, Rank> v = view_of<T, Rank>(tensor);
  if (!std::is_const_v<T>) contract::check_apart(function, name, Rank, v.extent, v.stride);
  return v;
}

/// Calls f(a null pointer to the first of the types that the elements may be viewed as), and
/// returns what f returns. The dtype has been checked.
template <class T, class... Ts, class F>
decltype(auto) visit_checked(const TensorInfo& tensor, const F& f) {
  if constexpr (sizeof...(Ts) > 0) {
    if (!holds<T>(tensor)) return visit_checked<Ts...>(tensor, f);
  }
  return f(static_cast<T*>(nullptr));
}
/// The same for reading: f gets a pointer to const. Throws for a dtype that is none of the types.
template <class... Ts, class F>
decltype(auto) visit_elements(const char* function, const contract::Text& name,
                              const TensorInfo& tensor, ElementTypes<Ts...> types, const F& f) {
  check_dtype(function, name, tensor, types);
  return visit_checked<const Ts...>(tensor, f);
}

/// An array that is made from a view: of a tensor of rank 1 to `most`, with elements of one of the
/// types. `shape` says the ranks in a message.
template <class Array, int most, class Types>
Array array_of(const char* function, const contract::Text& name, const TensorInfo& tensor,
               Types types, const char* shape) {
  check_rank(function, name, tensor, 1, most, shape);
  return visit_elements(function, name, tensor, types, [&tensor](auto* element) -> Array {
    using T = std::remove_pointer_t<decltype(element)>;
    if constexpr (most == 3) {
      if (tensor.rank == 3) return view_of<T, 3>(tensor);
    }
    if constexpr (most >= 2) {
      if (tensor.rank == 2) return view_of<T, 2>(tensor);
    }
    return view_of<T, 1>(tensor);
  });
}
/// A column with one number for each row.
inline Column column_of(const char* function, const contract::Text& name,
                        const TensorInfo& tensor) {
  return array_of<Column, 2>(function, name, tensor, NumberTypes{},
                             "(rows) or (prompts, completions)");
}
/// A column of integers, such as offsets.
inline IndexColumn index_column_of(const char* function, const contract::Text& name,
                                   const TensorInfo& tensor) {
  return array_of<IndexColumn, 1>(function, name, tensor, IntegerTypes{}, "rank 1");
}

}  // namespace detail
GDPO_END_NAMESPACE
