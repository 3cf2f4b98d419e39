#!/usr/bin/env bash
# Tests `cmake/dev gpu` without a device: what it prints and refuses, how a step ends, and what
# `pack` gathers.
#   stages_test.sh WORK      WORK: a folder for this test alone; it is emptied first
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.."
work=$1
rm -rf "$work" && mkdir -p "$work"

fail() { printf 'failed: %s\n' "$*" >&2; exit 1; }
# refuses TEXT COMMAND...: COMMAND must exit with 1, and the last line that it prints must contain
# TEXT.
refuses() {
  local text=$1 status=0
  shift
  "$@" >"$work/printed" 2>&1 || status=$?
  ((status == 1)) && tail -n 1 "$work/printed" | grep -qF -- "$text" ||
    fail "$*: status $status, printed: $(cat "$work/printed")"
}

# ---- what is refused ----

refuses 'there is no stage "fast"' cmake/dev gpu fast
refuses 'takes no further arguments; "now" was given' cmake/dev gpu quick now
refuses 'one folder is needed' cmake/dev gpu pack
for stage in build quick bench profile sanitize all; do
  refuses 'no NVIDIA GPU here' cmake/dev gpu $stage
  grep -q '^  ' "$work/printed" || fail "gpu $stage prints no command: $(cat "$work/printed")"
done
[[ $(grep -c '^gpu ' "$work/printed") == 5 ]] || fail "gpu all does not print five stages"

# ---- how a step ends ----

(
  caller=$PWD
  have() { command -v "$1" >/dev/null 2>&1; }
  say() { :; }
  export GDPO_GPU_OUT="$work/of steps"
  mkdir "$GDPO_GPU_OUT"
  . cmake/gpu.sh
  stage_end=$((SECONDS + 60))
  step ends.txt echo one
  step ends.txt sh -c 'echo two; exit 77'
  may_skip=1 step ends.txt sh -c 'exit 77'
  step ends.txt sh -c 'exit 3'
  limit=3 step stopped.txt sh -c 'echo begun; sleep 50'
  limit=3 may_stop=1 step stopped.txt sleep 50
  began=$SECONDS
  step leaves.txt sh -c 'setsid sleep 20 & echo gone'
  ((SECONDS - began < 10)) || fail "a step waits for what its command leaves behind"
  stage_end=$SECONDS
  step late.txt echo late
  [[ $(cat "$out/ends.txt") == $'one\ntwo' && $(cat "$out/stopped.txt") == begun &&
    $(cat "$out/leaves.txt") == gone ]] ||
    fail "what the steps print: $(head "$out"/*.txt)"
  [[ ! -e $out/late.txt ]] || fail "a step begins after its stage's time"
  expected=('nothing to work with: sh -c echo two; exit 77' 'status 3: sh -c exit 3'
    'stopped after 3 s: sh -c echo begun; sleep 50'
    "not begun, the stage's time is over: echo late")
  [[ ${failed[*]} == "${expected[*]}" ]] || fail "failures of steps: ${failed[*]}"
)

# ---- pack ----

if ! command -v dpkg >/dev/null ||
  ! dpkg -L libeigen3-dev catch2 nlohmann-json3-dev libcli11-dev >/dev/null 2>&1; then
  echo "Eigen, Catch2, nlohmann-json and CLI11 are not Debian's packages here:" \
    "gpu pack is not tested"
  exit 0
fi
dev=$PWD/cmake/dev
export GDPO_OFFLINE=1
(cd "$work" && "$dev" gpu pack "a pack" >printed 2>/dev/null)
grep -qxF 'GDPO_OFFLINE=1 CMAKE_PREFIX_PATH=a\ pack cmake/dev gpu' "$work/printed" ||
  fail "gpu pack prints: $(cat "$work/printed")"
for header in eigen3/Eigen/Core nlohmann/json.hpp CLI/CLI.hpp catch2; do
  [[ -e "$work/a pack/include/$header" ]] || fail "gpu pack has no $header"
done
(($(du -sm --apparent-size "$work/a pack" | cut -f1) < 20)) || fail "gpu pack takes 20 MiB or more"
refuses 'is there already' "$dev" gpu pack "$work/a pack"
cat >"$work/CMakeLists.txt" <<'TEXT'
cmake_minimum_required(VERSION 3.22)
project(packed LANGUAGES CXX)
foreach(package Eigen3 Catch2 nlohmann_json CLI11)
  find_package(${package} REQUIRED CONFIG PATHS "${CMAKE_SOURCE_DIR}/a pack" NO_DEFAULT_PATH)
  message(STATUS "${package}: ${${package}_DIR}")
endforeach()
TEXT
# The pack is named relative to the caller's folder; the compiler must find its headers there.
(cd "$work" && CMAKE_PREFIX_PATH="elsewhere:a pack" bash -c \
  '. "$0" help >/dev/null; printf "%s\n" "$CMAKE_PREFIX_PATH"; have_test_packages' "$dev") \
  >"$work/printed" || fail "the packages of gpu pack are not seen: $(cat "$work/printed")"
grep -qxF "$work/elsewhere:$work/a pack" "$work/printed" ||
  fail "CMAKE_PREFIX_PATH becomes $(cat "$work/printed")"
cmake -S "$work" -B "$work/build" >"$work/printed" 2>&1 ||
  fail "CMake does not find what gpu pack has: $(cat "$work/printed")"
