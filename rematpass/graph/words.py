"""Long lists of operator names, written as lines of words.

In: strings. Out: sets of names. Never knows an operator.
"""


def words(*lines: str) -> frozenset[str]:
    """The words of all lines.

    >>> sorted(words("exp log", "sin"))
    ['exp', 'log', 'sin']
    """
    return frozenset(" ".join(lines).split())
