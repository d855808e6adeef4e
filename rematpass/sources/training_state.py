"""What training holds beside the step: the optimizer's state.

In: the shapes of what learns, an optimizer, a precision. Out: bytes. Never makes an optimizer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..errors import OptionError

OPTIMIZERS = ("adamw", "sgd", "sgd-momentum", "adafactor", "none")
_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "int8": 1}
PRECISIONS = tuple(_BYTES)


@dataclass(frozen=True)
class Optimizer:
    """An optimizer as memory sees it.

    Attributes:
        name: one of `OPTIMIZERS`.
        precision: of its states, one of `PRECISIONS`.
        has_master_weights: it keeps a float32 copy of every parameter that learns (mixed precision).
    """

    name: str = "none"
    precision: str = "fp32"
    has_master_weights: bool = False

    def __post_init__(self) -> None:
        for value, known in ((self.name, OPTIMIZERS), (self.precision, PRECISIONS)):
            if value not in known:
                raise OptionError(f"optimizer {value!r} is not known. Try: {', '.join(known)}")

    def state_bytes(self, shapes: Iterable[Sequence[int]]) -> int:
        """Bytes that live from step to step, for parameters of these shapes that learn.

        AdamW: two numbers a parameter. SGD: none, with momentum one. Adafactor (Shazeer and Stern, 2018): a row and a
        column of a matrix, over its last two dimensions; one number a parameter of a vector. Step counters are left
        out.

        >>> Optimizer("adamw").state_bytes([(3, 2), (3,)]), Optimizer("adafactor").state_bytes([(3, 2), (3,)])
        (72, 32)
        """
        shapes = [tuple(shape) for shape in shapes]
        master = sum(4 * math.prod(shape) for shape in shapes) if self.has_master_weights else 0
        return master + sum(self._numbers(shape) for shape in shapes) * _BYTES[self.precision]

    def _numbers(self, shape: Sequence[int]) -> int:
        if self.name == "adafactor" and len(shape) >= 2:
            return math.prod(shape[:-1]) + math.prod((*shape[:-2], shape[-1]))
        each = {"adamw": 2, "sgd-momentum": 1, "adafactor": 1}.get(self.name, 0)
        return each * math.prod(shape)
