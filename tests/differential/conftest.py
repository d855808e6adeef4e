"""What every differential test needs."""

import dataclasses

import pytest

from rematpass import device


@pytest.fixture(autouse=True)
def caches(own_caches):
    """Each compiles for itself."""


@pytest.fixture(autouse=True)
def speeds_are_given(monkeypatch):
    """Which plan is found depends on how fast the processor is: what fails on one machine is to fail on all."""
    speeds = {"flops_per_second": (("float64", 8e10), ("float32", 1.6e11)), "bandwidth_bytes_per_second": 1.3e10}
    present_device = device.present_device
    given = dataclasses.replace(present_device("cpu"), **speeds, link_bytes_per_second=1.3e10)
    monkeypatch.setattr(device, "present_device", lambda type_: given if type_ == "cpu" else present_device(type_))
