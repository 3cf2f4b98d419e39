// Whether this build has the address sanitizer. Tests then run fewer rounds: a sanitizer looks at
// what a round does, not for rare numbers.
#pragma once

#if defined(__SANITIZE_ADDRESS__)
constexpr bool sanitized = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
constexpr bool sanitized = true;
#else
constexpr bool sanitized = false;
#endif
#else
constexpr bool sanitized = false;
#endif
