# `cmake/dev bits`, which sources this file: tests whether the results of this tree are those of
# another commit, bit for bit.
# shellcheck source=cmake/commit.sh
. cmake/commit.sh

# bits_programs SOURCE BUILD CHOSEN configures SOURCE in BUILD and builds the programs of tests/bits
# whose names match CHOSEN.
bits_programs() {
  local list=$2/tests/bits/programs.cmake names name targets=()
  # Older commits know the matrix as GDPO_TEST_MATRIX.
  cmake -S "$1" -B "$2" -G Ninja -DCMAKE_BUILD_TYPE=Release -DGDPO_TEST_LINE=matrix \
    -DGDPO_TEST_MATRIX=ON -DGDPO_TEST_ALL=ON -DGDPO_BUILD_BENCH=OFF -DGDPO_BUILD_EXAMPLES=OFF \
    >"$2.log" 2>&1 ||
    die "bits: $1 cannot be configured: $2.log says why"
  names=$(sed -n 's/^gdpo_bits_program(\([a-z0-9_]*\) .*/\1/p' "$list" | grep -E "$3" |
    grep -v 'unoptimi[sz]ed' || true)
  for name in $names; do targets+=("gdpo_bits_$name"); done
  say "$1: programs ${names//$'\n'/, }"
  if ((${#targets[@]})); then cmake --build "$2" --target "${targets[@]}"; fi
}

bits() {
  (($#)) || die "bits: a commit to compare with is needed: cmake/dev bits REF [PROGRAM...]"
  local ref=$1 hash folder chosen
  shift
  (($#)) || set -- gcc
  chosen="^($(IFS='|' && printf '%s' "$*"))(_|\$)"
  if [[ $* == all ]]; then chosen=.; fi
  commit_folder bits "$ref"
  prepare
  mkdir -p build/bits/tree
  bits_programs "$folder/source" "$folder/build" "$chosen"
  bits_programs . build/bits/tree/build "$chosen"
  say "comparing this tree (ours) with $ref, $hash (theirs)"
  cmake -DTHEIRS="$folder/build/tests/bits/programs.cmake" \
    -DOURS=build/bits/tree/build/tests/bits/programs.cmake \
    -DCHOSEN="$chosen" -DRENAMES=tests/bits/renames.txt -P tests/bits/compare_trees.cmake
}
