"""The table of a plan, word by word. If a change is meant: `python -m tests.golden.regenerate`, then read the diff."""

import pytest
import torch

from tests.golden.graphs import FOLDER, GRAPHS, REGENERATE, table_of, torch_of


@pytest.mark.parametrize("name", GRAPHS)
def test_table(name):
    kept = (FOLDER / name).read_text(encoding="utf-8")
    if torch_of(kept) not in torch.__version__:
        pytest.skip(f"the table was made with torch {torch_of(kept)}, whose decompositions differ")
    header, _, body = table_of(name).partition("\n")
    assert body == kept.partition("\n")[2], f"if this change is meant: {REGENERATE}"
    assert header.startswith("rematpass: graph 0 on toy, torch ")
