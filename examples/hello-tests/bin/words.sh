#!/bin/sh
# Counts the words of standard input: `COUNT WORD` a line, the most frequent first, equal ones by name.
LC_ALL=C
export LC_ALL
tr '[:upper:]' '[:lower:]' | tr -cs '[:alnum:]_' '\n' | sed '/^$/d' | sort | uniq -c | sort -k1,1nr -k2 | sed 's/^ *//'
