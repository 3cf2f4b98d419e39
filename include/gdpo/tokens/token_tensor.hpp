#pragma once
// Arrays of tokens in tensors of other libraries.
#include <gdpo/storage/tensor_info.hpp>
#include <gdpo/tokens/token_view.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// A tensor as an array of tokens that is read as S: segments (S is an integer) are integers, and
/// log-probs and their like in float are not double.
template <class S>
TokenView<S> tokens_of(const char* function, const contract::Text& name, const TensorInfo& tensor) {
  using Types =
      std::conditional_t<std::is_same_v<S, float>, NarrowTypes,
                         std::conditional_t<std::is_same_v<S, index_t>, IntegerTypes, NumberTypes>>;
  return array_of<TokenView<S>, 3>(
      function, name, tensor, Types{},
      "(rows, tokens), (prompts, completions, tokens) or packed (tokens)");
}
/// A tensor that a call has made for its result, of elements S and rank 1, 2 or 3.
template <class S>
TokenOut<S> tokens_out(const TensorInfo& tensor) {
  if (tensor.rank == 1) return view_of<S, 1>(tensor);
  if (tensor.rank == 2) return view_of<S, 2>(tensor);
  return view_of<S, 3>(tensor);
}

}  // namespace detail
GDPO_END_NAMESPACE
