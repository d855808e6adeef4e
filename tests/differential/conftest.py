"""What every differential test needs."""

import pytest


@pytest.fixture(autouse=True)
def caches(own_caches):
    """Each compiles for itself."""
