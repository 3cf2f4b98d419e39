#pragma once
// What the tests of losses of tensors compare exactly.
#include <ATen/ATen.h>

#include <cstdio>
#include <cstring>
#include <gdpo/loss.hpp>
#include <string>

/// Whether two tensors have the same dtype, shape and bits.
inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) return false;
  const at::Tensor x = a.contiguous(), y = b.contiguous();
  return std::memcmp(x.data_ptr(), y.data_ptr(), x.nbytes()) == 0;
}
/// All numbers of a result, exactly.
inline std::string numbers_of(const gdpo::LossResult& r) {
  std::string numbers;
  const auto put = [&](const std::string& name, double x) {
    char text[32];
    std::snprintf(text, sizeof text, " %a ", x);
    numbers += name + text;
  };
  put("loss", r.loss), put("policy_loss", r.policy_loss), put("kl_loss", r.kl_loss);
  put("tokens", r.normalizer.tokens);
  for (const auto& [key, value] : r.metrics.to_map()) put(key, value);
  return numbers;
}
