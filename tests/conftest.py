"""What every test needs."""

import gc

import pytest


@pytest.fixture(autouse=True, scope="module")
def earlier_modules_are_not_searched():
    """What earlier modules left (graphs, caches of torch) is no longer searched for garbage.

    A collection, of which a measured step makes several, took ten times as long at the end of the suite as alone.
    """
    gc.collect()
    gc.freeze()
