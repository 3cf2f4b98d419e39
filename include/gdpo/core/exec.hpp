#pragma once

namespace gdpo {  // execution tags: the first argument of every long form

/// One thread, a fixed order of summation. The reference that every other target is compared with.
struct Seq {};
inline constexpr Seq seq{};

}  // namespace gdpo
