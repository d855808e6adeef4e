"""What every differential test needs."""

import pytest


@pytest.fixture(autouse=True)
def caches(own_caches, speeds_are_given):
    """Each compiles for itself, on a processor as fast as any other."""
