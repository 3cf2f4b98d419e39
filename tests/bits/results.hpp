#pragma once
#include <cstdint>

/// Receives one result. Its kind says where the bits must be the same:
/// - "any": in every build;
/// - "loss": in every build with FMA, and in every build without;
/// - "libm": where also the C library is the same;
/// - "differs": nowhere; a target of this build gives other bits than `seq`.
typedef void (*gdpo_bits_line)(void* to, const char* kind, const char* name, std::uint64_t hash);
/// Writes all results of one object. Returns whether the object computes with FMA.
typedef int (*gdpo_bits_results)(gdpo_bits_line line, void* to);
