#include "controllers.hpp"

namespace constrained {

std::vector<Controller> controllers(const gdpo::PidGains& chosen) {
  namespace pid = gdpo::pid;
  return {{"default", "gdpo's default",
           "gdpo::PidGains{}: proportional and integral, bias-corrected average, no windup. Its "
           "gains were chosen on tasks of this kind and on linear plants.",
           chosen},
          {"nupi", "nuPI, same gains",
           "pid::nupi with the default's Kp, Ki and average: the velocity form of the same rule.",
           pid::nupi(chosen.kp, chosen.ki, chosen.p_ema)},
          {"dual_ascent", "dual ascent, same Ki",
           "pid::dual_ascent with the default's Ki. An integral alone, cut at 0, is the same rule "
           "(I-only).",
           pid::dual_ascent(chosen.ki)},
          {"dual_ascent_adam", "dual ascent by Adam",
           "pid::dual_ascent_adam: what OmniSafe's Lagrange does, with its rate.",
           pid::dual_ascent_adam()},
          {"omnisafe", "OmniSafe's PID",
           "pid::omnisafe: its gains and averages as published, for costs of another scale.",
           pid::omnisafe()},
          {"safe_rlhf_log", "Safe RLHF's log",
           "pid::safe_rlhf_log: the logarithm of the multiplier moves; as published.",
           pid::safe_rlhf_log()},
          {"fixed", "multipliers fixed at 1",
           "No controller. 1 is the whole number closest to where the controllers end, which a "
           "search over whole runs would have to find.",
           pid::dual_ascent(0, 1)},
          {"feedback_alone", "feedback alone", "No constraint.", pid::dual_ascent(0)}};
}

}  // namespace constrained
