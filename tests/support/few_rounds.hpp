// Whether tests run fewer rounds in this build: under the address sanitizer, and where lines are
// counted (`cmake/dev coverage`). Both look at what a round does, not for rare numbers.
#pragma once

#if defined(__SANITIZE_ADDRESS__) || defined(GDPO_TEST_FEW_ROUNDS)
constexpr bool few_rounds = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
constexpr bool few_rounds = true;
#else
constexpr bool few_rounds = false;
#endif
#else
constexpr bool few_rounds = false;
#endif
