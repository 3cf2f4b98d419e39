// labels: sanitizers
// What ranks say to each other: all go on or all throw the same error, records are added in the
// order of the ranks, and gathered rows are those of all ranks.
#include <gdpo/constraint.hpp>
#include <gdpo/dist.hpp>
#include <gdpo/loss.hpp>
#include <gdpo/loss/any_surrogate.hpp>
#include <gdpo/prepass.hpp>
#include <gdpo/runtime.hpp>
#include <gdpo/value.hpp>

#include "support/catch.hpp"
#include "support/generators.hpp"
#include "support/message.hpp"
#include "support/thread_ranks.hpp"
#include "support/tolerance.hpp"

namespace communicator_test {

namespace {

namespace dist = gdpo::dist;
using test::on_ranks;
using test::ThreadRank;

/// A communicator whose other ranks send what this one sends, after `change(rank, bytes)` has
/// altered it.
template <class Change>
struct Mirror {
  int ranks;
  Change change;
  int rank() const { return 0; }
  int size() const { return ranks; }
  void all_gather(const void* send, std::size_t bytes, void* receive) const {
    auto* to = static_cast<unsigned char*>(receive);
    for (int r = 0; r < ranks; ++r, to += bytes) {
      std::memcpy(to, send, bytes);
      change(r, to, bytes);
    }
  }
};
template <class Change>
Mirror<Change> mirror(int ranks, const Change& change) {
  return {ranks, change};
}

static_assert(!std::is_copy_constructible_v<dist::GatheredTokens<float>>);
static_assert(!std::is_copy_constructible_v<dist::GatheredRows<float, gdpo::ById>>);
static_assert(std::is_move_constructible_v<dist::GatheredTokens<float>>);
static_assert(std::is_move_constructible_v<dist::GatheredRows<float, gdpo::ById>>);

/// What all ranks have thrown, if that is the same; else a complaint.
std::string same_on_all(const std::vector<std::string>& thrown) {
  for (const std::string& what : thrown) {
    if (what != thrown[0]) return "different: \"" + thrown[0] + "\" and \"" + what + "\"";
  }
  return thrown[0];
}

/// The number x_r of rank r as Moments of a single value.
gdpo::Moments moments_of_value(double x) {
  gdpo::Moments m;
  m.n = 1, m.weight = 1, m.mean = m.min = m.max = x;
  return m;
}

}  // namespace

TEST_CASE("a rank that refuses its input makes all ranks throw its message", "[dist]") {
  for (const int ranks : {1, 2, 5}) {
    const int bad = ranks - 1;
    // A single rank needs no name.
    const std::string name =
        ranks == 1 ? "" : "rank " + std::to_string(bad) + " of " + std::to_string(ranks) + ": ";
    CHECK(same_on_all(on_ranks(
              ranks,
              [&](const ThreadRank& comm) {
                dist::agree(comm, [&] { gdpo::groups_of(comm.rank() == bad ? 0 : 4); });
              })) == "gdpo::dist::agree: " + name +
                         "gdpo::groups_of: K: given 0; needed: a group size of at least 1");
    // Another exception than invalid_input stays another one.
    CHECK(same_on_all(on_ranks(ranks, [&](const ThreadRank& comm) {
            dist::agree(comm, [&] {
              if (comm.rank() == bad) throw std::runtime_error("no memory");
            });
          })) == "exception: gdpo::dist::agree: " + name + "no memory");
    CHECK(
        same_on_all(on_ranks(ranks, [&](const ThreadRank& comm) {
          dist::agree(comm, [&] {
            if (comm.rank() == bad) throw 7;
          });
        })) == "exception: gdpo::dist::agree: " + name + "an exception that is no std::exception");
  }
}

TEST_CASE("after a refusal the ranks are in step again", "[dist]") {
  std::vector<double> tokens(4);
  const auto thrown = on_ranks(4, [&](const ThreadRank& comm) {
    for (int round = 0; round < 3; ++round) {
      try {
        dist::agree(comm, [&] { gdpo::groups_of(comm.rank() % 2 == 1 ? 0 : 4); });
      } catch (const gdpo::invalid_input& e) {
        if (std::string(e.what()).find("rank 1 of 4") == std::string::npos ||
            std::string(e.what()).find("; so did 1 other rank") == std::string::npos)
          throw;
      }
      gdpo::Normalizer n;
      n.tokens = comm.rank();
      tokens[static_cast<std::size_t>(comm.rank())] += dist::all_merge(comm, n).tokens;
    }
  });
  CHECK(same_on_all(thrown) == "");
  CHECK(tokens == std::vector<double>{18, 18, 18, 18});
}

TEST_CASE("agree returns what the work of the rank returns", "[dist]") {
  std::vector<int> got(3);
  CHECK(same_on_all(on_ranks(3, [&](const ThreadRank& comm) {
          got[static_cast<std::size_t>(comm.rank())] =
              dist::agree(comm, [&] { return 10 * comm.rank(); });
        })) == "");
  CHECK(got == std::vector<int>{0, 10, 20});
}

TEST_CASE("a rank that has left is no mistake of the others", "[dist]") {
  const auto thrown = on_ranks(3, [&](const ThreadRank& comm) {
    if (comm.rank() == 1) return;
    dist::agree(comm, [] {});
  });
  CHECK(thrown == std::vector<std::string>{"communication_error: a rank has left", "",
                                           "communication_error: a rank has left"});
  // One inside the work of agree() goes straight through: the others cannot be told.
  CHECK_THROWS_AS(dist::agree(dist::Single{}, [] { dist::fail_communication("dead"); }),
                  gdpo::communication_error);
}

TEST_CASE("ranks with different settings are told where they differ", "[dist]") {
  auto loss = gdpo::grpo_loss;
  gdpo::Gdpo estimator;
  const auto differ = [&](const auto& of_rank) {
    return same_on_all(
        on_ranks(3, [&](const ThreadRank& comm) { of_rank(comm, comm.rank() == 2); }));
  };
  CHECK(differ([&](const ThreadRank& comm, bool) {
          dist::agree_on(comm, loss, estimator, 0.5, "a");
        }) == "");
  CHECK(differ([&](const ThreadRank& comm, bool other) {
          auto own = loss;
          if (other) own.surrogate.high = 0.28125;
          dist::agree_on(comm, own, estimator);
        }) ==
        "gdpo::dist::agree_on: settings: given ... high=0.20000000000000001, delta=inf, dual=inf}, "
        "kl={beta=... on rank 0 and ... high=0.28125, delta=inf, dual=inf}, "
        "kl={beta=0.0400000000... on rank 2; needed: the same settings on all ranks");
  // Two losses by name of one type: the formula that is chosen, and its settings.
  CHECK(differ([&](const ThreadRank& comm, bool other) {
          gdpo::runtime::Loss own = gdpo::runtime::configured_loss("cispo");
          if (other) own = gdpo::runtime::configured_loss("cispo max_ratio=4");
          dist::agree_on(comm, own);
        }).find("on rank 2; needed: the same settings on all ranks") != std::string::npos);
  using Any = gdpo::runtime::AnyLossAt<gdpo::level::Token<>>;
  CHECK(differ([&](const ThreadRank& comm, bool other) {
          Any own;
          if (other) own.surrogate = gdpo::surrogate::Reinforce{};
          dist::agree_on(comm, own);
        }).find("on rank 2; needed: the same settings on all ranks") != std::string::npos);
  CHECK(
      differ([&](const ThreadRank& comm, bool other) {
        auto own = estimator;
        if (other) own.weights = {1, 0.5};
        dist::agree_on(comm, own);
      })
          .find("given ... weights={}, gates={}, reward_clip={lo=-inf, hi=inf}, clip... on rank 0 "
                "and ... weights={1, 0.5}, gates={}, reward_clip={lo=-inf, hi=inf}... on rank 2") !=
      std::string::npos);
  // Another type of estimator, and another number of arguments.
  CHECK(differ([&](const ThreadRank& comm, bool other) {
          if (other) return dist::agree_on(comm, gdpo::Grpo{});
          dist::agree_on(comm, estimator);
        }).find("combine::SumThenNormalize") != std::string::npos);
  CHECK(differ([&](const ThreadRank& comm, bool other) {
          if (other) return dist::agree_on(comm, 1, 2);
          dist::agree_on(comm, 1);
        }) ==
        "gdpo::dist::agree_on: settings: given 1 on rank 0 and 1, 2 on rank 2; needed: the "
        "same settings on all ranks");
}

TEST_CASE("settings in very long words", "[dist]") {
  const std::string same(5000, 'x');
  CHECK(same_on_all(on_ranks(2,
                             [&](const ThreadRank& comm) {
                               dist::agree_on(comm, same + (comm.rank() == 0 ? "a" : "b"));
                             })) ==
        "gdpo::dist::agree_on: settings: given words that go on on rank 0 and others, after the "
        "first 4096 on rank 1; needed: the same settings on all ranks");
  CHECK(same_on_all(on_ranks(2, [&](const ThreadRank& comm) { dist::agree_on(comm, same); })) ==
        "");
}

// A surrogate with the settings of Reinforce, which has none.
struct Halved : gdpo::surrogate::Reinforce {};

TEST_CASE("every setting of an estimator and a loss reaches the comparison", "[dist]") {
  using gdpo::detail::description;
  const gdpo::Gdpo e;
  const auto changed = [&](const auto& change) {
    gdpo::Gdpo other;
    change(other);
    return description(other) != description(e);
  };
  CHECK(changed([](auto& x) { x.scale.ddof = 0; }));
  CHECK(changed([](auto& x) { x.scale.eps = 1e-6; }));
  CHECK(changed([](auto& x) { x.renorm.over = gdpo::RenormOver::Group; }));
  CHECK(changed([](auto& x) { x.renorm.eps_at = gdpo::EpsAt::Var; }));
  CHECK(changed([](auto& x) { x.renorm.keep_mean = true; }));
  CHECK(changed([](auto& x) { x.missing.row = gdpo::MissingRow::Exclude; }) ==
        (e.missing.row != gdpo::MissingRow::Exclude));
  CHECK(changed([](auto& x) { x.missing.infinite = gdpo::InfiniteEntry::Missing; }));
  CHECK(changed([](auto& x) { x.missing.unused = gdpo::UnusedRow::Exclude; }));
  CHECK(changed([](auto& x) { x.singleton = gdpo::Singleton::Raw; }));
  CHECK(changed([](auto& x) { x.penalty.coef = 0.5; }));
  CHECK(changed([](auto& x) { x.weights = {1}; }));
  CHECK(changed([](auto& x) { x.gates = {{0, 1, 0.5}}; }));
  CHECK_FALSE(changed([](auto&) {}));
  // Each field by itself.
  const auto every = [](auto x) {
    const std::string before = description(x);
    int fields = 0;
    gdpo::detail::walk_fields(x, {}, [&](const auto& path, auto& member, const auto&) {
      using Member = std::decay_t<decltype(member)>;
      if constexpr (std::is_enum_v<Member> || std::is_arithmetic_v<Member>) {
        INFO(path.text());
        const Member kept = member;
        member = member == static_cast<Member>(1) ? static_cast<Member>(0) : static_cast<Member>(1);
        CHECK(description(x) != before);
        member = kept;
        ++fields;
      }
    });
    CHECK(description(x) == before);
    return fields;
  };
  CHECK(every(e) == 21);
  CHECK(every(gdpo::OutcomeAdvantage<gdpo::Gdpo>{}) == 34);
  CHECK(every(gdpo::gspo_loss) > 16);
  CHECK(every(gdpo::PidGains{}) == 16);
  CHECK(every(gdpo::TokenAdvantage<>{}) == 15);
  // Types count too, also where their settings are the same.
  CHECK(description(gdpo::scale::Mad{}) != description(gdpo::scale::Iqr{}));
  using Any = gdpo::AnySurrogate<gdpo::surrogate::Ratio, gdpo::surrogate::Reinforce, Halved>;
  CHECK(description(Any(gdpo::surrogate::Reinforce{})) != description(Any(Halved{})));
  CHECK(description(Any(Halved{})) == description(Any(Halved{})));
  // The name of the instruction set is left out: ranks may have different processors.
  CHECK(description(e).find("lanes") == std::string::npos);
  CHECK(description(std::vector<double>{1, -0.5}) == "{1, -0.5}");
  CHECK(description(std::string("x")) == "\"x\"");
  CHECK(description(gdpo::Singleton::Zero) == "zero");
  CHECK(description(static_cast<gdpo::Singleton>(9)) == "9");
}

TEST_CASE("ranks that make different calls are told so", "[dist]") {
  CHECK(same_on_all(on_ranks(3,
                             [&](const ThreadRank& comm) {
                               if (comm.rank() == 1)
                                 dist::all_merge(comm, gdpo::Normalizer{});
                               else
                                 dist::agree_on(comm, 1);
                             })) ==
        "gdpo::dist: calls: given agree_on on rank 0 and all_merge on rank 1; needed: the same "
        "calls in the same order on all ranks");
}

TEST_CASE("ranks of another protocol, version or byte order are told so", "[dist]") {
  const auto with = [](std::size_t at, unsigned char value) {
    return message_of([&] {
      dist::agree(mirror(4,
                         [&](int rank, unsigned char* bytes, std::size_t) {
                           if (rank == 3) bytes[at] = value;
                         }),
                  [] {});
    });
  };
  CHECK(with(4, 2) ==
        "gdpo::dist: gdpo: given protocol 1 of version 0.1.0 on rank 0 and "
        "protocol 2 of version 0.1.0 on rank 3; needed: one version of gdpo on all "
        "ranks");
  CHECK(with(9, 0).find("version 0.0.232 on rank 3") != std::string::npos);
  CHECK(with(0, 'x') ==
        "gdpo::dist: ranks: given other bytes from rank 3 than gdpo sends; "
        "needed: the same calls of gdpo, in the same order, on ranks of one byte "
        "order");
}

TEST_CASE("a communicator without ranks is refused", "[dist]") {
  struct Wrong {
    int own, all;
    int rank() const { return own; }
    int size() const { return all; }
    void all_gather(const void*, std::size_t, void*) const {}
  };
  const char* needed =
      "; needed: a communicator of at least one rank, with a rank from 0 to size() - 1";
  CHECK(message_of([] {
          dist::agree(Wrong{0, 0}, [] {});
        }) == std::string("gdpo::dist::agree: comm: given rank 0 of 0") + needed);
  CHECK(message_of([] {
          dist::agree(Wrong{2, 2}, [] {});
        }) == std::string("gdpo::dist::agree: comm: given rank 2 of 2") + needed);
}

TEST_CASE("a status word is 64 bytes, and a record is sent once", "[dist]") {
  const auto bytes_of = [](const auto& call) {
    std::size_t bytes = 0;
    CHECK(same_on_all(on_ranks(2, call, &bytes)) == "");
    return bytes;
  };
  CHECK(bytes_of([](const ThreadRank& c) { dist::agree(c, [] {}); }) == 64);
  CHECK(bytes_of([](const ThreadRank& c) { dist::all_merge(c, gdpo::Moments{}); }) ==
        64 + sizeof(gdpo::Moments));
  CHECK(bytes_of([](const ThreadRank& c) { dist::all_merge(c, gdpo::LossMetrics{}); }) ==
        64 + sizeof(gdpo::LossMetrics));
}

TEST_CASE("records are added in the order of the ranks, above 256 in blocks", "[dist]") {
  // Rank r holds 1 / (r + 3): the order of additions shows in the last bits.
  for (const int ranks : {1, 2, 7, 256, 257, 300, 700}) {
    const auto value = [](int r) { return 1.0 / (r + 3); };
    const auto comm = mirror(ranks, [&](int rank, unsigned char* bytes, std::size_t n) {
      if (n != sizeof(gdpo::SumCount)) return;
      const gdpo::SumCount x{value(rank), 1};
      std::memcpy(bytes, &x, n);
    });
    const gdpo::SumCount sum = dist::all_merge(comm, gdpo::SumCount{value(0), 1});
    double expected = 0;
    for (int first = 0; first < ranks; first += 256) {
      double block = value(first);
      for (int r = first + 1; r < (std::min)(first + 256, ranks); ++r) block += value(r);
      expected = first == 0 ? block : expected + block;
    }
    CHECK(same_bits(sum.sum, expected));
    CHECK(sum.count == ranks);
  }
}

TEST_CASE("every rank ends with the same bits of every record", "[dist]") {
  Random random(5);
  const int ranks = 5;
  std::vector<gdpo::Moments> of_rank;
  for (int r = 0; r < ranks; ++r) of_rank.push_back(moments_of_value(random.uniform()));
  std::vector<gdpo::Moments> got(static_cast<std::size_t>(ranks));
  std::vector<std::vector<gdpo::ConstraintMetrics>> constraints(static_cast<std::size_t>(ranks));
  CHECK(same_on_all(on_ranks(ranks, [&](const ThreadRank& comm) {
          const auto r = static_cast<std::size_t>(comm.rank());
          got[r] = dist::all_merge(comm, of_rank[r]);
          gdpo::ConstraintMetrics one;
          one.count = 1, one.sum = static_cast<double>(r), one.largest = static_cast<double>(r);
          constraints[r] = dist::all_merge(comm, std::vector<gdpo::ConstraintMetrics>{one, {}});
        })) == "");
  gdpo::Moments expected = of_rank[0];
  for (std::size_t r = 1; r < of_rank.size(); ++r) expected = merge(expected, of_rank[r]);
  for (std::size_t r = 0; r < got.size(); ++r) {
    CHECK(std::memcmp(&got[r], &expected, sizeof expected) == 0);
    REQUIRE(constraints[r].size() == 2);
    CHECK(constraints[r][0].sum == 10);
    CHECK(constraints[r][0].largest == 4);
    CHECK(constraints[r][1].count == 0);
  }
}

TEST_CASE("lists of different lengths, and records of different types, are refused", "[dist]") {
  CHECK(same_on_all(on_ranks(2, [&](const ThreadRank& comm) {
          dist::all_merge(comm, std::vector<gdpo::SumCount>(comm.rank() == 0 ? 2 : 3));
        })).find("2 of them on rank 0 and ... 3 of them on rank 1") != std::string::npos);
  CHECK(same_on_all(on_ranks(2, [&](const ThreadRank& comm) {
          if (comm.rank() == 0)
            dist::all_merge(comm, gdpo::Moments{});
          else
            dist::all_merge(comm, gdpo::Normalizer{});
        })).find("given Moments on rank 0 and Normalizer on rank 1") != std::string::npos);
}

TEST_CASE("a loss that was divided by a local count is found out", "[dist]") {
  const auto of_rank = [](int rank, bool local) {
    gdpo::LossResult r;
    r.loss = r.policy_loss = 0.5;
    r.metrics.rows = 4;
    r.normalizer.tokens = local ? 100 + rank : 301, r.normalizer.rows = local ? 4 : 12;
    if (rank == 1) r = gdpo::LossResult{};  // a rank without rows has no counts
    return r;
  };
  CHECK(
      same_on_all(on_ranks(
          3, [&](const ThreadRank& comm) { dist::all_merge(comm, of_rank(comm.rank(), true)); })) ==
      "gdpo::dist::all_merge: normalizer: given 100 tokens, 4 rows, 0 non-empty rows, 0 given on "
      "rank 0 and 102 tokens, 4 rows, 0 non-empty rows, 0 given on rank 2; needed: losses that "
      "were divided by the counts of the whole step: all_merge(comm, count)");
  std::vector<gdpo::LossResult> got(3);
  CHECK(same_on_all(on_ranks(3, [&](const ThreadRank& comm) {
          got[static_cast<std::size_t>(comm.rank())] =
              dist::all_merge(comm, of_rank(comm.rank(), false));
        })) == "");
  for (const gdpo::LossResult& r : got) {
    CHECK(r.loss == 1);
    CHECK(r.metrics.rows == 8);
    CHECK(r.normalizer.tokens == 301);
  }
}

TEST_CASE("distillation losses of ranks add up, and a local count is found out", "[dist]") {
  const auto of_rank = [](int rank, double tokens) {
    gdpo::DistillationResult r;
    r.loss = 0.5, r.metrics.rows = 4, r.metrics.empty_rows = rank;
    r.metrics.loss.sum = 2, r.metrics.loss.count = 10, r.metrics.loss.max = rank;
    if (rank == 2) r.metrics.losses = {3, 1, 7};
    r.normalizer.tokens = tokens, r.normalizer.rows = 12;
    return r;
  };
  std::vector<gdpo::DistillationResult> got(3);
  CHECK(same_on_all(on_ranks(3, [&](const ThreadRank& comm) {
          got[static_cast<std::size_t>(comm.rank())] =
              dist::all_merge(comm, of_rank(comm.rank(), 30));
        })) == "");
  for (const gdpo::DistillationResult& r : got) {
    CHECK(r.loss == 1.5);
    CHECK(r.metrics.rows == 12);
    CHECK(r.metrics.empty_rows == 3);
    CHECK(r.metrics.loss.mean() == 0.2);
    CHECK(r.metrics.losses.token == 7);
  }
  CHECK(same_on_all(on_ranks(2,
                             [&](const ThreadRank& comm) {
                               dist::all_merge(comm, of_rank(comm.rank(), 20 + comm.rank()));
                             }))
            .find("normalizer: given 20 tokens, 12 rows, 0 non-empty rows, 0 given on rank 0") !=
        std::string::npos);
}

TEST_CASE("value losses of ranks add up, and a local count is found out", "[dist]") {
  const auto of_rank = [](int rank, double tokens) {
    gdpo::ValueLossResult r;
    r.loss = 0.5, r.metrics.rows = 4, r.metrics.empty_rows = rank;
    r.metrics.loss.sum = 2, r.metrics.loss.count = 10, r.metrics.loss.max = rank;
    r.metrics.returns.n = 10, r.metrics.returns.weight = 10, r.metrics.returns.mean = rank;
    r.metrics.returns.min = r.metrics.returns.max = rank;
    if (rank == 2) r.metrics.non_finite.returns = {3, 1, 7};
    r.normalizer.tokens = tokens, r.normalizer.rows = 12;
    return r;
  };
  std::vector<gdpo::ValueLossResult> got(3);
  CHECK(same_on_all(on_ranks(3, [&](const ThreadRank& comm) {
          got[static_cast<std::size_t>(comm.rank())] =
              dist::all_merge(comm, of_rank(comm.rank(), 30));
        })) == "");
  for (const gdpo::ValueLossResult& r : got) {
    CHECK(r.loss == 1.5);
    CHECK(r.normalizer.tokens == 30);
    CHECK(r.metrics.rows == 12);
    CHECK(r.metrics.empty_rows == 3);
    CHECK(r.metrics.loss.mean() == 0.2);
    CHECK(r.metrics.loss.max == 2);
    CHECK(r.metrics.returns.n == 30);
    CHECK(r.metrics.returns.mean == 1);
    CHECK(r.metrics.non_finite.returns.count == 3);
    CHECK(r.metrics.non_finite.returns.token == 7);
  }
  CHECK(same_on_all(on_ranks(2,
                             [&](const ThreadRank& comm) {
                               dist::all_merge(comm, of_rank(comm.rank(), 20 + comm.rank()));
                             }))
            .find("normalizer: given 20 tokens, 12 rows, 0 non-empty rows, 0 given on rank 0") !=
        std::string::npos);
  CHECK(same_on_all(on_ranks(3, [&](const ThreadRank& comm) {
          CHECK(dist::all_merge(comm, of_rank(comm.rank(), 30).metrics).rows == 12);
        })) == "");
}

TEST_CASE("so are losses that were divided by equal local counts, also in a list", "[dist]") {
  gdpo::LossResult r;
  r.metrics.rows = 4, r.normalizer.tokens = 40, r.normalizer.rows = 4;
  CHECK(same_on_all(on_ranks(2, [&](const ThreadRank& comm) { dist::all_merge(comm, r); })) ==
        "gdpo::dist::all_merge: normalizer: given 4 rows, for losses of 8 rows on all ranks; "
        "needed: losses that were divided by the counts of the whole step: all_merge(comm, count)");
  CHECK(same_on_all(on_ranks(2, [&](const ThreadRank& comm) {
          dist::all_merge(comm, std::vector<gdpo::LossResult>{{}, r});
        })).find("for losses of 8 rows") != std::string::npos);
}

TEST_CASE("losses hold no more rows and tokens than were counted", "[dist]") {
  // Two ranks of 3 and of `rows` - 3 rows, 10 tokens each.
  const auto message = [](gdpo::index_t rows, double counted, double tokens, gdpo::Over over) {
    return same_on_all(on_ranks(2, [&](const ThreadRank& comm) {
      gdpo::LossResult r;
      r.metrics.rows = comm.rank() == 0 ? 3 : rows - 3, r.metrics.advantage.n = 10;
      r.normalizer = {tokens, counted, counted, 7}, r.over = static_cast<gdpo::index_t>(over);
      dist::all_merge(comm, r);
    }));
  };
  const std::string needed =
      "; needed: losses that were divided by the counts of the whole step: all_merge(comm, count)";
  CHECK(message(4, 4, 20, gdpo::Over::Rows) == "");
  CHECK(message(5, 4, 20, gdpo::Over::Rows) ==
        "gdpo::dist::all_merge: normalizer: given 4 rows, for losses of 5 rows on all ranks" +
            needed);
  CHECK(message(4, 4, 19, gdpo::Over::Tokens) ==
        "gdpo::dist::all_merge: normalizer: given 19 tokens, for losses of 20 tokens on all ranks" +
            needed);
  // Tokens that do not divide may be counted in any way, and so may a number of the caller's own.
  CHECK(message(4, 4, 19, gdpo::Over::Rows) == "");
  CHECK(message(4, 4, 19, gdpo::Over::Given) == "");
}

TEST_CASE("what the work of all_merge throws all ranks throw", "[dist]") {
  std::vector<float> logp(4);
  std::vector<unsigned char> mask(4);
  CHECK(same_on_all(on_ranks(2, [&](const ThreadRank& comm) {
          gdpo::TokenBatch<float> batch;
          batch.logp = gdpo::view(logp.data(), 2, 2);
          batch.mask = gdpo::view(mask.data(), comm.rank() == 1 ? 1 : 2, 2);
          dist::all_merge(comm, [&] { return gdpo::count(batch); });
        })).find("gdpo::dist::all_merge: rank 1 of 2: gdpo::count: batch.mask: given (1, 2)") == 0);
  // The counts of all ranks are those of no batch, with one rank as with two.
  gdpo::Normalizer n;
  n.counted.mask_changes = 3;
  CHECK(dist::all_merge(dist::Single{}, n).counted.mask_changes == -1);
}

TEST_CASE("a call within the work of a call is refused, and the ranks stay in step", "[dist]") {
  std::vector<double> sums(3);
  CHECK(same_on_all(on_ranks(3, [&](const ThreadRank& comm) {
          const std::string what = message_of([&] {
            dist::agree(comm, [&] {
              if (comm.rank() == 1) gdpo::groups_of(0);
              return dist::all_merge(comm, 1.0);
            });
          });
          if (what.find("rank 0 of 3: gdpo::dist::all_merge: call: given one within the work") ==
              std::string::npos)
            throw std::runtime_error(what);
          sums[static_cast<std::size_t>(comm.rank())] = dist::all_merge(comm, 1.0);
        })) == "");
  CHECK(sums == std::vector<double>{3, 3, 3});
}

TEST_CASE("a failure is told before ranks that make other calls because of it", "[dist]") {
  CHECK(same_on_all(on_ranks(2, [&](const ThreadRank& comm) {
          if (comm.rank() == 1) dist::agree(comm, [] { gdpo::groups_of(0); });
          if (comm.rank() == 0) dist::all_merge(comm, 1.0);
        })).find("gdpo::dist::agree: rank 1 of 2: gdpo::groups_of: K: given 0") == 0);
}

TEST_CASE("a report of all ranks is the merge of their reports", "[dist]") {
  const std::vector<double> rewards{1, 0, 0, 1, 1, 1, 0, 0, 0.5, NAN, 1, 1};
  const auto report_of = [&](int rank, int rows) {
    gdpo::GroupReport report;
    if (rows > 0) {
      gdpo::advantages(gdpo::view(rewards.data() + 4 * rank, rows, 2), gdpo::groups_of(2),
                       gdpo::Gdpo{}, &report);
    }
    return report;
  };
  std::vector<std::map<std::string, double>> maps(4);
  std::vector<gdpo::GroupReport> got(4);
  CHECK(same_on_all(on_ranks(4, [&](const ThreadRank& comm) {
          const int rank = comm.rank();
          const gdpo::GroupReport r = dist::all_merge(comm, report_of(rank, rank == 3 ? 0 : 2));
          got[static_cast<std::size_t>(rank)] = r;
          maps[static_cast<std::size_t>(rank)] = r.to_map();
        })) == "");
  gdpo::GroupReport expected = report_of(0, 2);
  for (const int r : {1, 2}) expected = merge(expected, report_of(r, 2));
  for (std::size_t r = 0; r < 4; ++r) {
    CHECK(maps[r] == expected.to_map());
    CHECK(got[r].rows == 6);
    CHECK(got[r].groups == 3);
    CHECK(got[r].degenerate == expected.degenerate);
    CHECK(got[r].reward_degenerate == expected.reward_degenerate);
    CHECK(got[r].excluded_rewards == 1);
    CHECK(got[r].rewards[1].n == 5);
    CHECK(got[r].one_group == false);
    CHECK(same_bits(got[r].correlation(0, 1), expected.correlation(0, 1)));
    CHECK(same_bits(got[r].rewards[0].explained, expected.rewards[0].explained));
    CHECK(got[r].within_squares > 0);
  }
}

// ---- rows ----

TEST_CASE("gathered rows stand in the order of group and key, and know their rank", "[dist]") {
  // Prompt 7 has its completions on both ranks.
  const std::vector<float> rewards[2] = {{1, 2, 3}, {4, 5}};
  const std::vector<int> ids[2] = {{7, 9, 7}, {7, 3}}, keys[2] = {{12, 5, 10}, {11, 1}};
  const std::vector<double> tokens[2] = {{10, 20, 30}, {40, 50}};
  CHECK(same_on_all(on_ranks(2, [&](const ThreadRank& comm) {
          const auto r = static_cast<std::size_t>(comm.rank());
          gdpo::RewardBatch batch{
              gdpo::view(rewards[r].data(), static_cast<int>(rewards[r].size()), 1),
              gdpo::by_id(ids[r])};
          batch.tokens = gdpo::view(tokens[r]);
          const auto all = dist::gather_rows(comm, batch, gdpo::view(keys[r]));
          const auto whole = all.batch();
          const std::vector<float> expected{5, 3, 4, 1, 2};
          const std::vector<double> lengths{50, 30, 40, 10, 20};
          bool good = all.rows() == 5 && whole.groups.count(5) == 3 && all.split_groups() == 1 &&
                      all.split() == std::vector<unsigned char>{0, 1, 0} &&
                      all.rank_of() == std::vector<int>{1, 0, 1, 0, 0} &&
                      all.incomplete_groups(3) == std::vector<gdpo::index_t>{0, 2} &&
                      !whole.valid && whole.groups.ids()(1) == 7;
          for (int i = 0; i < 5; ++i) {
            good = good && whole.rewards(i, 0) == expected[static_cast<std::size_t>(i)] &&
                   whole.tokens(i) == lengths[static_cast<std::size_t>(i)];
          }
          good = good && all.own(expected) == rewards[r];
          if (!good) throw std::runtime_error("wrong rows");
        })) == "");
}

TEST_CASE("groups of consecutive rows are gathered whole, those of rank 0 first", "[dist]") {
  const std::vector<std::int32_t> offsets[3] = {{0, 2, 2, 3}, {0}, {0, 1}};
  std::vector<double> rewards{1, 2, 3, 4};
  CHECK(same_on_all(on_ranks(3, [&](const ThreadRank& comm) {
          const int r = comm.rank(), rows = r == 0 ? 3 : r == 1 ? 0 : 1;
          const auto own = gdpo::view(rewards.data() + (r == 2 ? 3 : 0), rows, 1);
          const auto all = dist::gather_rows(
              comm, gdpo::RewardBatch{
                        own, gdpo::by_offsets(gdpo::view(offsets[static_cast<std::size_t>(r)]))});
          const auto groups = all.batch().groups;
          bool good = all.rows() == 4 && groups.count(4) == 4 && groups.length(0) == 2 &&
                      groups.length(1) == 0 && groups.length(3) == 1 && groups.row(3, 0) == 3 &&
                      all.split_groups() == 0;
          for (int i = 0; i < 4; ++i)
            good = good && all.batch().rewards(i, 0) == rewards[static_cast<std::size_t>(i)];
          // The same rows in groups of one row.
          const auto ones = dist::gather_rows(comm, gdpo::RewardBatch{own, gdpo::groups_of(1)});
          good = good && ones.batch().groups.count(ones.rows()) == 4;
          if (!good) throw std::runtime_error("wrong groups");
        })) == "");
}

TEST_CASE("rows that do not fit together are refused on all ranks", "[dist]") {
  const std::vector<double> numbers(24, 0.5);
  const std::vector<int> ids{1, 1, 2, 2}, unique{0, 1, 2, 3};
  struct Wrong {
    int rewards = 2, tokens = 0, keys = 4, first_key = 0, size = 2;
  };
  const auto gathered = [&](const Wrong& second, bool by_id = true) {
    return same_on_all(on_ranks(3, [&](const ThreadRank& comm) {
      const Wrong own = comm.rank() == 1 ? second : Wrong{};
      const auto rewards = gdpo::view(numbers.data(), comm.rank() == 2 ? 0 : 4, own.rewards);
      std::vector<int> key;
      for (int i = 0; i < (comm.rank() == 2 ? 0 : own.keys); ++i)
        key.push_back(i + (comm.rank() == 1 ? 4 - own.first_key : 0));
      if (!by_id) {
        dist::gather_rows(comm, gdpo::RewardBatch{rewards, gdpo::groups_of(own.size)});
        return;
      }
      gdpo::RewardBatch batch{rewards, gdpo::by_id(comm.rank() == 2 ? std::vector<int>{} : ids)};
      if (own.tokens > 0) batch.tokens = gdpo::view(numbers.data(), own.tokens);
      dist::gather_rows(comm, batch, gdpo::view(key));
    }));
  };
  CHECK(gathered({}) == "");
  const std::string name = "gdpo::dist::gather_rows: ";
  Wrong wrong;
  wrong.rewards = 3;
  CHECK(gathered(wrong) == name +
                               "rewards: given 2 rewards on rank 0 and 3 on rank 1; needed: the "
                               "same rewards on all ranks");
  wrong = {};
  wrong.tokens = 4;
  CHECK(gathered(wrong) == name +
                               "batch: given no columns on rank 0 and batch.tokens on rank 1; "
                               "needed: the same columns on all ranks that have rows");
  wrong.tokens = 5;
  CHECK(gathered(wrong) == name +
                               "rank 1 of 3: batch.tokens: given 5 entries; needed: one for each "
                               "of the 4 rows");
  wrong = {};
  wrong.keys = 3;
  CHECK(gathered(wrong) ==
        name + "rank 1 of 3: keys: given 3 entries; needed: one for each of the 4 rows");
  wrong = {};
  wrong.first_key = 1;
  CHECK(gathered(wrong) == name +
                               "keys: given the key 3 for a row of rank 0 and one of rank 1; "
                               "needed: a key of its own for every row of all ranks");
  wrong = {};
  wrong.size = 4;
  CHECK(gathered(wrong, false) ==
        name +
            "settings: given ... groups_of(2), no keys on rank 0 and ... groups_of(4), no keys "
            "on rank 1; needed: the same settings on all ranks");
  wrong.size = 3;
  CHECK(gathered(wrong, false).find("rank 1 of 3: groups: given 4 rows, which leaves") !=
        std::string::npos);
  // A rank with keys and one without.
  CHECK(same_on_all(on_ranks(2, [&](const ThreadRank& comm) {
          const gdpo::RewardBatch batch{gdpo::view(numbers.data(), 4, 2), gdpo::by_id(ids)};
          if (comm.rank() == 0)
            dist::gather_rows(comm, batch);
          else
            dist::gather_rows(comm, batch, gdpo::view(unique));
        })).find("no keys on rank 0 and ... keys on rank 1") != std::string::npos);
}

TEST_CASE("no rows at all", "[dist]") {
  CHECK(same_on_all(on_ranks(2, [&](const ThreadRank& comm) {
          const gdpo::RewardBatch batch{gdpo::view<const double>(nullptr, 0, 3),
                                        gdpo::by_id(std::vector<int>{})};
          const auto all = dist::gather_rows(comm, batch, gdpo::View<const int, 1>{});
          const auto a = gdpo::advantages(gdpo::simd, all.batch());
          if (!a.empty() || all.rows() != 0 || !all.own(a).empty())
            throw std::runtime_error("there are rows");
        })) == "");
}

TEST_CASE("own entries need arrays of the right sizes", "[dist]") {
  const std::vector<double> rewards(4);
  const auto all = dist::gather_rows(
      dist::Single{}, gdpo::RewardBatch{gdpo::view(rewards.data(), 4, 1), gdpo::groups_of(2)});
  CHECK(message_of([&] { all.own(std::vector<double>(3)); }) ==
        "gdpo::dist::GatheredRows::own_into: all: given 3 entries; needed: 4, one for each of the "
        "rows of all ranks");
}

TEST_CASE("an id is the same number in every integer type", "[dist]") {
  CHECK(gdpo::by_id(std::vector<std::size_t>{7, 3}).ids()(1) == 7);
  CHECK(gdpo::by_id(std::vector<int>{7, 3}).ids()(1) == 7);
  CHECK(gdpo::by_id(std::vector<std::uint64_t>{~std::uint64_t{0}, 1}).ids()(1) == -1);
  CHECK(gdpo::by_id(std::vector<signed char>{-3, 5, -3}).ids()(0) == -3);
  CHECK(gdpo::by_id(std::vector<int>{}).ids().extent[0] == 0);
}

// ---- tokens ----

TEST_CASE("parts of rows that do not fit together are refused on all ranks", "[dist]") {
  std::vector<float> numbers(64, -1.0f), advantages{1, -1}, others{1, 1};
  std::vector<std::int64_t> places{0, 1, 0, 1};
  const auto gathered = [&](const auto& change) {
    return same_on_all(on_ranks(2, [&](const ThreadRank& comm) {
      gdpo::TokenBatch<float> batch;
      batch.logp = gdpo::view(numbers.data(), 2, 2);
      batch.advantages = gdpo::view(advantages);
      gdpo::TokenView<std::int64_t> positions;
      if (comm.rank() == 1) change(batch, positions);
      dist::gather_tokens(comm, batch, positions);
    }));
  };
  const std::string name = "gdpo::dist::gather_tokens: ";
  using Batch = gdpo::TokenBatch<float>;
  using Places = gdpo::TokenView<std::int64_t>;
  CHECK(gathered([](Batch&, Places&) {}) == "");
  CHECK(gathered([&](Batch& b, Places&) {
          b.logp = gdpo::view(numbers.data(), 3, 2);
          b.advantages = {};
        }) == name +
                  "batch: given 2 rows on rank 0 and 3 on rank 1; needed: parts of the same rows "
                  "on all ranks");
  CHECK(gathered([&](Batch& b, Places&) { b.old_logp = b.logp; }) ==
        name +
            "batch.old_logp: given none on rank 0 and one on rank 1; needed: the same arrays on "
            "all ranks");
  CHECK(gathered([&](Batch& b, Places&) { b.advantages = gdpo::view(others); }) ==
        name +
            "batch.advantages: given a column on rank 0 and another on rank 1; needed: the same "
            "numbers on all ranks, because they share the rows");
  CHECK(gathered([&](Batch& b, Places&) {
          b.mask = gdpo::view(numbers.data(), 2, 3);
        }).find("rank 1 of 2: batch.mask: given (2, 3)") != std::string::npos);
  CHECK(gathered([&](Batch&, Places& p) { p = gdpo::view(places.data(), 2, 2); }) ==
        name +
            "positions: given none on rank 0 and some on rank 1; needed: positions on all ranks "
            "or on none");
  // A rank without tokens needs no arrays, and those that it has are not read.
  CHECK(gathered([&](Batch& b, Places&) { b.logp = gdpo::view(numbers.data(), 2, 0); }) == "");
  CHECK(gathered([&](Batch& b, Places&) {
          b.logp = b.old_logp = gdpo::view(numbers.data(), 2, 0);
        }) == "");

  const auto placed = [&](const std::vector<std::int64_t>& of_second) {
    return same_on_all(on_ranks(2, [&](const ThreadRank& comm) {
      gdpo::TokenBatch<float> batch;
      batch.logp = gdpo::view(numbers.data(), 2, 2);
      dist::gather_tokens(comm, batch,
                          gdpo::view(comm.rank() == 0 ? places.data() : of_second.data(), 2, 2));
    }));
  };
  CHECK(placed({2, 3, 3, 2}) == "");
  CHECK(placed({2, 3, 4, 2}) == name +
                                    "positions: given 4 in row 1 of rank 1; needed: the places of "
                                    "the tokens in the whole row, from 0 to 3");
  CHECK(placed({2, 3, 2, 1}) == name +
                                    "positions: given place 1 in row 1 a second time, by rank 1; "
                                    "needed: a place of its own for every token of a row");
}

TEST_CASE("own_places says where the own tokens are among all", "[dist]") {
  // Two rows of four tokens, of which rank 0 has those in the middle.
  const std::vector<std::int64_t> middle{1, 2, 1, 2}, ends{0, 3, 3, 0};
  CHECK(same_on_all(on_ranks(2, [&](const ThreadRank& comm) {
          const auto& places = comm.rank() == 0 ? middle : ends;
          std::vector<double> logp(4);
          for (std::size_t i = 0; i < 4; ++i)
            logp[i] = -static_cast<double>(4 * (i / 2)) - static_cast<double>(places[i]);
          gdpo::TokenBatch<double> batch;
          batch.logp = gdpo::view(logp.data(), 2, 2);
          const auto whole = dist::gather_tokens(comm, batch, gdpo::view(places.data(), 2, 2));
          const auto wanted = comm.rank() == 0 ? std::vector<gdpo::index_t>{1, 2, 5, 6}
                                               : std::vector<gdpo::index_t>{0, 3, 7, 4};
          if (whole.own_places() != wanted) throw std::runtime_error("places");
          for (std::size_t i = 0; i < 4; ++i) {
            const gdpo::index_t place = whole.own_places()[i];
            if (whole.batch().logp.at(place / 4, 0, place % 4) != logp[i])
              throw std::runtime_error("a token");
          }
        })) == "");
}

TEST_CASE("pre-passes decide by whole rows, so parts are gathered first", "[dist]") {
  std::vector<double> numbers(4, -1.0);
  gdpo::TokenBatch<double> batch;
  batch.logp = batch.rollout_logp = batch.old_logp = gdpo::view(numbers.data(), 2, 2);
  gdpo::PrepassMemory<double> memory;
  const auto prepared = gdpo::prepare(batch, memory, gdpo::prepass::Importance{});
  CHECK(message_of([&] { dist::gather_tokens(dist::Single{}, prepared); }) ==
        "gdpo::dist::gather_tokens: batch: given a batch that prepare() has seen in "
        "parts; needed: gather_tokens first, then prepare: pre-passes decide by whole rows");
}

TEST_CASE("the gradient of the own tokens needs an array of their shape", "[dist]") {
  std::vector<double> numbers(6, -1.0), out(6);
  gdpo::TokenBatch<double> batch;
  batch.logp = gdpo::view(numbers.data(), 2, 3);
  auto whole = dist::gather_tokens(dist::Single{}, batch);
  CHECK(message_of([&] { whole.own_into(gdpo::view(out.data(), 2, 2)); }) ==
        "gdpo::dist::GatheredTokens::own_into: out: given (2, 2); needed: (2, 3), the shape of the "
        "own tokens");
  CHECK(message_of([&] { whole.own_into(gdpo::view(out.data(), 3, 2)); }).find("given (3, 2)") !=
        std::string::npos);
  CHECK(message_of([&] { whole.own_into(gdpo::view(out)); }).find("given (6)") !=
        std::string::npos);
  CHECK(message_of([&] { whole.own_into({}); }).find("given no array") != std::string::npos);
}

}  // namespace communicator_test
