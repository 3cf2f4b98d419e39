// Every pre-pass on a device, through the front doors. Compiled wherever nvcc is found, but never
// run: the tests with label gpu check the results.
#include <gdpo/cuda.hpp>
#include <gdpo/prepass.hpp>

namespace all_prepasses {

using namespace gdpo;

template <class S>
TokenBatch<S> each(const cuda::On& on, const TokenBatch<S>& batch, cuda::PrepassMemory& memory,
                   const Column& column) {
  return prepare(on, batch, memory, prepass::MaskedImportance{}, prepass::MeanOne{},
                 prepass::Overlong{column}, prepass::DegenerateGroups{column},
                 prepass::TopEntropy{}, prepass::SecondMoment{}, prepass::Covariance{},
                 prepass::FutureKl{}, prepass::TeacherRatio{}, prepass::TeacherPrefix{},
                 prepass::EntropyClip{});
}
void all(const cuda::On& on, cuda::PrepassMemory& memory, const Column& column,
         TokenBatch<float>& batch, TokenBatch<double>& wide) {
  batch = each(on, batch, memory, column);
  wide = each(on, wide, memory, column);
}

}  // namespace all_prepasses
