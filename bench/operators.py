"""Small functions, each around operators that Inductor does not generate.

In: nothing. Out: `FUNCTIONS`: per name, a function of tensors and the shapes of its float32 arguments. Never runs one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (torch's own custom)

Function = tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]

IMAGE, VOLUME, ROWS, MATRICES, SQUARE = (2, 16, 32, 32), (2, 16, 8, 32, 32), (64, 4096), (8, 64, 64), (8, 32, 32)


def _definite(x: Tensor) -> Tensor:
    return x @ x.mT + 100 * torch.eye(x.shape[-1])


def _spectrum(x: Tensor) -> Tensor:
    return torch.stft(x, 256, 64, window=torch.hann_window(256), return_complex=True)


def _turned(x: Tensor, angle: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)).flatten(-2)


def _places(count: int, below: int) -> Tensor:
    return torch.arange(count) % below


FUNCTIONS: dict[str, Function] = {
    # Images and volumes.
    "local_response_norm": (lambda x: F.local_response_norm(x, 5), (IMAGE,)),
    "avg_pool3d": (lambda x: F.avg_pool3d(x, 3, 2, 1), (VOLUME,)),
    "max_pool3d": (lambda x: F.max_pool3d(x, 3, 2, 1), (VOLUME,)),
    "adaptive_max_pool3d": (lambda x: F.adaptive_max_pool3d(x, (2, 4, 4)), (VOLUME,)),
    "adaptive_avg_pool2d": (lambda x: F.adaptive_avg_pool2d(x, (5, 5)), (IMAGE,)),
    "fractional_max_pool2d": (lambda x: F.fractional_max_pool2d(x, 3, output_size=10), (IMAGE,)),
    "max_unpool2d": (lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2), (IMAGE,)),
    "trilinear": (lambda x: F.interpolate(x, scale_factor=2, mode="trilinear"), ((2, 8, 4, 16, 16),)),
    "bicubic": (lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"), (IMAGE,)),
    "antialiased": (lambda x: F.interpolate(x, size=(12, 12), mode="bilinear", antialias=True), (IMAGE,)),
    "grid_sample_3d": (lambda x, grid: F.grid_sample(x, grid.tanh()), ((2, 8, 8, 16, 16), (2, 8, 16, 16, 3))),
    "grid_sample_bicubic": (lambda x, grid: F.grid_sample(x, grid.tanh(), "bicubic"), (IMAGE, (2, 32, 32, 2))),
    "unfold": (lambda x: F.unfold(x, 3, padding=1), (IMAGE,)),
    "fold": (lambda x: F.fold(x, (32, 32), 3, padding=1), ((2, 144, 1024),)),
    "pad_reflect": (lambda x: F.pad(x, (1, 1, 1, 1, 1, 1), "reflect"), (VOLUME,)),
    "conv1d": (lambda x, w: F.conv1d(x, w, padding=1), ((4, 32, 400), (48, 32, 3))),
    "conv1d_groups": (lambda x, w: F.conv1d(x, w, padding=2, groups=8), ((4, 32, 400), (32, 4, 5))),
    "conv1d_single": (lambda x, w: F.conv1d(x, w, padding=1), ((1, 16, 400), (32, 16, 3))),
    "conv_transpose1d": (lambda x, w: F.conv_transpose1d(x, w, stride=2), ((4, 32, 400), (32, 16, 4))),
    "conv2d": (lambda x, w: F.conv2d(x, w, padding=1), (IMAGE, (32, 16, 3, 3))),
    "conv3d": (lambda x, w: F.conv3d(x, w, padding=1), ((2, 16, 8, 16, 16), (32, 16, 3, 3, 3))),
    "conv3d_single": (lambda x, w: F.conv3d(x, w, padding=1), ((1, 16, 8, 16, 16), (32, 16, 3, 3, 3))),
    "conv3d_depthwise": (lambda x, w: F.conv3d(x, w, padding=1, groups=32), ((2, 32, 8, 16, 16), (32, 1, 3, 3, 3))),
    "conv3d_patches": (lambda x, w: F.conv3d(x, w, stride=(2, 8, 8)), ((2, 3, 4, 48, 48), (96, 3, 2, 8, 8))),
    "conv_transpose3d": (lambda x, w: F.conv_transpose3d(x, w, stride=2), ((2, 32, 4, 8, 8), (32, 16, 2, 2, 2))),
    # Complex numbers.
    "rfft_abs": (lambda x: torch.fft.rfft(x).abs(), ((16, 4096),)),
    "rfft2": (lambda x: torch.fft.irfft2(torch.fft.rfft2(x)), ((4, 16, 32, 32),)),
    "fftn": (lambda x: torch.fft.fftn(x, dim=(1, 2, 3)).real, ((4, 16, 16, 16),)),
    "stft_abs": (lambda x: _spectrum(x).abs(), ((8, 8192),)),
    "stft_angle": (lambda x: _spectrum(x).angle(), ((8, 8192),)),
    "rotary": (_turned, ((4, 8, 128, 32), (128, 16))),
    "phases": (lambda x: torch.exp(1j * x).real, ((64, 1024),)),
    "complex_matmul": (lambda x: (torch.complex(x, x) @ torch.complex(x, -x).mT).abs(), (MATRICES,)),
    "complex_plus_real": (lambda x, y: (torch.complex(x, y) + x).abs(), ((64, 1024), (64, 1024))),
    # Rows, places, random choices.
    "cdist": (torch.cdist, ((4, 300, 32), (4, 200, 32))),
    "pdist": (F.pdist, ((300, 32),)),
    "logcumsumexp": (lambda x: x.logcumsumexp(1), (ROWS,)),
    "cummax": (lambda x: x.cummax(1).values, (ROWS,)),
    "sort": (lambda x: x.sort(-1).values, (ROWS,)),
    "topk": (lambda x: x.topk(8, -1).values, (ROWS,)),
    "kthvalue": (lambda x: x.kthvalue(8, -1).values, (ROWS,)),
    "median": (lambda x: x.median(-1).values, (ROWS,)),
    "quantile": (lambda x: x.quantile(0.3, -1), (ROWS,)),
    "scatter_reduce": (lambda x: torch.zeros(64, 512).scatter_reduce(1, x.long().abs() % 512, x, "amax"), (ROWS,)),
    "index_add": (lambda x: torch.zeros(128, 64).index_add(0, _places(4096, 128), x), ((4096, 64),)),
    "gather": (lambda x: x.gather(1, torch.zeros(64, 2000, dtype=torch.long)), (ROWS,)),
    "masked_scatter": (lambda x, y: x.masked_scatter(torch.ones(64, 4096, dtype=torch.bool), y), (ROWS, ROWS)),
    "nonzero_static": (lambda x: x * torch.nonzero_static(x.detach() > 0, size=1).sum(), (ROWS,)),
    "multinomial": (lambda x: x.gather(1, torch.multinomial(x.softmax(-1).detach(), 4)), (ROWS,)),
    "embedding_bag": (lambda w: F.embedding_bag(_places(4096, 500), w, _places(4096, 4096)[::16]), ((500, 64),)),
    # Products and matrices.
    "bilinear": (F.bilinear, ((256, 32), (256, 24), (16, 32, 24))),
    "attention": (lambda x: F.scaled_dot_product_attention(x, x, x), ((4, 8, 128, 32),)),
    "attention_masked": (lambda x, m: F.scaled_dot_product_attention(x, x, x, m), ((4, 8, 128, 32), (4, 1, 128, 128))),
    "baddbmm": (torch.baddbmm, ((8, 128, 128), (8, 128, 64), (8, 64, 128))),
    "linear": (F.linear, ((4, 400, 256), (512, 256), (512,))),
    "det": (torch.linalg.det, (MATRICES,)),
    "inv": (torch.linalg.inv, (MATRICES,)),
    "solve": (torch.linalg.solve, (MATRICES, (8, 64, 16))),
    "cholesky": (lambda x: torch.linalg.cholesky(_definite(x)), (MATRICES,)),
    "cholesky_solve": (lambda x, y: torch.cholesky_solve(y, torch.linalg.cholesky(_definite(x))), (SQUARE, (8, 32, 4))),
    "eigh": (lambda x: torch.linalg.eigh(x + x.mT)[0], (MATRICES,)),
    "eig": (lambda x: torch.linalg.eig(x)[1].abs(), (SQUARE,)),
    "svdvals": (torch.linalg.svdvals, (MATRICES,)),
    "qr": (lambda x: torch.linalg.qr(x)[0], (MATRICES,)),
    "pinv": (torch.linalg.pinv, ((16, 32, 24),)),
    "matrix_exp": (lambda x: torch.linalg.matrix_exp(x * 0.1), ((8, 48, 48),)),
}
