# The counter on the command line, from the repository's top.
set -eu

expect() {
  if [ "$2" != "$3" ]; then
    printf '%s: expected\n%s\nbut got\n%s\n' "$1" "$2" "$3" >&2
    exit 1
  fi
  echo "ok: $1"
}

expect "the most frequent comes first" "2 be
2 to
1 not
1 or" "$(echo 'to be, or not to BE' | sh bin/words.sh)"
expect "no text has no words" "" "$(echo ' ... ' | sh bin/words.sh)"
