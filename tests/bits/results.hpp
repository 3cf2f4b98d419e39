#pragma once
#include <cstdint>

/// One result. kind: "any", the same bits in every build; "loss", in every build that has FMA, and in every one that has not;
/// "libm", the same where the C library is the same; "differs": a target of this build gives other bits than `seq`.
typedef void (*gdpo_bits_line)(void* to, const char* kind, const char* name, std::uint64_t hash);
/// All results of one object; whether it computes with FMA.
typedef int (*gdpo_bits_results)(gdpo_bits_line line, void* to);
