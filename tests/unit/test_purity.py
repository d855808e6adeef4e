"""What must not run again, and why: randomness, effects, unknown operators, choices that rounding could flip."""

import pytest
import torch
from torch.nn import functional

import rematpass
from rematpass import declared as room
from rematpass.declared import DeclaredOp, declared_ops, kernel_name
from rematpass.errors import OptionError
from rematpass.graph.constraints import collect_constraints
from rematpass.graph.facts import collect_facts
from rematpass.graph.flops import count_flops
from rematpass.graph.op_traits import base_name
from tests.tracing import dynamo_joint_of, joint_of


def matrix(*shape):
    return torch.ones(*(shape or (4, 4)), requires_grad=True)


def reasons_in(joint, declared=()):
    """Operator name -> why it must not run again, of the first such operator of the forward."""
    facts = collect_facts(joint)
    reasons = collect_constraints(joint, facts, declared=declared).no_recompute
    found = {}
    for i, node in enumerate(joint.nodes):
        if node.op == "call_function" and not joint.is_backward[i]:
            found.setdefault(base_name(node.target), reasons[i])
    return found


def reasons_of(function, *arguments, declared=()):
    return reasons_in(joint_of(function, arguments or [matrix()]), declared)


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda x: functional.dropout(x, 0.5), "native_dropout"),
        (lambda x: x * torch.rand_like(x), "rand_like"),
        (lambda x: x * torch.randn(4), "randn"),
        (lambda x: torch.bernoulli(x.detach() * 0.5) * x, "bernoulli"),
        (lambda x: x[torch.randperm(4)], "randperm"),
        (lambda x: x * torch.empty_like(x).exponential_(), "exponential"),
        (lambda x: functional.rrelu(x, training=True), "rrelu_with_noise_functional"),
    ],
)
def test_draws(function, name):
    assert reasons_of(function)[name] == f"{name} is random and would draw again"


def test_attention_is_random_only_with_dropout():
    """The attention that runs on CPUs draws nothing; its schema has a dropout argument all the same."""
    found = reasons_of(lambda q: functional.scaled_dot_product_attention(q, q, q), matrix(1, 2, 8, 4))
    (name,) = (n for n in found if "attention" in n)
    assert found[name] is None


FLIPS = "is a discrete choice that rounding could flip"


@pytest.mark.parametrize(
    ("function", "name", "is_kept"),
    [
        (lambda x: x.exp().topk(2).values, "topk", True),
        (lambda x: x.exp().sort().values, "sort", True),
        (lambda x: x * x.exp().argmax(), "argmax", True),
        (lambda x: x.topk(2).values, "topk", False),  # of an input: the same bits whoever asks
        (lambda x: (x + (x.exp().round() - x).detach()) * x, "round", True),
        (lambda x: x.exp().floor() * x, "floor", True),
        (lambda x: x.sign() * x, "sign", False),
        (lambda x: (x.exp() > 0.5).to(x.dtype) * x, "gt", True),
        (lambda x: (x.exp() > 0).to(x.dtype) * x, "gt", True),
        (lambda x: (x > 0.5).to(x.dtype) * x, "gt", False),
        (lambda x: x[x.exp().to(torch.int64).clamp(0, 3)[0]], "_to_copy", True),
        (lambda x: torch.div(x.exp(), 2, rounding_mode="floor") * x, "div", True),
        (lambda x: x.exp().max(0).values, "max", False),
        (lambda x: x[x.exp().max(0).indices] * x, "max", True),
        (lambda x: functional.leaky_relu(x @ x), "leaky_relu", False),
        (lambda x: x * (torch.arange(4) > 1), "gt", False),
    ],
)
def test_choices(function, name, is_kept):
    assert reasons_of(function)[name] == (f"{name} {FLIPS}" if is_kept else None)


def test_a_kink_is_no_choice():
    """A leaky ReLU written out: at zero either slope is a subgradient. Between two functions there is a jump."""

    def leaky(x):
        y = x @ x
        return torch.where(y > 0, y, y * 0.1)

    def jump(x):
        y = x @ x
        return torch.where(y > 0, y, x)

    assert reasons_of(leaky)["gt"] is None
    assert reasons_of(jump)["gt"] == f"gt {FLIPS}"


TIED = "the backward looks for its maximum or minimum, which rounding could hide"


def grouped(x, reduce):
    return torch.zeros(4, 4).scatter_reduce(0, torch.zeros(4, 4, dtype=torch.int64), x.exp(), reduce)


@pytest.mark.parametrize(
    ("function", "name", "is_kept"),
    [
        (lambda x: x.exp().amax(0), "exp", True),
        (lambda x: x.exp().amax(0), "amax", False),
        (lambda x: x.exp().view(2, 8).amin(1).sin(), "exp", True),
        (lambda x: x.exp().max(), "exp", True),
        (lambda x: torch.where(x > 0, x, x.exp()).amax(0), "where", True),
        (lambda x: torch.where(x > 0, x, x.exp()).amax(0), "exp", False),
        (lambda x: x.amax(0), "amax", False),  # of an input: the same bits whoever asks
        (lambda x: x.exp().max(0).values, "exp", False),  # found by its place
        (lambda x: x.exp().maximum(x.sin()), "exp", False),  # either way a subgradient
        (lambda x: grouped(x, "amax"), "exp", True),
        (lambda x: grouped(x, "sum"), "exp", False),
        (lambda x: torch.linalg.vector_norm(x.exp(), torch.inf, 0), "exp", True),
        (lambda x: torch.linalg.vector_norm(x.exp(), 2, 0), "exp", False),
        (lambda x: torch.cdist(x.exp(), x, p=torch.inf), "exp", True),
        (lambda x: torch.cdist(x.exp(), x, p=1), "exp", False),
        (lambda x: torch.nn.functional.pdist(x.exp(), torch.inf), "exp", True),
    ],
)
def test_ties(function, name, is_kept):
    """The gradient of an extreme goes to the elements that equal it: they and it are of one computation."""
    assert reasons_of(function)[name] == (TIED if is_kept else None)


