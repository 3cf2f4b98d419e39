# The stages of `cmake/dev gpu`, which sources this file. Each of quick, bench, profile and sanitize
# is useful alone and ends within five minutes. What a command prints is written to a file in $out
# as it comes, so a run that is cut off loses nothing. Without a device a stage prints its commands
# and fails.

out=${GDPO_GPU_OUT:-build/cuda/gpu}
stage_seconds=290
prints_only=           # is set if there is no device
running=               # the process of the step that runs
failed=()              # a sentence for each step that failed
declare -A written=()  # the files that this run has begun; those of earlier runs are replaced
bench=build/cuda/bench/cuda_bench
tests=build/cuda/tests/cuda/gdpo_cuda_tests

find_nvcc() {
  have nvcc || ! [[ -x /usr/local/cuda/bin/nvcc ]] || export PATH=/usr/local/cuda/bin:$PATH
  have nvcc ||
    die "gpu: nvcc is neither in the path nor in /usr/local/cuda/bin: install CUDA 12 or 13"
}
has_device() { have nvidia-smi && nvidia-smi -L 2>/dev/null | grep -q '^GPU'; }

print_command() {
  local word
  printf ' '
  for word; do
    if [[ $word == *[[:space:]\;]* ]]; then word="\"$word\""; fi
    printf ' %s' "$word"
  done
  printf '\n'
}

# step FILE COMMAND... runs a command and appends what it prints to FILE. The command is stopped
# when the stage has no time left, or after ${limit} seconds. A failure is noted in `failed`. Exit
# status 77 says that the command has nothing to work with, which is a failure unless ${may_skip} is
# set. To be stopped is a failure unless ${may_stop} is set.
step() {
  local file=$1 status=0 left
  shift
  if [[ $prints_only ]]; then print_command "$@"; return; fi
  left=$((stage_end - SECONDS))
  if ((${limit:-left} < left)); then left=$limit; fi
  say "$*"
  if ((left < 3)); then
    failed+=("not begun, the stage's time is over: $*")
    return
  fi
  # This is not a pipeline: a process that the command leaves behind would keep tee waiting, and
  # with it this shell.
  timeout --kill-after=5 "$left" "$@" > >(tee ${written[$file]:+-a} "$out/$file") 2>&1 &
  running=$!
  wait "$running" || status=$?
  running=
  written[$file]=1
  sleep 0.2  # tee prints the last lines
  case $status in
    0) ;;
    77)
      if [[ ${may_skip:-} ]]; then say "left out"; else failed+=("nothing to work with: $*"); fi
      ;;
    124 | 137)
      if [[ ${may_stop:-} ]]; then
        say "stopped after $left s"
      else
        failed+=("stopped after $left s: $*")
      fi
      ;;
    *) failed+=("status $status: $*") ;;
  esac
}

has_tests() {
  [[ $prints_only || -x $tests ]] && return
  say "$tests is not there: tests are left out. \"gpu build\" makes it where it finds Catch2," \
    "nlohmann-json and CLI11 (\"gpu pack\" brings them along) and is not stopped: build.txt"
  return 1
}

# Builds the benchmarks first: they take a third of the time, and a test that does not compile must
# not keep them waiting.
gpu_build() {
  local with_tests=ON architectures=${CUDAARCHS:-}
  have_test_packages || with_tests=OFF
  if [[ $with_tests == OFF ]]; then
    say "without Catch2, nlohmann-json and CLI11: the tests of kernels are left out"
  fi
  # The preset has three architectures; building for one takes a third of the time.
  if [[ ! $architectures && ! $prints_only ]]; then
    architectures=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | tr -d '. ' |
      sort -un | paste -sd ';' || true)
    [[ $architectures =~ ^[0-9]+(;[0-9]+)*$ ]] ||
      die "gpu: nvidia-smi gives no compute capability; set CUDAARCHS (90: H100, H200)"
  fi
  local stage_end=$((SECONDS + 7200))
  step build.txt cmake --preset cuda -DGDPO_BUILD_TESTS=$with_tests \
    "-DCMAKE_CUDA_ARCHITECTURES=${architectures:-those of the device}"
  step build.txt cmake --build --preset cuda --target cuda_bench gdpo_cuda_torch
  step build.txt cmake --build --preset cuda --target gdpo_gpu -- -k 0
}

# Tests whether the kernels are right, and measures roughly how fast they are.
gpu_quick() {
  step device.txt nvidia-smi
  if has_tests; then
    limit=60 step tests.txt $tests --durations yes "[sanitize]"  # a few tests of every family
    limit=60 may_stop=1 step tests.txt $tests --durations yes "~[sanitize]"
    step conformance.txt build/cuda/tests/cuda/gdpo_cuda_conformance --exec cuda tests/golden \
      tests/golden/released
  fi
  local section
  for section in loss advantages logits; do
    step quick.txt $bench --gates --gated --divide 16 --only $section \
      --json "$out/quick_$section.json"
  done
}

