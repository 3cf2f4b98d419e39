// expect: a Level is level::Token, level::Sequence or level::SequenceToken
#include <gdpo/loss.hpp>

gdpo::PolicyLoss<gdpo::map::Clamp> loss;
