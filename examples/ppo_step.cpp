// PPO, whole, on a small task: an actor and a critic, GAE over token rewards with a KL penalty, the
// clipped policy loss and the clipped value loss, mini-batches, Adam.
//
//     ppo_step --steps 60
//
// It prints one line of JSON for each training step. An episode is one row of up to 12 words, the
// next of which the policy writes. It may ask for help: then a tool writes the right word, which is
// masked, so a row can have several turns. A row that reaches the limit is cut off, and the critic
// says what it would still be worth (`bootstrap`).
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <gdpo/gdpo.hpp>
#include <gdpo/presets/verl.hpp>
#include <string>

namespace {

using gdpo::index_t, gdpo::view;
constexpr int prompts = 6, episodes = 96, longest = 12, vocabulary = 8, width = 10;
constexpr int end = 0, ask = vocabulary - 1, answers = vocabulary - 2;  // words 1 to 6 are answers
using Matrix = Eigen::Array<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Mask = Eigen::Array<unsigned char, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Rows = std::vector<index_t>;

/// A random number in [0, 1) that depends on its place alone.
double random_at(int step, int row, int t) {
  const int place = (step * 1000 + row) * 100 + t + 1;
  auto x = static_cast<std::uint64_t>(place);
  for (int round = 0; round < 2; ++round) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    x ^= x >> 31;
  }
  return static_cast<double>(x >> 11) * 0x1p-53;
}

/// What a network sees: the prompt, the word before, and the place in the row, of which the right
/// word depends on the remainder alone.
struct State {
  int prompt, previous, place;
};

/// A network, its gradient, or the moments of Adam: the outputs are tanh(prompt + word + place)
/// times `out`. An actor has a logit for each word, a critic one output, the value of the state.
struct Network {
  Matrix prompt, word, place, out;

  explicit Network(int outputs)
      : prompt(Matrix::Zero(prompts, width)),
        word(Matrix::Zero(vocabulary, width)),
        place(Matrix::Zero(answers, width)),
        out(Matrix::Zero(width, outputs)) {}
  template <class F>
  void for_each(const F& f) {
    f(&Network::prompt), f(&Network::word), f(&Network::place), f(&Network::out);
  }
  std::vector<gdpo::update::ParameterView> views() {
    return {view(prompt), view(word), view(place), view(out)};
  }
};

Eigen::ArrayXd hidden(const Network& n, const State& s) {
  return (n.prompt.row(s.prompt) + n.word.row(s.previous) + n.place.row(s.place))
      .tanh()
      .transpose();
}
Eigen::ArrayXd outputs(const Network& n, const State& s) {
  return (n.out.matrix().transpose() * hidden(n, s).matrix()).array();
}
Eigen::ArrayXd log_probs(const Network& actor, const State& s) {
  const Eigen::ArrayXd logits = outputs(actor, s);
  return logits - logits.maxCoeff() - std::log((logits - logits.maxCoeff()).exp().sum());
}
double value_of(const Network& critic, const State& s) { return outputs(critic, s)(0); }

/// Adds the gradient by the parameters to `gradient`, from that by the outputs of one state.
void backward(const Network& n, const State& s, const Eigen::VectorXd& by_outputs,
              Network& gradient) {
  const Eigen::ArrayXd h = hidden(n, s);
  gradient.out.matrix() += h.matrix() * by_outputs.transpose();
  const Eigen::ArrayXd by_sum = (n.out.matrix() * by_outputs).array() * (1 - h.square());
  gradient.prompt.row(s.prompt) += by_sum.transpose();
  gradient.word.row(s.previous) += by_sum.transpose();
  gradient.place.row(s.place) += by_sum.transpose();
}

/// Adam (Kingma, Ba, arXiv 1412.6980) with PyTorch's defaults.
struct Adam {
  Network first, second;
  double lr;
  int steps = 0;

