# What commands of cmake/dev that compare this tree with another commit share.

# commit_folder COMMAND REF sets `hash` and `folder`: $folder/source holds the files of commit REF.
commit_folder() {
  hash=$(git rev-parse --verify --quiet --short=12 "$2^{commit}") ||
    die "$1: git knows no commit \"$2\""
  folder=build/commits/$hash
  [[ ! -d $folder/source ]] || return 0  # a commit never changes
  rm -rf "$folder/incomplete"
  mkdir -p "$folder/incomplete"
  git archive "$hash" | tar -x -C "$folder/incomplete"
  mv "$folder/incomplete" "$folder/source"
}
