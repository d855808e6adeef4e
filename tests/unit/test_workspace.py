"""Scratch of convolutions, against what they really take."""

import functools

import pytest
import torch
from torch import fx
from torch._inductor.graph import GraphLowering
from torch.fx.experimental.proxy_tensor import make_fx

import rematpass
from rematpass.graph import workspace
from rematpass.graph.layouts import find_images, lays_out_images, relaid_bytes
from rematpass.graph.operators import Describer
from rematpass.graph.workspace import workspace_bytes
from tests.tracing import convolution_of, node_of

aten = torch.ops.aten
TOLERANCE_BYTES = 24_000


@pytest.mark.parametrize(
    ("channels_in", "channels_out", "kernel", "groups"),
    [(64, 64, 3, 1), (128, 40, 1, 1), (96, 96, 3, 2), (48, 48, 7, 48), (48, 48, 3, 48)],
)
@pytest.mark.parametrize("is_backward", [False, True])
def test_channels_last_convolutions_take_what_is_predicted(channels_in, channels_out, kernel, groups, is_backward):
    layout = torch.channels_last
    x = torch.randn(4, channels_in, 20, 20).to(memory_format=layout)
    weight = torch.randn(channels_out, channels_in // groups, kernel, kernel)
    padding, ones = [kernel // 2] * 2, [1, 1]

    def forward(x, weight):
        return aten.convolution(x, weight, None, ones, padding, ones, False, [0, 0], groups)

    def backward(x, weight, gradient):
        mask = [True, True, False]
        return aten.convolution_backward(gradient, x, weight, None, ones, padding, ones, False, [0, 0], groups, mask)

    # Inductor copies the weight before, which is counted with the op.
    relaid = weight.to(memory_format=layout) if kernel > 1 else weight
    gradient = torch.randn_like(forward(x, relaid))
    run = (lambda: backward(x, weight, gradient)) if is_backward else (lambda: forward(x, relaid))
    results = run() if is_backward else (run(),)
    returned = sum(r.untyped_storage().nbytes() for r in results if r is not None)
    node = convolution_of(backward, x, weight, gradient) if is_backward else convolution_of(forward, x, weight)
    predicted = workspace_bytes(node, is_relaid=True)
    if not is_backward and kernel > 1:
        predicted -= weight.nbytes
    measured = rematpass.measure_peak(run, device="cpu") - returned
    assert measured <= predicted + TOLERANCE_BYTES
    assert predicted <= 1.05 * measured + TOLERANCE_BYTES


@pytest.mark.parametrize(
    ("rows", "stride", "dilation"), [(2, 1, 1), (3, 1, 1), (3, 2, 1), (4, 2, 1), (8, 1, 2), (8, 2, 2)]
)
def test_gradients_of_depthwise_weights_take_what_is_predicted(rows, stride, dilation):
    x = torch.randn(4, 64, rows, 8).to(memory_format=torch.channels_last)
    weight = torch.randn(64, 1, 3, 3).to(memory_format=torch.channels_last)
    window = [stride] * 2, [dilation] * 2, [dilation] * 2
    gradient = torch.randn_like(aten.convolution(x, weight, None, *window, False, [0, 0], 64))

    def run(x, weight, gradient):
        return aten.convolution_backward(gradient, x, weight, None, *window, False, [0, 0], 64, [True, True, False])

    predicted = workspace_bytes(convolution_of(run, x, weight, gradient), is_relaid=True)
    measured = rematpass.measure_peak(lambda: run(x, weight, gradient), device="cpu") - x.nbytes - weight.nbytes
    assert measured <= predicted + TOLERANCE_BYTES
    assert predicted <= 1.05 * measured + TOLERANCE_BYTES


@pytest.mark.parametrize("is_backward", [False, True])
def test_some_channels_of_an_image_are_copied(is_backward):
    image = torch.randn(8, 64, 32, 32).to(memory_format=torch.channels_last)
    weight, ones, mask = torch.randn(32, 32, 1, 1), [1, 1], [True, True, False]
    whole, part = image[:, :32].contiguous(memory_format=torch.channels_last), image[:, 32:]

    def run(x, whole, weight):
        if is_backward:
            return aten.convolution_backward(x, whole, weight, None, ones, [0, 0], ones, False, [0, 0], 1, mask)
        return aten.convolution(x, weight, None, ones, [0, 0], ones, False, [0, 0], 1)

    predicted = [workspace_bytes(convolution_of(run, x, whole, weight), is_relaid=True) for x in (whole, part)]
    measured = [rematpass.measure_peak(lambda x=x: run(x, whole, weight), device="cpu") for x in (whole, part)]
    assert predicted[1] - predicted[0] == measured[1] - measured[0] == whole.nbytes


@pytest.mark.parametrize("is_backward", [False, True])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_lies_across_a_sequence_is_copied_for_its_convolution(device, is_backward):
    weight, ones, mask = torch.randn(32, 32, 3), [1], [True, True, False]
    rows, gradient = torch.randn(4, 128, 32), torch.randn(4, 128, 32)

    def run(rows, gradient, weight):
        x = rows.transpose(1, 2) if rows.shape[-1] == 32 else rows
        if is_backward:
            gradient = gradient.transpose(1, 2) if gradient.shape[-1] == 32 else gradient
            return aten.convolution_backward(gradient, x, weight, None, ones, ones, ones, False, [0], 1, mask)
        return aten.convolution(x, weight, None, ones, ones, ones, False, [0], 1)

    tensors = (rows, gradient), tuple(tensor.transpose(1, 2).contiguous() for tensor in (rows, gradient))
    across, along = (workspace_bytes(convolution_of(run, *both, weight), device) for both in tensors)
    assert across - along == (1 + is_backward) * rows.nbytes


@pytest.mark.parametrize("is_transposed", [False, True])
@pytest.mark.parametrize("channels", [1, 2, 12])
def test_waves_take_what_is_predicted(channels, is_transposed):
    wave, weight = torch.randn(4, channels, 1364), torch.randn(16, channels, 8)
    settings = None, [4], [0], [1], is_transposed, [0], 1

    def run(x, weight):
        return aten.convolution(x, weight, *settings)

    def run_backward(gradient, x, weight):
        return aten.convolution_backward(gradient, x, weight, *settings, [True, True, False])

    x = torch.randn(4, 16, 340) if is_transposed else wave
    gradient = torch.randn_like(run(x, weight))
    for function, arguments in ((run, (x, weight)), (run_backward, (gradient, x, weight))):
        made = function(*arguments)
        returned = sum(r.nbytes for r in (made if isinstance(made, tuple) else (made,)) if r is not None)
        del made
        measured = rematpass.measure_peak(lambda f=function, a=arguments: f(*a), device="cpu") - returned
        assert workspace_bytes(convolution_of(function, *arguments)) == pytest.approx(measured, rel=0.01)


def test_the_gradient_of_attention_is_copied_where_it_lies_head_by_head():
    query, key, value = (torch.randn(2, 64, 4, 16).transpose(1, 2) for _ in range(3))
    attend = aten._scaled_dot_product_flash_attention_for_cpu
    out, logsumexp = attend(query, key, value)

    def run(gradient, query, key, value, out, logsumexp):
        return attend_backward(gradient, query, key, value, out, logsumexp, 0.0, False)

    attend_backward = aten._scaled_dot_product_flash_attention_for_cpu_backward
    lying = torch.randn_like(out), torch.randn(out.shape)
    assert lying[0].transpose(1, 2).is_contiguous()
    rest = (query, key, value, out, logsumexp)
    graphs = [make_fx(run, tracing_mode="fake")(gradient, *rest).graph for gradient in lying]
    nodes = [next(n for n in graph.nodes if n.target is attend_backward.default) for graph in graphs]
    predicted = [workspace_bytes(node) for node in nodes]
    measured = [rematpass.measure_peak(lambda g=g: run(g, *rest), device="cpu") for g in lying]
    assert predicted[1] - predicted[0] == measured[1] - measured[0] == out.nbytes


@pytest.mark.parametrize(
    ("length", "keys", "width", "forward", "backward"),
    [
        (256, 256, 16, 205_824, 464_772),
        (20, 256, 16, 64_320, 192_212),
        (20, 20, 16, 7_680, 23_764),
        (100, 100, 16, 43_008, 113_412),
        (144, 144, 16, 59_904, 155_396),
        (200, 200, 64, 187_392, 402_436),
        (512, 512, 64, 427_008, 1_001_476),
        (1024, 128, 64, 528_384, 953_092),
    ],
)
def test_attention_in_half_precision_takes_its_scores_again_and_copies(
    length, keys, width, forward, backward, monkeypatch
):
    """Bytes that bfloat16 took on an Intel Xeon with two threads (torch 2.13), the gradient position by position.

    One without units for matrices, as is estimated where it cannot be run.
    """
    monkeypatch.setattr(workspace, "tried_bytes", lambda *_: None)
    monkeypatch.setattr(workspace, "num_threads", lambda: 2)
    query, key = (torch.empty(2, n, 4, width, dtype=torch.bfloat16).transpose(1, 2) for n in (length, keys))
    attend = aten._scaled_dot_product_flash_attention_for_cpu
    assert workspace_bytes(node_of(attend.__name__, lambda *read: attend(*read)[0], query, key, key)) == forward

    def run(gradient, query, key, logsumexp):
        return attend_backward(gradient, query, key, key, query, logsumexp, 0.0, False)[0]

    attend_backward = aten._scaled_dot_product_flash_attention_for_cpu_backward
    read = (query, query, key, torch.empty(2, 4, length))
    assert 0 <= workspace_bytes(node_of(attend_backward.__name__, run, *read)) - backward <= 132


def test_a_batch_is_laid_out_anew_unless_it_is_channels_last():
    def convolve(x, weight):
        return aten.convolution(x, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)

    images, weight = torch.empty(2, 3, 8, 8), torch.empty(4, 3, 3, 3)
    assert relaid_bytes(convolution_of(convolve, images, weight)) == 4 * 2 * 3 * 64
    assert relaid_bytes(convolution_of(convolve, images.to(memory_format=torch.channels_last), weight)) == 0
    assert relaid_bytes(convolution_of(lambda x, w: convolve(x.sin(), w), images, weight)) == 0
    assert relaid_bytes(convolution_of(lambda x: x.sin().exp() + convolve(x, x), torch.empty(3, 3, 3, 3))) > 0


FOURIER = [
    (lambda x: aten._fft_r2c(x, [1, 2], 0, True), torch.float32),
    (lambda x: aten._fft_c2c(x, [1, 2], 0, True), torch.complex64),
    (lambda x: aten._fft_c2c(x, [1], 0, True), torch.complex64),
    (lambda x: aten._fft_c2r(x, [2], 2, 32), torch.complex64),
    (lambda x: aten._fft_c2r(x, [1, 2], 2, 32), torch.complex64),
]


@pytest.mark.parametrize(("transform", "dtype"), FOURIER, ids=["r2c", "c2c", "c2c_outer", "c2r", "c2r_several"])
def test_fourier_transforms_take_what_is_predicted(transform, dtype):
    x = torch.randn(16, 32, 17, dtype=dtype)
    graph = make_fx(transform, tracing_mode="fake")(x)
    node = next(node for node in graph.graph.nodes if "fft" in str(node.target))
    measured = rematpass.measure_peak(lambda: transform(x), device="cpu") - transform(x).untyped_storage().nbytes()
    predicted = workspace_bytes(node)
    assert 0.9 * measured <= predicted <= 1.05 * measured


def test_the_gradient_of_a_pooling_copies_indices_of_images():
    def scatter(images, weight, values, places):
        hidden = aten.convolution(images, weight, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
        flat = aten.view(places, [8, 64])
        return aten.scatter_add(torch.zeros(8, 64), 1, flat, aten.view(values, [8, 64])) + hidden.sum()

    def predicted(function, *tensors):
        graph = make_fx(function, tracing_mode="fake")(*tensors)
        node = next(node for node in graph.graph.nodes if "scatter_add" in str(node.target))
        return workspace_bytes(node, is_relaid=True)

    images, weight = torch.randn(2, 4, 8, 8), torch.randn(4, 4, 1, 1)
    places = torch.zeros(2, 4, 8, 8, dtype=torch.int64)
    assert predicted(scatter, images, weight, images, places) == places.nbytes
    generated = predicted(lambda *read: scatter(*read[:3], read[3] + 1), images, weight, images, places)
    assert generated == images.nbytes  # indices that Inductor computes lie as they are read
    flat = torch.zeros(8, 64, dtype=torch.int64)
    assert predicted(lambda x, index: aten.scatter_add(x, 1, index, x), torch.zeros(8, 64), flat) == 0


OPTIONS = [1, 1], [1, 1], [1, 1], False, [0, 0], 1


def convolve(image, weight):
    return aten.convolution(image, weight, None, *OPTIONS)


def forward_nodes(*weights, groups=1):
    """Convolutions one after another, of images of 8 x 8."""

    def convolve(x, *weights):
        for weight in weights:
            x = aten.convolution(x, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], groups)
        return x

    tensors = [torch.empty(2, weights[0][1] * groups, 8, 8), *(torch.empty(*weight, 3, 3) for weight in weights)]
    return list(make_fx(convolve, tracing_mode="fake")(*tensors).graph.nodes)


def test_images_are_what_convolutions_read_and_return_unturned():
    def step(images, weight):
        def convolve(x):
            return aten.convolution(x, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)

        hidden = aten.relu(convolve(aten.sin(images)))
        turned = aten.exp(aten.permute(hidden, [0, 2, 3, 1]))
        scaled = turned * aten.cos(aten.mean(turned, [1, 2, 3], True))
        return convolve(aten.permute(scaled, [0, 3, 1, 2])) * aten.tanh(weight.sum())

    graph = make_fx(step, tracing_mode="fake")(torch.empty(2, 4, 8, 8), torch.empty(4, 4, 3, 3)).graph
    forward = list(graph.nodes)
    found = {node.name for node in find_images(forward)}
    assert found == {"sin", "convolution", "relu", "permute_1", "convolution_1", "mul_1"}
    assert not find_images([node for node in forward if "convolution" not in node.name])


class TestWhatAGpuLaysOutChannelsLast:
    """Inductor's rules (`GraphLowering.decide_layout_opt`)."""

    def test_as_inductor_decides(self, monkeypatch):
        monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)  # asked as for a GPU
        decide = GraphLowering.decide_layout_opt
        cases = [
            (forward_nodes((128, 64), (128, 128)), True),
            (forward_nodes((64, 64), (64, 64)), False),  # all small
            (forward_nodes((128, 64), (48, 128)), False),  # one has half as many channels after it
            (forward_nodes((128, 1), groups=128), True),
            (forward_nodes((128, 2), groups=64), False),
        ]
        for nodes, expected in cases:
            assert lays_out_images(nodes, "cuda") is expected
            assert decide(fx.GraphModule({}, nodes[0].graph), is_inference=False) is expected

    def test_a_weight_is_copied_for_its_convolution(self):
        nodes = forward_nodes((128, 64))
        node = next(n for n in nodes if "convolution" in str(n.target))
        assert workspace_bytes(node, "cuda", is_relaid=True) == 4 * 128 * 64 * 9
        assert workspace_bytes(node, "cuda") == 0

    def test_what_lies_so_by_itself_makes_the_rest_be_copied(self):
        """As cuDNN has it, and Inductor for it: tokens shown as an image, a model laid out so by its user."""
        rows, last = torch.contiguous_format, torch.channels_last
        image_bytes, weight_bytes = 2 * 6 * 64 * 4, 8 * 6 * 9 * 4
        copied = {(rows, rows): 0, (last, rows): weight_bytes, (rows, last): image_bytes, (last, last): 0}
        for (image, weight), expected in copied.items():
            tensors = torch.empty(2, 6, 8, 8).to(memory_format=image), torch.empty(8, 6, 3, 3).to(memory_format=weight)
            assert workspace_bytes(convolution_of(convolve, *tensors), "cuda") == expected
        gradient, image = torch.empty(2, 8, 8, 8), torch.empty(2, 6, 8, 8).to(memory_format=last)
        given = gradient, image, torch.empty(8, 6, 3, 3)
        node = convolution_of(
            lambda *given: aten.convolution_backward(*given, None, *OPTIONS, [True, True, False]), *given
        )
        assert workspace_bytes(node, "cuda") == gradient.nbytes + weight_bytes

    def test_where_it_works_in_rows_views_that_are_not_are_copied(self):
        """Gradients of heads whose results were turned and joined; part of one that lies in rows is shown as it is."""

        def backward(joined, image, weight, first):
            shown = joined[:, first : first + 64].view(2, 8, 8, 8).permute(0, 3, 1, 2)
            return aten.convolution_backward(shown, image, weight, None, *OPTIONS, [True, True, False])

        image, weight = torch.empty(2, 6, 8, 8), torch.empty(8, 6, 3, 3)
        node = convolution_of(functools.partial(backward, first=16), torch.empty(2, 80, 8), image, weight)
        assert workspace_bytes(node, "cuda") == 2 * 8 * 64 * 4
        shown = convolution_of(lambda x, w: convolve(x.view(2, 6, 8, 8), w), torch.empty(2, 6, 64), weight)
        assert workspace_bytes(shown, "cuda") == 0


def test_a_product_of_a_flattened_image_is_not_like_one_of_other_rows():
    def step(image, weight, rows, other):
        return convolve(image, weight).view(2, -1) @ other, rows.view(2, -1) @ other

    tensors = torch.empty(2, 3, 8, 8), torch.empty(4, 3, 3, 3), torch.empty(2, 4, 8, 8), torch.empty(256, 5)
    graph = make_fx(step, tracing_mode="fake")(*tensors).graph
    describer = Describer("cpu", {}, is_relaid=True)
    described = [(describer.describe(node, node.all_input_nodes)[0], node) for node in graph.nodes]
    of_image, of_rows = (known.workspace_bytes for known, node in described if "mm" in str(node.target))
    returned, flattened = 2 * 5 * 4, 2 * 256 * 4
    assert (of_image, of_rows) == (flattened - returned, 0)  # what was convolved is gone when the product is there


def test_the_gradient_of_sampling_copies_what_it_is_handed():
    image, grid = torch.randn(2, 16, 64, 64).to(memory_format=torch.channels_last), torch.rand(2, 32, 32, 2)
    gradient = torch.randn(2, 16, 32, 32).to(memory_format=torch.channels_last)

    def sample(gradient, image, grid):
        return aten.grid_sampler_2d_backward(gradient, image, grid, 0, 0, False, [True, True])

    graph = make_fx(sample, tracing_mode="fake")(gradient, image, grid)
    node = next(node for node in graph.graph.nodes if "grid_sampler" in str(node.target))
    returned = sum(result.nbytes for result in sample(gradient, image, grid))
    measured = rematpass.measure_peak(lambda: sample(gradient, image, grid), device="cpu") - returned
    assert workspace_bytes(node, is_relaid=True) == pytest.approx(measured, rel=0.01)
    assert workspace_bytes(node) == 0


LINEAR = {
    "inv": (aten.linalg_inv_ex, lambda m: (m,)),
    "qr": (aten.linalg_qr, lambda m: (m,)),
    "householder": (aten.linalg_householder_product, lambda m: (m, m[..., 0, :].contiguous())),
    "eigh": (aten._linalg_eigh, lambda m: (m @ m.mT,)),
    "svd": (aten._linalg_svd, lambda m: (m,)),
    "cholesky_solve": (aten.cholesky_solve, lambda m: (m, m)),
    "matrix_exp": (aten.linalg_matrix_exp, lambda m: (m / 100,)),
}


@pytest.mark.parametrize("shape", [(128, 128), (8, 64, 64)])
@pytest.mark.parametrize("name", LINEAR)
def test_linear_algebra_takes_what_is_predicted(name, shape):
    function, arguments_of = LINEAR[name]
    torch.manual_seed(0)
    arguments = arguments_of(torch.randn(shape))
    graph = make_fx(function, tracing_mode="fake")(*arguments)
    node = next(n for n in graph.graph.nodes if n.op == "call_function" and "getitem" not in str(n.target))
    results = function(*arguments)
    returned = sum(r.nbytes for r in (results if isinstance(results, tuple) else (results,)))
    measured = rematpass.measure_peak(lambda: function(*arguments), device="cpu") - returned
    assert measured <= workspace_bytes(node) + TOLERANCE_BYTES
    assert workspace_bytes(node) <= 1.6 * measured + TOLERANCE_BYTES
