# The stages of `cmake/dev gpu`, which sources this file. Each of quick, bench, profile and sanitize says something when it runs alone,
# and ends within five minutes. What a command prints is in a file of $out as it comes, so a run that is cut off loses nothing.
# Without a device a stage prints its commands, and fails.

out=${GDPO_GPU_OUT:-build/cuda/gpu}
stage_seconds=290
prints_only=  # set where there is no device
failed=()
declare -A written=()  # files of this run: what is there from an earlier one is replaced
bench=build/cuda/bench/cuda_bench
tests=build/cuda/tests/cuda/gdpo_cuda_tests

find_nvcc() {
  have nvcc || ! [[ -x /usr/local/cuda/bin/nvcc ]] || export PATH=/usr/local/cuda/bin:$PATH
  have nvcc || die "gpu: nvcc is neither in the path nor in /usr/local/cuda/bin: install CUDA 12 or 13"
}
has_device() { have nvidia-smi && nvidia-smi -L 2>/dev/null | grep -q '^GPU'; }

# Runs a command, or prints it.
plan() {
  if [[ ! $prints_only ]]; then "$@"; return; fi
  local word
  printf ' '
  for word; do
    if [[ $word == *[[:space:]\;]* ]]; then word="\"$word\""; fi
    printf ' %s' "$word"
  done
  printf '\n'
}

# step FILE COMMAND...: within what is left of the stage's time, or ${limit} seconds. Exit status 77: the command said why it has nothing
# to work with, which is a failure but where ${may_skip}.
step() {
  local file=$1 status=0 left
  shift
  if [[ $prints_only ]]; then plan "$@"; return; fi
  left=$((stage_end - SECONDS))
  if ((${limit:-left} < left)); then left=$limit; fi
  say "$*"
  if ((left < 3)); then
    failed+=("not begun, the stage's time is over: $*")
    return
  fi
  timeout --kill-after=5 "$left" "$@" 2>&1 | tee ${written[$file]:+-a} "$out/$file" || status=${PIPESTATUS[0]}
  written[$file]=1
  case $status in
    0) ;;
    77) if [[ ${may_skip:-} ]]; then say "left out"; else failed+=("nothing to work with: $*"); fi ;;
    124 | 137) failed+=("stopped after $left s: $*") ;;
    *) failed+=("status $status: $*") ;;
  esac
}

has_tests() {
  [[ $prints_only || -x $tests ]] && return
  say "tests were not built, for want of Catch2, nlohmann-json and CLI11 (\"cmake/dev gpu pack\" brings them along): they are left out"
  return 1
}

gpu_build() {
  local with_tests=ON architectures=${CUDAARCHS:-}
  have_test_packages || with_tests=OFF
  if [[ $with_tests == OFF ]]; then say "without Catch2, nlohmann-json and CLI11: the tests of kernels are left out"; fi
  if [[ ! $architectures && ! $prints_only ]]; then  # of the devices here: a third of the time of those that the preset has
    architectures=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | tr -d '. ' | sort -un | paste -sd ';')
    [[ $architectures =~ ^[0-9]+(;[0-9]+)*$ ]] || die "gpu: nvidia-smi gives no compute capability; set CUDAARCHS (90: H100, H200)"
  fi
  plan cmake --preset cuda -DGDPO_BUILD_TESTS=$with_tests "-DCMAKE_CUDA_ARCHITECTURES=${architectures:-those of the device}"
  plan cmake --build --preset cuda --target gdpo_gpu
}

# Are the kernels right, and about how fast?
gpu_quick() {
  step device.txt nvidia-smi
  if has_tests; then
    limit=60 step tests.txt $tests --durations yes
    step conformance.txt build/cuda/tests/cuda/gdpo_cuda_conformance --exec cuda tests/golden
  fi
  step quick.txt $bench --gates --gated --divide 16 --json "$out/quick.json"
}

