"""What a thread unfolds at once of a convolution that oneDNN computes as a matrix product.

In: sizes of a convolution, threads, the cache of a core. Out: elements. Never looks at a tensor.

oneDNN (3.12, `init_conf` in `gemm_convolution_utils.cpp`, forward, channels first) tries blocks of channels read,
channels returned and positions, and takes those that it estimates to be fastest. The estimate is its, weights included.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

# In which multiples kernels have channels returned; positions that are tried; registers of them that fit best.
FEW_OUTPUTS = 8
POSITIONS = 48
REGISTERS = 3
# What does not fit into the cache is so much dearer; so is unfolding with strides.
OUTSIDE_CACHE = 20
STRIDED = 8
# Weight of an uneven share for each thread, and of the size of the product.
UNEVEN_WEIGHT = 8
SIZE_WEIGHT = 0.5


@dataclass(frozen=True)
class Unfolding:
    """A convolution as a matrix product.

    Attributes:
        batch: images.
        inputs, outputs: channels read and returned.
        area: elements of the kernel per pair of channels.
        stride: product of the strides.
        positions: of one result.
        threads: that compute it.
        cache: elements that fit into the cache of a core.
        vector: elements of a register.
    """

    batch: int
    inputs: int
    outputs: int
    area: int
    stride: int
    positions: int
    threads: int
    cache: int
    vector: int

    def elements(self) -> int:
        """Unfolded by one thread at once."""
        every = self.batch * self.positions
        if every < self.threads * self.vector and self.positions >= self.batch:
            return self.inputs * self.area * self.positions
        best: _Block | None = None
        for over in range(1, self.threads + 1):
            most = _split(self.outputs, over), _split(every, self.threads // over)
            best = max(filter(None, (best, self._block(over, *most))), key=_Block.speed)
            if (best.inputs, best.outputs, best.positions) != (self.inputs, *most):
                best = max((best, *self._tried(over, *most)), key=_Block.speed)
        assert best is not None, "there is a thread"
        return best.inputs * self.area * best.positions

    def _tried(self, over: int, outputs: int, positions: int) -> Iterator[_Block]:
        """Blocks where `over` threads share the channels returned, at most so many and so many positions for each."""
        per_input, weights = self.stride + self.area, self.area * outputs

        def fitting(inputs: int, beside: int) -> int:
            return (self.cache - weights * inputs) // (per_input * inputs + beside)

        room = self.cache - (per_input * self.vector + weights) * self.inputs
        some = _clamp(room // self.vector, FEW_OUTPUTS, outputs)
        yield from self._around(over, some, _clamp(fitting(self.inputs, some), self.vector, positions))
        most_inputs = max(1, self.cache // (2 * FEW_OUTPUTS * per_input + 2 * weights))
        if most_inputs < self.inputs:
            inputs = self.inputs // max(1, self.inputs // most_inputs)
            count = max(1, (self.cache - 2 * weights * inputs) // (2 * inputs * per_input))
            some = self.cache // 2 // count
            if some > outputs:
                some, count = outputs, _clamp(fitting(inputs, outputs), self.vector, positions)
            elif count > positions:
                room = self.cache - (per_input * positions + weights) * inputs
                some, count = _clamp(room // positions, FEW_OUTPUTS, outputs), positions
            yield from self._around(over, some, count)
        yield from self._around(over, outputs, max(self.vector, _down(fitting(self.inputs, outputs), self.vector)))

    def _around(self, over: int, outputs: int, positions: int) -> Iterator[_Block]:
        """A block, and those of round sizes next to it."""
        yield self._block(over, outputs, positions)
        yield self._block(over, _down(outputs, FEW_OUTPUTS), _down(positions, POSITIONS))
        for count in (_down(positions, POSITIONS), _up(positions, self.vector), _up(positions, POSITIONS)):
            yield self._block(over, _up(outputs, FEW_OUTPUTS), count)

    def _block(self, over: int, outputs: int, positions: int) -> _Block:
        most_outputs, most_positions = (
            _split(self.outputs, over),
            _split(self.batch * self.positions, self.threads // over),
        )
        outputs = min(_clamp(outputs, FEW_OUTPUTS, most_outputs), most_outputs)
        positions = min(_clamp(positions, self.vector, most_positions), self.positions, most_positions)
        unfolded, read, weights = self.area * positions, self.stride * positions, self.area * most_outputs
        room = self.cache - outputs * positions
        in_parts = room // (read + unfolded + weights)
        fitting = in_parts
        if positions >= most_positions:
            fitting = self.cache // (read + unfolded)
            if outputs < most_outputs:
                fitting = min(fitting, room // (unfolded + self.area * outputs))
        fitting = in_parts if fitting < self.inputs else fitting
        inputs = max(1, self.inputs // _split(self.inputs, max(1, fitting)))
        return _Block(self, over, inputs, outputs, positions, is_in_cache=fitting >= 1)


@dataclass(frozen=True)
class _Block:
    """Channels read, channels returned and positions that a thread computes at once; `over` threads share channels."""

    whole: Unfolding
    over: int
    inputs: int
    outputs: int
    positions: int
    is_in_cache: bool

    def speed(self) -> float:
        """As oneDNN estimates it; no unit."""
        whole, every = self.whole, self.whole.batch * self.whole.positions
        outputs, positions = _split(whole.outputs, self.over), _split(every, whole.threads // self.over)
        depth, own_depth = whole.inputs * whole.area, self.inputs * whole.area
        shares = self._share() ** UNEVEN_WEIGHT * _filled(outputs, self.outputs) * _filled(whole.inputs, self.inputs)
        shares *= _filled(min(whole.positions, positions), self.positions)
        shares *= _filled(self.positions, REGISTERS * whole.vector)
        product = (self.positions * self.outputs * own_depth) / (outputs * positions * depth)
        wide, deep = _up(self.positions, whole.vector), _up(own_depth, whole.vector)
        moved = wide * own_depth + self.outputs * (deep + wide)
        kernel = self.positions / whole.vector * self.outputs * own_depth / moved
        return float(shares * self._per_access(outputs, positions) * product**SIZE_WEIGHT * kernel)

    def _per_access(self, outputs: int, positions: int) -> float:
        """Work of a thread for each element that it reads or writes."""
        whole = self.whole
        parts = _split(whole.inputs, self.inputs)
        read = whole.area * whole.inputs * _up(positions * whole.stride, whole.vector)
        unfolded = 2 * read * _up(self.positions, whole.vector) / self.positions * (STRIDED if whole.stride > 1 else 1)
        written = outputs * _up(positions, whole.vector) * (2 * parts - 1)
        weights = outputs * _up(whole.inputs * whole.area, whole.vector)
        work = positions / whole.vector * outputs * whole.inputs * whole.area
        return work / ((1 if self.is_in_cache else OUTSIDE_CACHE) * (read + unfolded + written + weights))

    def _share(self) -> float:
        """Of the largest share of a thread, the smallest."""
        whole, every = self.whole, self.whole.batch * self.whole.positions
        most, least = _split(whole.outputs, self.over), max(1, whole.outputs // self.over)
        groups = _split(whole.threads, self.over)
        wide, narrow = _split(every, whole.threads // self.over), _split(every, groups)
        if whole.outputs % self.over > whole.threads % self.over:
            largest = most * wide
        else:
            largest = max(most * narrow, least * wide)
        if whole.threads % self.over > whole.outputs % self.over:
            return least * max(1, every // groups) / largest
        return min(most * max(1, every // groups), least * (every // (whole.threads // self.over))) / largest


def _split(count: int, parts: int) -> int:
    """Of `count` in so many parts, the largest."""
    return -(-count // parts)


def _up(count: int, step: int) -> int:
    return _split(count, step) * step


def _down(count: int, step: int) -> int:
    return count // step * step


def _filled(count: int, step: int) -> float:
    """How much of the blocks that cover `count` is used."""
    return count / _up(count, step)


def _clamp(value: int, least: int, most: int) -> int:
    return max(least, min(most, value))
