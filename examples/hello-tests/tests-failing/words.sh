# Fails on purpose, with a status of its own.
echo "counting on case"
echo "expected 1 Be, got $(echo 'Be be' | sh bin/words.sh)" >&2
exit 42
