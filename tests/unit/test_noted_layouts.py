"""How what is stored lies in memory: as its readers would have it."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from rematpass.emit.layouts import note_layouts
from rematpass.graph.op_traits import base_name
from rematpass.torch_compat import STORE_HERE

aten = torch.ops.aten
ROWS, IMAGES = torch.contiguous_format, torch.channels_last


def strides_of_stored(function, name: str) -> tuple[int, ...]:
    """The strides noted on the first operator of a name, stored in a graph of images."""
    graph = make_fx(function, tracing_mode="fake")(torch.empty(2, 3, 4, 5).to(memory_format=IMAGES)).graph
    stored = next(node for node in graph.nodes if base_name(node.target) == name)
    stored.meta[STORE_HERE] = True
    note_layouts(graph)
    return stored.meta["val"].stride()


@pytest.mark.parametrize("memory_format", [ROWS, IMAGES])
def test_what_a_clone_alone_reads_lies_as_the_clone(memory_format):
    def function(x):
        return aten.exp(aten.clone(aten.sin(x), memory_format=memory_format))

    assert strides_of_stored(function, "sin") == torch.empty(2, 3, 4, 5).to(memory_format=memory_format).stride()


def test_what_others_read_as_well_stays_as_it_is():
    def function(x):
        y = aten.sin(x)
        return aten.clone(y, memory_format=ROWS), aten.cos(y)

    assert strides_of_stored(function, "sin") == torch.empty(2, 3, 4, 5).to(memory_format=IMAGES).stride()


def test_what_a_reshape_would_copy_lies_in_rows():
    assert strides_of_stored(lambda x: aten.reshape(aten.sin(x), [6, 20]) + 1, "sin") == (60, 20, 5, 1)
