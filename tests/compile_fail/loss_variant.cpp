// expect: Of a gdpo::runtime::Loss it is what std::visit gives
#include <gdpo/runtime.hpp>

void use(const gdpo::TokenBatch<float>& batch, gdpo::LossWorkspace<float>& workspace) {
  gdpo::evaluate(gdpo::simd, gdpo::runtime::loss("grpo"), batch, gdpo::count(batch), {}, workspace);
}
