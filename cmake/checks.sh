# shellcheck shell=bash
# `cmake/dev docs`, `cmake/dev lint` and `cmake/dev coverage`, which source this file: the site,
# what tools say of the sources, and how much of the library the tests run.

run_docs() {
  prepare
  local parts=()
  mapfile -t parts < <(docs_packages)
  ((${#parts[@]} == 0)) || install "${parts[@]}" ||
    die "docs: these packages are missing (their Debian names): ${parts[*]}"
  have em++ || install emscripten node-acorn || say "no Emscripten: the site has no playground"
  build release docs
  if have em++; then
    cmake --build --preset release --target playground
    cp build/release/playground.html build/release/docs/html/
  fi
  say "the site: $PWD/build/release/docs/html/index.html (open it in a browser)"
}

# ---- lint ----

lint_tools=build/lint
lint_failed=()  # the tools that have found something

# Installs the tools from PyPI, all in one call: of a folder's programs pip keeps those of the last.
install_lint_tools() {
  if cmp -s cmake/lint_tools.txt $lint_tools/lint_tools.txt; then return; fi
  python3 -m pip --version >/dev/null 2>&1 || install python3 python3-pip ||
    die "lint: pip is missing, and apt-get cannot install it here"
  rm -rf $lint_tools
  python_folder=$lint_tools install_python -r cmake/lint_tools.txt ||
    die "lint: pip cannot install here what cmake/lint_tools.txt lists"
  cp cmake/lint_tools.txt $lint_tools
}

# lint TOOL COMMAND... runs a tool, and notes if it finds something.
lint() {
  say "$1"
  "${@:2}" || lint_failed+=("$1")
}

# Runs clang-tidy over a file with every front door that needs no other package than the tests do,
# and over examples, which instantiate the templates. Their main() may throw, so it gets another
# name.
tidy() {
  local door units=(examples/trainer_step.cpp examples/logits_step.cpp examples/ppo_step.cpp)
  local doors=$lint_tools/front_doors.cpp
  for door in include/gdpo/*.hpp include/gdpo/with/{eigen_tensor,nlohmann_json,thread_pool}.hpp; do
    [[ $door == */cuda.hpp ]] || printf '#include <%s>\n' "${door#include/}"
  done >$doors
  printf '%s\n' $doors "${units[@]}" |
    xargs -P "${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}" -I UNIT \
      $lint_tools/bin/clang-tidy --quiet --config-file=.clang-tidy UNIT -- \
      -std=c++17 -Dmain=program -Iinclude "${header_folders[@]}" \
      2> >(grep -v 'warnings generated' >&2)
}

run_lint() {
  have_header algorithm || install g++
  have_header Eigen/Core || install libeigen3-dev
  have_header nlohmann/json.hpp || install nlohmann-json3-dev
  install_lint_tools
  local -x PYTHONPATH=$lint_tools PYTHONDONTWRITEBYTECODE=1
  lint clang-format python3 tests/pages/pages.py format . $lint_tools/bin/clang-format
  lint ruff $lint_tools/bin/ruff check --no-cache --quiet .
  lint zizmor $lint_tools/bin/zizmor --offline --quiet .github
  lint clang-tidy tidy
  ((${#lint_failed[@]} == 0)) || die "lint: found by ${lint_failed[*]}, see above"
  say "nothing to mend"
}

# ---- coverage ----

# Which tests are measured: those with the label core, which this target builds.
coverage_target=gdpo_core_tests
coverage_tests=(-L '^core$')

run_coverage() {
  local compiler=${CXX:-g++} gcov
  gcov=${compiler/g++/gcov}
  [[ ${compiler##*/} == g++* ]] ||
    die "coverage: given CXX=$compiler; needed: g++, whose gcov reads what was counted"
  prepare
  have "$gcov" || die "coverage: $gcov, which comes with $compiler, is missing"
  say "configuring and building build/coverage"
  cmake -S . -B build/coverage -G Ninja -DCMAKE_CXX_COMPILER="$compiler" -DCMAKE_BUILD_TYPE= \
    "-DCMAKE_CXX_FLAGS=--coverage -DGDPO_TEST_FEW_ROUNDS" \
    -DGDPO_BUILD_BENCH=OFF -DGDPO_BUILD_EXAMPLES=OFF
  cmake --build build/coverage --target $coverage_target
  # What was counted before this run is of other objects, or would be added to.
  find build/coverage -name '*.gcda' -delete
  say "testing build/coverage"
  ctest --test-dir build/coverage --output-on-failure --no-tests=error "${coverage_tests[@]}"
  say "the lines of include/gdpo that these tests run"
  python3 cmake/coverage.py build/coverage "$gcov"
}
