"""What every test of whole steps needs."""

import pytest


@pytest.fixture(autouse=True)
def speeds(speeds_are_given):
    """Processes that tests start measure their own."""
