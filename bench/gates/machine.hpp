#pragma once
// What a gate needs from the machine and from the build, and the reasons to give where it is
// missing.
#include <string>
#include <thread>

namespace gates {

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
constexpr bool has_avx512 = true;
#else
constexpr bool has_avx512 = false;
#endif
inline const std::string no_avx512 = "this build has no AVX-512";
inline const std::string no_torch = "LibTorch not found when this was built";
inline const std::string one_processor = "this machine has one processor";
inline bool two_processors() { return std::thread::hardware_concurrency() >= 2; }

}  // namespace gates
