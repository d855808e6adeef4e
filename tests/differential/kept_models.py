"""Small models of which Inductor by itself takes more memory than planned, each for a reason of its own."""

import torch
from torch import nn
from torch.nn import functional


class Pieces(nn.Module):
    """A loop over pieces of one tensor: its gradient is a sum of as many scattered terms."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(64, 64)
        self.step = nn.Linear(64, 64)

    def forward(self, x):
        embedded = self.embed(x).tanh()
        h = x[0]
        for i in range(len(x)):
            h = torch.tanh(self.step(h + embedded[i]))
        return h.square().mean()


class GraphConvolution(nn.Module):
    """Sums over edges: what they are added into cannot be written over, so one kernel more holds them longer."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 64)
        self.head = nn.Linear(64, 4)
        self.register_buffer("edges", torch.stack([torch.arange(1024) % 512, torch.arange(1024) * 7 % 512]))

    def forward(self, x):
        h = self.first(x)
        into, source = self.edges
        total = torch.zeros_like(h).index_add(0, into, h[source])
        weight = torch.zeros(len(x), 1).index_add(0, into, h[source].exp().sum(1, keepdim=True))
        return self.head(functional.elu(total / (1 + weight))).square().mean()


class SharedBias(nn.Module):
    """All layers add one bias to the scores of a few sequences: its gradient is a sum over these."""

    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(96, 96))
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            h = layer(x)
            x = x + torch.softmax(h @ h.transpose(1, 2) + self.bias, -1) @ h
        return x.square().mean()


class Largest(nn.Module):
    """Layers that return the largest of four results each, and a gradient that asks which one it was."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 256) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x).view(len(x), 64, 4).max(-1).values
        return x.square().mean()


class Patches(nn.Module):
    """The convolution reads its images laid out anew: the backward is handed the copy in place of the images."""

    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(3, 32, 8, 8)
        self.norms = nn.ModuleList(nn.LayerNorm(32) for _ in range(2))
        self.mixes = nn.ModuleList(nn.Linear(32, 32) for _ in range(2))
        self.scale = nn.Parameter(torch.ones(32))

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        for norm, mix in zip(self.norms, self.mixes, strict=True):
            x = x + self.scale * mix(norm(x))
        return x.square().mean()


class Sampled(nn.Module):
    """The gradient of `grid_sample` is laid out otherwise than the convolutions around it want theirs."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.flow, self.last = nn.Conv2d(16, 2, 3, padding=1), nn.Conv2d(16, 3, 3, padding=1)

    def forward(self, x):
        h = functional.silu(self.second(functional.silu(self.first(x))))
        shifted = functional.affine_grid(torch.eye(2, 3).expand(len(x), 2, 3), list(h.shape), align_corners=False)
        grid = shifted + 0.1 * torch.tanh(self.flow(h)).permute(0, 2, 3, 1)
        return self.last(functional.grid_sample(h, grid, align_corners=False)).square().mean()


class Heads(nn.Module):
    """Attention over images: heads are parts of their channels."""

    def __init__(self):
        super().__init__()
        self.start, self.mix, self.end = nn.Conv2d(3, 64, 3, padding=1), nn.Conv2d(64, 192, 1), nn.Conv2d(64, 64, 1)

    def forward(self, x):
        h = functional.silu(self.start(x))
        parts = self.mix(h).view(len(x), 3, 4, 16, -1).transpose(-1, -2).unbind(1)
        seen = functional.scaled_dot_product_attention(*parts).transpose(-1, -2).reshape(h.shape)
        return (h + self.end(seen)).square().mean()


class Modulated(nn.Module):
    """Weights of a convolution differ from image to image: images are folded into one, a group each."""

    def __init__(self):
        super().__init__()
        self.start = nn.Parameter(torch.randn(1, 16, 16, 16))
        self.scales = nn.ModuleList(nn.Linear(8, 16) for _ in range(2))
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(16, 16, 3, 3) / 12) for _ in range(2))

    def forward(self, z):
        h = self.start.expand(len(z), -1, -1, -1)
        for scale, weight in zip(self.scales, self.weights, strict=True):
            own = (weight * scale(z)[:, None, :, None, None]).flatten(0, 1)
            folded = functional.conv2d(h.reshape(1, -1, *h.shape[2:]), own, padding=1, groups=len(z))
            h = functional.leaky_relu(folded.view(len(z), 16, *h.shape[2:]), 0.2)
            h = functional.interpolate(h, scale_factor=2.0, mode="bilinear", align_corners=False)
        return h.square().mean()


