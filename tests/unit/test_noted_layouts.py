"""How what is stored lies in memory: as its readers would have it."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from rematpass.emit.layouts import lay_out_images
from rematpass.graph.op_traits import base_name
from rematpass.torch_compat import STORE_HERE

aten = torch.ops.aten
ROWS, IMAGES = torch.contiguous_format, torch.channels_last


def strides_of_stored(function, name: str, dtype=torch.float32) -> tuple[int, ...]:
    """The strides noted on the first operator of a name, stored in a graph of images."""
    images = torch.empty(2, 3, 4, 5, dtype=dtype).to(memory_format=IMAGES)
    graph = make_fx(function, tracing_mode="fake")(images).graph
    stored = next(node for node in graph.nodes if base_name(node.target) == name)
    stored.meta[STORE_HERE] = True
    lay_out_images(graph)
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


@pytest.mark.parametrize("is_gradient", [False, True])
def test_what_a_convolution_along_a_sequence_reads_lies_in_rows(is_gradient):
    def function(x):
        stored, weight, ones = aten.sin(aten.flatten(x, 2)), torch.ones(3, 3, 1), [1]
        if is_gradient:
            wanted = [True, True, False]
            return aten.convolution_backward(stored, stored, weight, None, ones, [0], ones, False, [0], 1, wanted)
        return stored, functional.conv1d(stored, weight)

    assert strides_of_stored(function, "sin") == (60, 20, 1)


@pytest.mark.parametrize("added", ["nothing", "rows"])
def test_what_is_picked_for_an_image_lies_as_one_unless_rows_are_added_to_it(added):
    """Its own order is free; what is added in rows could be written over in that order only."""

    def function(x):
        places = torch.arange(4), torch.arange(5)
        picked = aten.sin(x[:, :, places[0][:, None], places[1]])
        rows = aten.cumsum(x.contiguous(), 2) if added == "rows" else 1.0
        image = aten.relu(aten.mul(picked, rows))
        return functional.conv2d(aten.cos(image), torch.ones(3, 3, 1, 1))

    expected = IMAGES if added == "nothing" else ROWS
    assert strides_of_stored(function, "relu") == torch.empty(2, 3, 4, 5).to(memory_format=expected).stride()


def test_what_a_reshape_would_copy_lies_in_rows():
    assert strides_of_stored(lambda x: aten.reshape(aten.sin(x), [6, 20]) + 1, "sin") == (60, 20, 5, 1)


def test_pixels_shuffled_into_channels_lie_as_the_image_that_a_convolution_reads():
    def function(x):
        halves = aten.permute(aten.view(x, [2, 3, 2, 2, 5]), [0, 1, 3, 2, 4])  # rows in pairs
        image = aten.reshape(aten.clone(halves, memory_format=ROWS), [2, 6, 2, 5])
        return functional.conv2d(image, torch.ones(1, 6, 1, 1))

    image = torch.empty(2, 6, 2, 5).to(memory_format=IMAGES)
    assert strides_of_stored(function, "clone") == image.view(2, 3, 2, 2, 5).stride()


def test_a_mean_over_windows_has_a_gradient_that_lies_as_what_it_is_made_of():
    """What stands in the place of what was pooled is one number, which lies as it likes."""

    def function(x):
        gradient = functional.conv2d(x, torch.ones(6, 3, 1, 1))
        pooled = aten.expand(torch.zeros(1, 1, 1, 1), [2, 6, 8, 10])
        return aten.exp(aten.avg_pool2d_backward(gradient, pooled, [2, 2], [2, 2], [0, 0], False, True, None))

    assert strides_of_stored(function, "exp") == torch.empty(2, 6, 8, 10).to(memory_format=IMAGES).stride()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("is_scaled", [False, True])
def test_one_number_everywhere_does_not_decide_how_an_image_lies(is_scaled, dtype):
    """Torch's fake tensors of half precision let it; what the operator returns lies as the image."""

    def function(x):
        spread = aten.expand(aten.sum(x), [2, 3, 4, 5])
        spread = aten.div(spread, 120.0) if is_scaled else spread
        return aten.maximum(spread, aten.sin(x))

    assert strides_of_stored(function, "maximum", dtype) == (60, 1, 15, 3)


def test_one_number_beside_what_has_not_all_dimensions_keeps_the_shape():
    def function(x):
        spread = aten.expand(aten.sum(x), [2, 3, 4, 5])
        return aten.maximum(spread, aten.sum(x, [0, 2, 3], True)), aten.sin(x)

    assert strides_of_stored(function, "maximum", torch.bfloat16) == (60, 20, 5, 1)
