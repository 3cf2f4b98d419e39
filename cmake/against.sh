# `cmake/dev bench against`, which sources this file: is the library of this tree as fast as that of
# another commit?
# shellcheck source=cmake/commit.sh
. cmake/commit.sh

bench_against() {
  (($#)) || die "bench: a commit to compare with is needed: cmake/dev bench against REF [ARGUMENTS]"
  local hash folder
  commit_folder bench "$1"
  shift
  prepare
  build release gdpo_gates
  build/release/bench/gdpo_gates --against "$folder/source" "$@"
}
