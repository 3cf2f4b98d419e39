// expect: a pre-pass needs: reach, template <class S> void operator()(const gdpo::PrepassArgs<S>&) const
#include <gdpo/prepass.hpp>

struct TwoParameters {
  gdpo::Reach reach = gdpo::Reach::Surrogate;
  template <class S>
  void operator()(const gdpo::PrepassRows<S>&, double*) const {}
};
void use(const gdpo::TokenBatch<float>& batch, gdpo::PrepassMemory<float>& memory) {
  gdpo::prepare(batch, memory, TwoParameters{});
}
