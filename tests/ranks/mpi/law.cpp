// The law of ranks/law.hpp on the ranks of an MPI job, and a rank that refuses its input.
#include "ranks/law.hpp"

#include <cstdio>
#include <gdpo/with/mpi.hpp>

#include "support/message.hpp"

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int failed = 0;
  {
    const gdpo::dist::Mpi comm(MPI_COMM_WORLD, 30);
    const std::string broken = ranks::broken_law(comm, 20);
    if (!broken.empty()) std::printf("rank %d: %s\n", comm.rank(), broken.c_str()), failed = 1;

    // One rank has a batch that does not fit; all throw what it says, and can go on.
    const int bad = comm.size() / 2;
    const std::vector<double> rewards(8);
    const gdpo::RewardBatch batch{gdpo::view(rewards.data(), 8, 1),
                                  gdpo::groups_of(comm.rank() == bad ? 3 : 4)};
    const std::string what = message_of([&] { gdpo::dist::gather_rows(comm, batch); });
    const std::string rank =
        "rank " + std::to_string(bad) + " of " + std::to_string(comm.size()) + ": ";
    const std::string expected =
        "gdpo::dist::gather_rows: " + (comm.size() > 1 ? rank : "") + "groups: given 8 rows";
    if (what.compare(0, expected.size(), expected) != 0)
      std::printf("rank %d: %s\n", comm.rank(), what.c_str()), failed = 1;
    gdpo::Normalizer one;
    one.rows = 1;
    if (gdpo::dist::all_merge(comm, one).rows != comm.size()) failed = 1;
    if (comm.rank() == 0 && !failed) std::printf("as one process on %d ranks\n", comm.size());
  }
  MPI_Finalize();
  return failed;
}