# How fast, against the gates; of how much of a row of logits a block should keep; beside PyTorch.
gpu_bench() {
  local kib
  step cuda_bench.txt $bench --gates --json "$out/cuda_bench.json"
  for kib in 0 48 72 100 150 200; do
    step shared.txt $bench --figure "fused, in place, bfloat16" --shared $((kib * 1024))
  done
  if [[ $prints_only ]] || { have python3 && python3 -c 'import torch' 2>/dev/null; }; then
    may_skip=1 step torch_bench.txt python3 bench/cuda/torch_bench.py --library build/cuda/bench/libgdpo_cuda_torch.so --gates \
      --json "$out/torch_bench.json"
  else
    say "python3 has no torch: nothing is compared with PyTorch"
  fi
}

# What the kernels wait for.
gpu_profile() { may_skip=1 step profile.txt python3 bench/cuda/profile.py --bench $bench --out "$out"; }

# Races; reads and writes beyond memory. A few tests of every family.
gpu_sanitize() {
  if [[ ! $prints_only ]] && ! have compute-sanitizer; then
    say "compute-sanitizer is not in the path: nothing is checked"
    return
  fi
  has_tests || return 0
  local tool
  for tool in racecheck memcheck; do
    limit=$((stage_seconds / 2)) step $tool.txt compute-sanitizer --tool $tool --error-exitcode 1 $tests --durations yes "[sanitize]"
  done
}

run_stage() {
  local stage_end=$((SECONDS + stage_seconds))
  if [[ $prints_only ]]; then printf 'gpu %s:\n' "$1"; else say "gpu $1"; fi
  if [[ $1 != build && ! $prints_only && ! -x $bench ]]; then die "gpu $1: $bench is not there: run \"cmake/dev gpu build\" first"; fi
  "gpu_$1"
}

# pack FOLDER: the installed packages that a build needs, as a folder for CMAKE_PREFIX_PATH.
gpu_pack() {
  (($# == 1)) || die "gpu pack: one folder is needed, which is made: cmake/dev gpu pack FOLDER"
  [[ ! -e $1 ]] || die "gpu pack: $1 is there already; a folder that does not exist yet is needed"
  have dpkg || die "gpu pack: copies Debian's packages, and there is no dpkg here; any prefix that has Eigen, Catch2, nlohmann-json and CLI11 will do"
  prepare gpu
  local package file
  mkdir -p "$1"
  for package in libeigen3-dev catch2 nlohmann-json3-dev libcli11-dev; do
    dpkg -L "$package" >/dev/null 2>&1 || die "gpu pack: Debian's package $package is not installed, and apt-get cannot install it here"
    dpkg -L "$package" | while read -r file; do
      case $file in
        /usr/share/doc/* | /usr/share/man/* | /usr/share/lintian/*) ;;
        /usr/*) if [[ -f $file ]]; then mkdir -p "$1${file%/*}" && cp -L "$file" "$1$file"; fi ;;
      esac
    done
  done
  mv "$1"/usr/* "$1" && rmdir "$1/usr"
  say "$(du -sh --apparent-size "$1" | cut -f1) in $1. On a machine without a network, with the folder beside this repository's files:"
  printf 'GDPO_OFFLINE=1 CMAKE_PREFIX_PATH=%s cmake/dev gpu\n' "$1"
}

gpu() {
  local stage=${1:-all} chosen=()
  (($#)) && shift
  case $stage in
    all) chosen=(build quick bench profile sanitize) ;;
    build | quick | bench | profile | sanitize) chosen=("$stage") ;;
    pack) gpu_pack "$@"; return ;;
    *) die "gpu: there is no stage \"$stage\": build, quick, bench, profile, sanitize, all, or pack FOLDER" ;;
  esac
  (($# == 0)) || die "gpu $stage: takes no further arguments; \"$*\" was given"
  if ! has_device && ! [[ $stage == build && ${CUDAARCHS:-} ]]; then
    prints_only=1
    for stage in "${chosen[@]}"; do run_stage "$stage"; done
    die "gpu: no NVIDIA GPU here (nvidia-smi lists none), so nothing was run; CUDAARCHS=90 cmake/dev gpu build builds without one"
  fi
  find_nvcc
  prepare gpu
  mkdir -p "$out"
  for stage in "${chosen[@]}"; do run_stage "$stage"; done
  say "what was printed: $out"
  ((${#failed[@]} == 0)) || die "gpu: $(printf '%s; ' "${failed[@]}")"
}