  Adam(int outputs, double rate) : first(outputs), second(outputs), lr(rate) {}
  void step(Network& n, Network& gradient) {
    ++steps;
    n.for_each([&](Matrix Network::*member) {
      const Matrix& g = gradient.*member;
      Matrix &m = first.*member, &v = second.*member;
      m = 0.9 * m + 0.1 * g;
      v = 0.999 * v + 0.001 * g.square();
      n.*member -= lr * (m / (1 - std::pow(0.9, steps))) /
                   ((v / (1 - std::pow(0.999, steps))).sqrt() + 1e-8);
    });
  }
};

/// The episodes of a training step: arrays of (episodes, longest), padded with 0, or of (episodes).
struct Rollouts {
  Eigen::ArrayXXi words = Eigen::ArrayXXi::Zero(episodes, longest);
  Mask mask = Mask::Zero(episodes, longest);  // 1: the policy wrote the word
  Matrix rewards = Matrix::Zero(episodes, longest), logp = rewards, ref_logp = rewards,
         values = rewards;
  Eigen::ArrayXd ended = Eigen::ArrayXd::Zero(episodes), cut_off = ended;
  Matrix advantages = rewards, returns = rewards;

  State state(index_t row, int t) const {
    return {static_cast<int>(row) % prompts, t == 0 ? int{end} : words(row, t - 1), t % answers};
  }
};

int right_word(const State& s) { return 1 + (s.prompt + s.place) % answers; }

/// Lets the actor write all rows. A right word that it knew is worth 0.1, an end after it had at
/// least four of them 1.
Rollouts sample(const Network& actor, const Network& critic, const Network& reference, int step) {
  Rollouts r;
  for (int row = 0; row < episodes; ++row) {
    int known = 0, t = 0;
    bool asked = false, over = false;
    for (; t < longest && !over; ++t) {
      const State s = r.state(row, t);
      if (asked) {  // the tool's turn
        r.words(row, t) = right_word(s);
        asked = false;
        continue;
      }
      const Eigen::ArrayXd logp = log_probs(actor, s);
      double left = random_at(step, row, t);
      int word = 0;
      while (word + 1 < vocabulary && (left -= std::exp(logp(word))) > 0) ++word;
      r.words(row, t) = word, r.mask(row, t) = 1;
      r.logp(row, t) = logp(word), r.ref_logp(row, t) = log_probs(reference, s)(word);
      r.values(row, t) = value_of(critic, s);
      if (word == right_word(s)) r.rewards(row, t) = 0.1, ++known;
      asked = word == ask, over = word == end;
    }
    if (over) {
      r.ended(row) = known >= 4 ? 1 : 0;
    } else {
      r.cut_off(row) = value_of(critic, r.state(row, longest));
    }
  }
  return r;
}

/// Advantages and returns of all tokens: GAE over rewards that have paid for their KL, whitened.
void estimate(Rollouts& r) {
  auto estimator = gdpo::verl::gae;
  estimator.returns.gamma = 0.95, estimator.returns.lambda = 0.95;
  estimator.penalty.coef = 0.01;
  gdpo::ReturnBatch<double> batch;
  batch.rewards = view(r.rewards), batch.row_rewards = view(r.ended);
  batch.values = view(r.values), batch.bootstrap = view(r.cut_off);
  batch.logp = view(r.logp), batch.ref_logp = view(r.ref_logp), batch.mask = view(r.mask);
  gdpo::ReturnsWorkspace<double> workspace;
  gdpo::advantages_and_returns_into(gdpo::simd, batch, estimator, view(r.advantages),
                                    view(r.returns), workspace);
}

/// What the optimizer steps of one training step measured.
struct Measured {
  gdpo::LossMetrics policy;
  gdpo::ValueMetrics value;
};

