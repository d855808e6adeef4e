"""What every differential test needs."""

import pytest
import torch


@pytest.fixture(autouse=True)
def own_caches(tmp_path_factory, monkeypatch):
    """Nothing from earlier runs, nothing left behind. One folder for all: compiled headers are made once."""
    folder = tmp_path_factory.getbasetemp()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder / "inductor"))
    monkeypatch.setenv("REMATPASS_CACHE_DIR", str(folder / "rematpass"))
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
