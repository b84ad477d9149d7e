"""Counts words."""

import re


def count(text):
    """How often each word occurs, case apart; the most frequent first, equal ones by name."""
    counts = {}
    for word in re.findall(r"\w+", text.lower()):
        counts[word] = counts.get(word, 0) + 1
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))
