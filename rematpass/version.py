"""Which rematpass this is.

In: nothing. Out: the version. Never imports anything.
"""

__version__ = "0.1.0"