class Spread(nn.Module):
    """Steps of a state-space model: an expensive function that is repeated for each of two states."""

    def __init__(self):
        super().__init__()
        self.steps = nn.ModuleList(nn.Linear(64, 64) for _ in range(2))
        self.states = nn.ModuleList(nn.Linear(64, 4) for _ in range(2))

    def forward(self, x):
        for step, states in zip(self.steps, self.states, strict=True):
            into, out = states(x).chunk(2, -1)
            x = x + (functional.softplus(step(x)).unsqueeze(-1) * into.unsqueeze(2) @ out.unsqueeze(-1)).squeeze(-1)
        return x.square().mean()


class Totals(nn.Module):
    """Running totals of outer products: torch adds them up, also backwards for the gradient."""

    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(32, 96) for _ in range(3))

    def forward(self, x):
        for part in self.parts:
            query, key, value = part(x).chunk(3, -1)
            seen = torch.einsum("bti,btj->btij", functional.elu(key) + 1, value).cumsum(1)
            x = x + torch.einsum("bti,btij->btj", functional.elu(query) + 1, seen)
        return x.square().mean()


class Sketched(nn.Module):
    """Classes of all elements, from a coarse image: the gradient of each goes to four coarse ones."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 16, 4, 4), nn.Conv2d(16, 8, 1)

    def forward(self, x):
        scores = self.last(functional.gelu(self.first(x)))
        fine = functional.interpolate(scores, scale_factor=4, mode="bilinear")
        return functional.cross_entropy(fine, x[:, 0].abs().clamp(max=7).long())


class Enlarged(nn.Module):
    """Each element is read through one list of places twice, for its row and for its column."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 3, 3, padding=1)
        self.inner, self.outer = nn.GroupNorm(4, 16), nn.GroupNorm(4, 16)

    def forward(self, x):
        h = functional.silu(self.inner(self.first(x)))
        return self.last(functional.silu(self.outer(functional.interpolate(h, scale_factor=2)))).square().mean()


class Rolled(nn.Module):
    """Windows that are shifted: what is read elsewhere than it is written cannot be written over."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(torch.roll(layer(x), 32, 1)) + 1
        return x.square().mean()


class Padded(nn.Module):
    """Instance normalisation folds batch and channels, which are not next to each other in an image's memory."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 16, 3), nn.Conv2d(16, 16, 3)
        self.norm = nn.InstanceNorm2d(16, affine=True)

    def forward(self, x):
        x = functional.relu(self.norm(self.first(functional.pad(x, (1, 1, 1, 1), mode="reflect"))))
        for _ in range(2):
            x = x + functional.relu(self.norm(self.second(functional.pad(x, (1, 1, 1, 1), mode="reflect"))))
        return x.square().mean()


class Sharpened(nn.Module):
    """The gradient of one image is a sum of sixteen scattered ones, none of which can be written over."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 3, 3, padding=1)

    def forward(self, x):
        h = functional.silu(self.first(x))
        return self.last(functional.silu(functional.interpolate(h, scale_factor=2, mode="bicubic"))).square().mean()


class Windows(nn.Module):
    """A Swin transformer: what is stored between its patches and its loss has its channels last in the shape."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 32, 4, 4)
        self.norms = nn.ModuleList(nn.LayerNorm(32) for _ in range(2))
        self.ups, self.downs = (nn.ModuleList(nn.Linear(*pair) for _ in range(2)) for pair in ((32, 96), (96, 32)))

    def forward(self, x):
        x = self.patches(x).permute(0, 2, 3, 1)
        for norm, up, down in zip(self.norms, self.ups, self.downs, strict=True):
            h = norm(x).view(2, 4, 8, 4, 8, 32).permute(0, 1, 3, 2, 4, 5).reshape(-1, 64, 32)
            x = x + down(functional.gelu(up(h))).view(2, 4, 4, 8, 8, 32).permute(0, 1, 3, 2, 4, 5).reshape(x.shape)
            x = x + down(functional.gelu(up(norm(x))))
        return x.square().mean()