# Measures how fast the kernels are, against the gates and beside PyTorch, and how much of a row of
# logits a block should keep in shared memory. Each section is a process of its own, so that a CUDA
# error in one does not stop the others.
gpu_bench() {
  local section kib
  for section in loss advantages logits small; do
    step bench.txt $bench --gates --only $section --json "$out/bench_$section.json"
  done
  for kib in 0 48 72 100 150 200; do
    step shared.txt $bench --figure "fused, in place, bfloat16" --shared $((kib * 1024))
  done
  may_skip=1 step torch.txt python3 bench/cuda/torch_bench.py \
    --library build/cuda/bench/libgdpo_cuda_torch.so --gates --json "$out/torch.json"
}

# Measures what the kernels wait for.
gpu_profile() {
  may_skip=1 step profile.txt python3 bench/cuda/profile_kernels.py --bench $bench --out "$out"
}

# Looks for races, and for reads and writes outside of memory, in a few tests of every family.
gpu_sanitize() {
  if [[ ! $prints_only ]] && ! have compute-sanitizer; then
    say "compute-sanitizer is not in the path: nothing is checked"
    return
  fi
  has_tests || return 0
  local tool
  for tool in memcheck racecheck; do  # the slower one last: it gets the time that is left
    step $tool.txt compute-sanitizer --tool $tool \
      --error-exitcode 1 $tests --durations yes "[sanitize]"
  done
}

run_stage() {
  local stage_end=$((SECONDS + stage_seconds))
  if [[ $prints_only ]]; then printf 'gpu %s:\n' "$1"; else say "gpu $1"; fi
  if [[ $1 != build && ! $prints_only && ! -x $bench ]]; then
    die "gpu $1: $bench is not there: run \"cmake/dev gpu build\" first"
  fi
  "gpu_$1"
}

# gpu_pack FOLDER copies the installed packages that a build needs to a new folder, which can then
# be in CMAKE_PREFIX_PATH.
gpu_pack() {
  (($# == 1)) || die "gpu pack: one folder is needed, which is made: cmake/dev gpu pack FOLDER"
  local folder=$1 packages=(libeigen3-dev catch2 nlohmann-json3-dev libcli11-dev) file
  [[ $folder == /* ]] || folder=$caller/$folder
  [[ ! -e $folder ]] ||
    die "gpu pack: $1 is there already; a folder that does not exist yet is needed"
  have dpkg ||
    die "gpu pack: copies Debian's packages, and there is no dpkg here;" \
      "any prefix with Eigen, Catch2, nlohmann-json and CLI11 does"
  prepare gpu
  dpkg -L "${packages[@]}" >/dev/null ||
    die "gpu pack: these Debian packages are needed: ${packages[*]}"
  dpkg -L "${packages[@]}" | while read -r file; do
    case $file in
      /usr/share/doc/* | /usr/share/man/* | /usr/share/lintian/*) ;;
      /usr/*) if [[ -f $file ]]; then install_file "$file" "$folder/${file#/usr/}"; fi ;;
    esac
  done
  say "$(du -sh --apparent-size "$folder" | cut -f1) in $1." \
    "With that folder, on a machine without a network (CMAKE_PREFIX_PATH is where it is):"
  printf 'GDPO_OFFLINE=1 CMAKE_PREFIX_PATH=%q cmake/dev gpu\n' "$1"
}
install_file() { mkdir -p "${2%/*}" && cp -L "$1" "$2"; }

gpu() {
  local stage=${1:-all} chosen=()
  (($#)) && shift
  case $stage in
    all) chosen=(build quick bench profile sanitize) ;;
    build | quick | bench | profile | sanitize) chosen=("$stage") ;;
    pack) gpu_pack "$@"; return ;;
    *)
      die "gpu: there is no stage \"$stage\": build, quick, bench, profile, sanitize, all," \
        "or pack FOLDER"
      ;;
  esac
  (($# == 0)) || die "gpu $stage: takes no further arguments; \"$*\" was given"
  if ! has_device && ! [[ $stage == build && ${CUDAARCHS:-} ]]; then
    prints_only=1
    for stage in "${chosen[@]}"; do run_stage "$stage"; done
    die "gpu: no NVIDIA GPU here (nvidia-smi lists none), so nothing was run;" \
      "CUDAARCHS=90 cmake/dev gpu build builds without one"
  fi
  if [[ ${chosen[0]} == build ]]; then
    find_nvcc
    prepare gpu
  fi
  mkdir -p "$out"
  trap 'if [[ $running ]]; then kill "$running"; fi; exit 130' INT TERM
  for stage in "${chosen[@]}"; do run_stage "$stage"; done
  say "what was printed: $out"
  ((${#failed[@]} == 0)) || die "gpu: $(printf '%s; ' "${failed[@]}")"
}
