#!/usr/bin/env bash
# other_user.sh COMMAND... runs the command as the user nobody, in a new folder that is its home and
# its folder for temporary files. It needs root; where it cannot do that, it exits with status 77.
set -euo pipefail
skip() { printf 'skipped: %s\n' "$*"; exit 77; }
(($(id -u) == 0)) || skip "ctest does not run as root, so the other tests have shown it already"
command -v setpriv >/dev/null || skip "no setpriv"

home=$(mktemp -d)
trap 'rm -rf -- "$home"' EXIT
chown nobody "$home"
cd -- "$home"
as_nobody() {
  setpriv --reuid nobody --regid "$(id -g nobody)" --clear-groups \
    env -u OMPI_ALLOW_RUN_AS_ROOT HOME="$home" TMPDIR="$home" "$@"
}
as_nobody test -r "$home" || skip "setpriv cannot change the user here"
for word in "$@"; do
  [[ $word != /* ]] || as_nobody test -x "$word" || skip "nobody may not run $word"
done
as_nobody "$@"