class Joined(nn.Module):
    """A DenseNet: what a convolution is handed in the backward are some channels of a gradient, which it copies."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(16 + 8 * i) for i in range(3))
        self.grows = nn.ModuleList(nn.Conv2d(16 + 8 * i, 8, 3, padding=1) for i in range(3))

    def forward(self, x):
        features = [self.first(x)]
        for norm, grow in zip(self.norms, self.grows, strict=True):
            features.append(grow(functional.relu(norm(torch.cat(features, 1)))))
        return torch.cat(features, 1).square().mean()


class Pools(nn.Module):
    """What a pooling hands back lies in rows, and so does what is made of it: it cannot take an image's place."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for channels in (16, 32))

    def forward(self, x):
        for convolve, norm in zip((self.first, self.second), self.norms, strict=True):
            x = functional.max_pool2d(functional.gelu(norm(convolve(x))), 2)
        return x.square().mean()


class Averages(nn.Module):
    """Means over windows: what they are taken of is left where it is, their gradient is computed in its readers."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(width, 2 * width, 3, padding=1) for width in (4, 8, 16))
        self.norms = nn.ModuleList(nn.BatchNorm2d(2 * width) for width in (4, 8, 16))

    def forward(self, x):
        for convolve, norm in zip(self.layers, self.norms, strict=True):
            x = functional.avg_pool2d(functional.silu(norm(convolve(x))), 2)
        return x.square().mean()


class Transition(nn.Module):
    """A convolution, then a mean over windows, as DenseNet halves its images: nobody needs the large one again."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(8, 8, 1) for _ in range(3))

    def forward(self, x):
        for convolve in self.layers:
            x = functional.avg_pool2d(convolve(x), 2)
        return x.square().mean()


class Excited(nn.Module):
    """Squeeze and excitation: gates, a number for a channel, beside images that lie channels last."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(width, 16, 3, padding=1) for width in (3, 16, 16))
        self.norms = nn.ModuleList(nn.BatchNorm2d(16) for _ in range(3))
        self.gates = nn.ModuleList(nn.Sequential(nn.Linear(16, 4), nn.ReLU(), nn.Linear(4, 16)) for _ in range(3))

    def forward(self, x):
        for convolve, norm, gate in zip(self.layers, self.norms, self.gates, strict=True):
            x = functional.silu(norm(convolve(x)))
            x = x * torch.sigmoid(gate(x.mean((2, 3))))[:, :, None, None]
        return x.square().mean()


class Dilated(nn.Module):
    """Convolutions over one dimension with wide padding, which a CPU unfolds what they read for."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv1d(64, 64, 3, padding=gap, dilation=gap) for gap in (4, 8, 16))

    def forward(self, x):
        for convolve in self.layers:
            x = x + torch.tanh(convolve(x))
        return x.square().mean()


class Filters(nn.Module):
    """Gated convolutions between products read along a sequence what lies along channels."""

    def __init__(self):
        super().__init__()
        self.widen = nn.ModuleList(nn.Linear(48, 96) for _ in range(3))
        self.filters = nn.ModuleList(nn.Conv1d(96, 96, 3, padding=2, groups=96) for _ in range(3))
        self.last = nn.ModuleList(nn.Linear(48, 48) for _ in range(3))

    def forward(self, x):
        length = x.shape[1]
        for widen, convolve, last in zip(self.widen, self.filters, self.last, strict=True):
            gate, value = convolve(widen(x).transpose(1, 2))[..., :length].chunk(2, 1)
            x = x + last((gate * value).transpose(1, 2))
        return x.square().mean()


class Crossed(nn.Module):
    """Rows of two tables are multiplied by layers of both; what was joined is not written over."""

    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(64, 48) for _ in range(2))
        self.layers = nn.ModuleList(nn.Linear(96, 96) for _ in range(3))
        self.head = nn.Sequential(nn.Linear(96, 128), nn.SELU(), nn.Linear(128, 32))

    def forward(self, x):
        rows = x.argmax(1)
        z = joined = torch.cat([table(rows) for table in self.tables], -1)
        for layer in self.layers:
            z = joined * layer(z) + z
        return self.head(z).square().mean()


class Beside(nn.Module):
    """Convolutions along a sequence beside products: the last gradient is made of turned rows, and read in rows."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(64, 64)
        self.layers = nn.ModuleList(nn.Conv1d(64, 64, 1) for _ in range(4))

    def forward(self, x):
        for first, second in zip(self.layers[::2], self.layers[1::2], strict=True):
            x = torch.tanh(self.mix(x)).transpose(1, 2)
            x = (x + second(functional.silu(first(x)))).transpose(1, 2)
        return x.transpose(1, 2).square().mean()