/// One optimizer step of actor and critic on some rows.
void update(const Rollouts& r, const Rows& rows, Network& actor, Network& critic, Adam& actor_adam,
            Adam& critic_adam, Measured& measured) {
  const auto of = [&rows](const auto& all) {
    std::decay_t<decltype(all)> some = all(rows, Eigen::all);
    return some;
  };
  const Matrix old_logp = of(r.logp), advantages = of(r.advantages), old_values = of(r.values),
               returns = of(r.returns);
  const Mask mask = of(r.mask);
  Matrix logp = Matrix::Zero(old_logp.rows(), longest), values = logp, dlogp = logp, dvalues = logp;
  const auto for_each_token = [&](const auto& f) {
    for (index_t i = 0; i < logp.rows(); ++i) {
      for (int t = 0; t < longest; ++t) {
        const index_t row = rows[static_cast<std::size_t>(i)];
        if (mask(i, t) != 0) f(i, t, r.state(row, t), r.words(row, t));
      }
    }
  };
  for_each_token([&](index_t i, int t, const State& s, int word) {
    logp(i, t) = log_probs(actor, s)(word), values(i, t) = value_of(critic, s);
  });

  gdpo::TokenBatch<double> tokens;
  tokens.logp = view(logp), tokens.old_logp = view(old_logp);
  tokens.token_advantages = view(advantages), tokens.mask = view(mask);
  gdpo::ValueBatch<double> of_critic;
  of_critic.values = view(values), of_critic.old_values = view(old_values);
  of_critic.returns = view(returns), of_critic.mask = view(mask);
  const gdpo::Normalizer n = gdpo::count(tokens);
  const gdpo::LossResult policy = gdpo::verl::vanilla_loss(tokens, n, view(dlogp));
  const gdpo::ValueLossResult value = gdpo::verl::value_loss(of_critic, n, view(dvalues));
  measured.policy = gdpo::merge(measured.policy, policy.metrics);
  measured.value = gdpo::merge(measured.value, value.metrics);

  Network by_actor(vocabulary), by_critic(1);
  for_each_token([&](index_t i, int t, const State& s, int word) {
    Eigen::VectorXd by_logits = (-dlogp(i, t) * log_probs(actor, s).exp()).matrix();
    by_logits(word) += dlogp(i, t);
    backward(actor, s, by_logits, by_actor);
    backward(critic, s, Eigen::VectorXd::Constant(1, dvalues(i, t)), by_critic);
  });
  gdpo::update::clip_grad_norm(by_actor.views(), 1.0);
  gdpo::update::clip_grad_norm(by_critic.views(), 1.0);
  actor_adam.step(actor, by_actor);
  critic_adam.step(critic, by_critic);
}

void train(int steps) {
  Network actor(vocabulary), critic(1);
  for (Network* n : {&actor, &critic}) {
    n->for_each([&](Matrix Network::*member) {
      Matrix& m = n->*member;
      for (index_t i = 0; i < m.size(); ++i)
        m.data()[i] = random_at(9, static_cast<int>(m.cols()), static_cast<int>(i)) - 0.5;
    });
  }
  const Network reference = actor;
  Adam actor_adam(vocabulary, 0.02), critic_adam(1, 0.05);
  for (int step = 1; step <= steps; ++step) {
    Rollouts r = sample(actor, critic, reference, step);
    estimate(r);
    gdpo::update::PlanSettings cut;  // two passes over the episodes, three mini-batches each
    cut.epochs = 2, cut.mini_batches = 3, cut.micro_batch = episodes / 3;
    cut.shuffle = gdpo::update::Shuffle::EveryEpoch, cut.seed = static_cast<std::uint64_t>(step);
    const gdpo::update::Plan plan = gdpo::update::plan(episodes, cut);
    Measured measured;
    for (index_t s = 0; s < plan.steps(); ++s) {
      const auto rows = plan.rows(s, 0, 0);
      update(r, Rows(rows.data, rows.data + rows.extent[0]), actor, critic, actor_adam, critic_adam,
             measured);
    }
    std::printf("{\"step\": %d, \"score\": %.3f, \"pg_clipfrac\": %.3f", step,
                (r.rewards.sum() + r.ended.sum()) / episodes, measured.policy.clip_fraction.mean());
    for (const auto& [key, number] : measured.value.to_map())
      std::printf(", \"%s\": %.3f", key.c_str(), number);
    std::printf("}\n");
  }
}

}  // namespace

int main(int argc, char** argv) {
  const bool given = argc == 3 && std::string(argv[1]) == "--steps";
  const int steps = given ? std::atoi(argv[2]) : 60;
  if ((argc != 1 && !given) || steps < 1) {
    std::fprintf(stderr, "usage: ppo_step [--steps N], N at least 1\n");
    return 2;
  }
  train(steps);
  return 0;
}
