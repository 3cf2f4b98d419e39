// expect: a token array of double needs a gdpo::TokenBatch<double>
#include <gdpo/loss.hpp>

void use(gdpo::TokenBatch<float>& batch, const double* logp) {
  batch.logp = gdpo::view(logp, 2, 3);
}
