// expect: penalty::Token needs one KL term
#include <gdpo/advantages.hpp>
#include <gdpo/value.hpp>

void use(gdpo::View<const float, 1> advantages, gdpo::View<const float, 2> tokens,
         gdpo::View<float, 2> out) {
  gdpo::token_advantages_into(advantages, tokens, tokens, tokens,
                              gdpo::penalty::Token<gdpo::kl::None>{0.1}, out);
}