def test_what_follows_a_kept_choice_may_run_again():
    found = reasons_of(lambda x: torch.zeros(4, 4).scatter(1, x.exp().argmax(1, keepdim=True), 1.0) * x)
    assert found["argmax"] is not None
    assert found["scatter"] is None


def test_writing_operators():
    joint = dynamo_joint_of(lambda x, s: (x * s.add_(1)).sum(), [matrix(), torch.ones(4, 4)])
    assert reasons_in(joint)["copy_"] == "copy_ writes to its input"


@torch.library.custom_op("rematpass_test::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


twice.register_fake(torch.empty_like)
twice.register_autograd(lambda ctx, g: g * 2)
TWICE = "rematpass_test::twice"


@torch.library.custom_op("rematpass_test::write", mutates_args=("x",))
def write(x: torch.Tensor) -> None:
    x.add_(1)


@pytest.fixture(autouse=True)
def no_declarations(monkeypatch):
    """Declarations made in a test end with it."""
    monkeypatch.setattr(room, "_DECLARED", {})


def test_custom_operators_are_kept_and_reported():
    joint = joint_of(lambda x: twice(twice(x).exp()).exp(), [matrix()])
    found = collect_constraints(joint, collect_facts(joint))
    assert "rematpass.register_op" in reasons_in(joint)["twice"]
    assert found.unknown_ops == ((TWICE, 2),)


OVERLOAD = torch.ops.rematpass_test.twice


@pytest.mark.parametrize("spelling", [TWICE, twice, OVERLOAD, OVERLOAD.default])
def test_a_pure_operator_may_run_again(spelling):
    rematpass.register_op(spelling, is_pure=True, flops=lambda x: 7 * x.numel())
    joint = joint_of(lambda x: twice(x).exp(), [matrix()])
    assert reasons_in(joint, declared_ops())["twice"] is None
    node = next(n for n in joint.nodes if base_name(n.target) == "twice")
    assert count_flops(node, {op.name: op for op in declared_ops()}) == 7 * 16
    assert collect_constraints(joint, collect_facts(joint), declared=declared_ops()).unknown_ops == ()


@pytest.mark.parametrize(("flags", "words"), [({"is_random": True}, "would draw again"), ({}, "not declared pure")])
def test_declared_but_not_pure(flags, words):
    rematpass.register_op(TWICE, **flags)
    assert words in reasons_of(lambda x: twice(x).exp(), declared=declared_ops())["twice"]


@pytest.mark.parametrize(
    ("op", "flags", "words"),
    [
        ("aten::mm", {}, "torch's own operators need no declaration"),
        ("rematpass_test::twicce", {}, r"no such operator. Nearest: rematpass_test::twice.* Try: import its module"),
        ("twice", {}, "names no operator"),
        (3, {}, "is no operator"),
        (TWICE, {"is_pure": True, "is_random": True}, "not pure. Try: one of both"),
        (TWICE, {"is_pure": 1}, "is_pure is 1; it must be True or False"),
        (TWICE, {"flops": 3}, "flops is 3"),
        ("rematpass_test::write", {"is_pure": True}, "writes to its inputs, so it is not pure"),
    ],
)
def test_bad_declarations(op, flags, words):
    with pytest.raises(OptionError, match=words):
        rematpass.register_op(op, **flags)
    assert declared_ops() == ()


@pytest.mark.parametrize("formula", [lambda x: -1, lambda x: 1.5, lambda x: x.nothing, lambda: 1])
def test_a_formula_that_fails(formula):
    joint = joint_of(lambda x: twice(x).exp(), [matrix()])
    op = DeclaredOp(TWICE, is_pure=True, is_random=False, flops=formula)
    with pytest.raises(OptionError, match=f"flops formula registered for {TWICE}"):
        collect_facts(joint, {TWICE: op})


def test_declarations_tell_plans_apart():
    flags = [(True, False, None), (False, False, None), (True, False, lambda x: 1), (True, False, lambda x: 2)]
    assert len({DeclaredOp(TWICE, p, r, f).fingerprint for p, r, f in flags}) == 4


class Kernel:
    """Looks like a Triton kernel under an autotuner."""

    def __init__(self, fn):
        self.fn = fn


def test_names_of_kernels():
    def scan_kernel():
        pass

    assert kernel_name(Kernel(Kernel(scan_kernel))) == "scan_kernel"
    rematpass.register_op(Kernel(scan_kernel), is_pure=True)
    assert [op.name for op in declared_ops()] == ["triton::scan_kernel"]


def branching(body):
    def step(x):
        y = x.exp()
        return torch.cond(y.sum() > 0, body, lambda a: a.cos(), (y,))

    return step


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (lambda a: (a @ a).sin(), None),
        (lambda a: a * torch.rand(4, 4), "inside cond: rand is random and would draw again"),
    ],
)
def test_a_higher_order_operator_is_as_pure_as_its_graphs(body, reason):
    assert reasons_in(dynamo_joint_of(branching(body), [matrix()]))["cond"] == reason
