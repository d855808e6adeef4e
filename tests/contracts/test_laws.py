"""The laws of the code, read from its syntax trees. Each law is a function from a module to what offends in it."""

import ast
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = "rematpass"
MAX_FUNCTION, MAX_FILE, MAX_NESTING = 60, 400, 3

# Which rooms a room may import, besides itself. What is not here is not allowed: a new room needs a row.
FREE = {"errors", "plan_types", "options", "files"}
BELOW_PIPELINE = {*FREE, "declared", "torch_compat", "cost", "solve", "graph", "emit", "check", "report"}
TO_HALVES = {*BELOW_PIPELINE, "noted", "partitioner", "pipeline"}
MAY_IMPORT = {
    "version": set(),
    "errors": {"plan_types"},
    "globs": {"errors"},
    "formula": {"errors", "globs"},
    "other_sizes": {"errors", "formula"},
    "plan_types": {"errors", "other_sizes"},
    "frozen": {"errors"},
    "options": {"errors", "frozen"},
    "declared": {"errors"},
    "files": set(),
    "garbage": set(),
    "typed_json": set(),
    "plan_file": {"errors", "plan_types", "version", "files", "typed_json"},
    "torch_compat": {*FREE, "declared"},
    "solve": {"errors"},
    "cost": FREE,
    "graph": {*FREE, "declared", "torch_compat", "cost", "solve", "formula"},
    "emit": {*FREE, "torch_compat", "graph", "solve"},
    "check": {*FREE, "torch_compat", "cost", "solve", "graph"},
    "sizing": {"errors", "plan_types"},
    "report": {*FREE, "check", "cost", "sizing", "globs", "formula", "other_sizes"},
    "store": {*FREE, "plan_file"},
    "naming": {"errors", "torch_compat"},
    "lives": {*FREE, "solve", "graph"},
    "mistakes": {*FREE, "solve", "graph", "report"},
    "record": {*BELOW_PIPELINE, "lives", "mistakes"},
    "replay": {*BELOW_PIPELINE},
    "ranks": {*FREE, "torch_compat", "cost"},
    "op_times": {*BELOW_PIPELINE, "ranks"},
    "shares": {"plan_types"},
    "pipeline": {*BELOW_PIPELINE, "garbage", "lives", "record", "op_times", "replay", "shares"},
    "optimizers": set(),
    "device": {*BELOW_PIPELINE, "pipeline", "ranks", "op_times", "plan_file", "optimizers"},
    "lessons": {*FREE, "ranks", "report", "pipeline"},
    "verify": {*FREE, "torch_compat", "check", "report", "lessons"},
    "noted": {"plan_types", "torch_compat"},
    "growing": {*FREE, "graph", "pipeline"},
    "partitioner": {*BELOW_PIPELINE, "noted", "growing", "pipeline"},
    "accumulated": {*FREE, "torch_compat", "report", "pipeline", "shares", "verify"},
    "together": {*FREE, "torch_compat", "report", "shares", "accumulated", "verify"},
    "backend": {*TO_HALVES, "accumulated", "ranks", "device", "shares", "store", "lessons", "together", "verify"},
    "script": {*FREE, "torch_compat", "check", "backend", "partitioner", "verify"},
    "stand_in": {*FREE, "torch_compat"},
    "resize": {*FREE, "torch_compat"},
    "look": {*TO_HALVES, "garbage", "device", "backend", "stand_in"},
    "sized": {
        *BELOW_PIPELINE,
        *("pipeline", "lives", "look", "resize", "stand_in", "sizing", "globs", "formula", "other_sizes"),
    },
    "api": {*TO_HALVES, "device", "backend", "look", "resize", "sizing", "sized"},
    "__init__": {*BELOW_PIPELINE, *("api", "device", "naming", "plan_file", "version", "formula", "other_sizes")},
    "sources": {*FREE, "stand_in"},
    "commands": {
        *BELOW_PIPELINE,
        *("device", "sources", "sizing", "stand_in", "plan_file", "script", "typed_json", "__init__"),
        *("look", "sized", "formula"),
    },
    "demo": {*BELOW_PIPELINE, "pipeline", "__init__"},
    "cli": {*BELOW_PIPELINE, "pipeline", "backend", "__init__", "demo", "commands"},
    "__main__": {"cli"},
}
# Upward, and so only inside the function that prints or saves.
MAY_IMPORT_TO_SHOW = {
    "errors": {"report"},
    "formula": {"report"},
    "other_sizes": {"report"},
    "plan_types": {"report", "plan_file"},
    "sizing": {"report"},
}
# The type that the solver takes: graph/ fills it in. Nothing else of solve/ is open to it.
SOLVER_INPUT = f"{PACKAGE}.solve.program."

FX_CREATORS = {
    *("create_node", "call_function", "call_method", "call_module", "node_copy", "graph_copy"),
    *("placeholder", "inserting_before", "inserting_after"),
}
META_WRITERS = {"update", "setdefault", "pop", "popitem", "clear", "__setitem__"}
BLOCKS = (ast.For, ast.AsyncFor, ast.While, ast.If, ast.With, ast.AsyncWith, ast.Try, ast.TryStar, ast.Match)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Module:
    """A source file: its dotted name inside the package ("solve.closure", "errors", "graph.__init__") and its text."""

    name: str
    text: str

    @property
    def room(self) -> str:
        return self.name.split(".")[0]

    @property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def functions(self) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
        return [node for node in self.nodes if isinstance(node, FUNCTIONS)]

    def at(self, node: ast.AST, what: str) -> str:
        return f"{self.name}:{node.lineno} {what}"


def load_modules() -> list[Module]:
    folder = ROOT / PACKAGE
    files = sorted(folder.rglob("*.py"))
    return [Module(".".join(path.relative_to(folder).with_suffix("").parts), path.read_text()) for path in files]


def imported(module: Module) -> Iterator[tuple[ast.stmt, str]]:
    """Every import as an absolute dotted name, with the imported name at its end for `from a import b`."""
    here = [PACKAGE, *module.name.split(".")]
    for node in module.nodes:
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = [*here[: len(here) - node.level], *filter(None, [node.module])] if node.level else [node.module]
            yield from ((node, ".".join([*base, alias.name])) for alias in node.names)


def room_of(name: str) -> str | None:
    """The room an absolute name lies in; None outside the package. Names of the package itself are in __init__."""
    parts = name.split(".")
    if parts[0] != PACKAGE:
        return None
    return parts[1] if len(parts) > 1 and parts[1] in MAY_IMPORT else "__init__"


def imports_upward(module: Module) -> Iterator[str]:
    if module.room not in MAY_IMPORT:
        yield f"{module.name}: no row for {module.room!r} in MAY_IMPORT"
        return
    lazy = {id(node) for function in module.functions for node in ast.walk(function)}
    for node, name in imported(module):
        to_show = MAY_IMPORT_TO_SHOW.get(module.room, set()) if id(node) in lazy else set()
        room = room_of(name)
        if room not in {None, module.room, *MAY_IMPORT[module.room], *to_show}:
            yield module.at(node, f"imports {name}")
        elif (module.room, room) == ("graph", "solve") and not f"{name}.".startswith(SOLVER_INPUT):
            yield module.at(node, f"imports {name}: only {SOLVER_INPUT}* is open to graph")


def imports_torch_where_it_must_not(module: Module) -> Iterator[str]:
    if module.room in {"solve", *FREE} or module.name == "cost.memory":
        for node, name in imported(module):
            if name.split(".")[0] in ("torch", "functorch") or room_of(name) in ("torch_compat", "graph"):
                yield module.at(node, f"imports {name}")


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def chain_of(node: ast.AST) -> list[str]:
    """["torch", "cuda", "x"] for `torch.cuda.x`; empty if it does not start at a plain name."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return [node.id, *reversed(parts)] if isinstance(node, ast.Name) else []


def uses_private_torch(module: Module) -> Iterator[str]:
    if module.room == "torch_compat":
        return
    bound = set()
    for node, name in imported(module):
        if name.split(".")[0] not in ("torch", "functorch"):
            continue
        bound |= {alias.asname or alias.name.split(".")[0] for alias in node.names}
        if any(map(is_private, name.split("."))):
            yield module.at(node, f"imports {name}")
    for node in module.nodes:
        parts = chain_of(node)
        if parts and parts[0] in bound and is_private(parts[-1]):
            yield module.at(node, f"uses {'.'.join(parts)}")
        if isinstance(node, ast.Call):
            texts = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
            yield from (module.at(node, f"names {t}") for t in texts if re.fullmatch(r"torch(\.\w+)*\._[\w.]+", t))


def reads_globals(module: Module) -> Iterator[str]:
    yield from (module.at(node, "global statement") for node in module.nodes if isinstance(node, ast.Global))
    if module.room in ("options", "torch_compat"):
        return
    names = {"environ", "environb", "getenv", "putenv"}
    for node, name in imported(module):
        if name in {f"os.{n}" for n in names}:
            yield module.at(node, f"imports {name}")
    for node in module.nodes:
        if isinstance(node, ast.Attribute) and node.attr in names and chain_of(node)[:1] == ["os"]:
            yield module.at(node, f"reads os.{node.attr}")


def is_meta(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "meta"


def writes_graphs(module: Module) -> Iterator[str]:
    if module.room == "emit":
        return
    for node in module.nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            method = node.func
            if method.attr in FX_CREATORS:
                yield module.at(node, f"calls .{method.attr}()")
            if method.attr in META_WRITERS and is_meta(method.value):
                yield module.at(node, f"calls .meta.{method.attr}()")
        written = isinstance(getattr(node, "ctx", None), ast.Store | ast.Del)
        if written and (is_meta(node) or (isinstance(node, ast.Subscript) and is_meta(node.value))):
            yield module.at(node, "writes .meta")


def nesting(statements: list[ast.stmt], depth: int = 0) -> int:
    """How deep blocks lie in each other. `elif` adds nothing; a function inside starts anew and is counted itself."""
    return max((nesting_of(statement, depth) for statement in statements), default=depth)


def nesting_of(node: ast.stmt, depth: int) -> int:
    if isinstance(node, (*FUNCTIONS, ast.ClassDef)) or not isinstance(node, BLOCKS):
        return depth
    orelse = getattr(node, "orelse", [])
    is_elif = isinstance(node, ast.If) and len(orelse) == 1 and isinstance(orelse[0], ast.If)
    parts = [node, *getattr(node, "handlers", []), *getattr(node, "cases", [])]
    bodies = [getattr(part, "body", []) for part in parts] + [getattr(node, "finalbody", [])]
    return max(*(nesting(body, depth + 1) for body in bodies), nesting(orelse, depth + (not is_elif)))


def is_too_large(module: Module) -> Iterator[str]:
    lines = module.text.count("\n")
    if lines > MAX_FILE:
        yield f"{module.name}: {lines} lines"
    for function in module.functions:
        length = function.end_lineno - function.lineno + 1
        if length > MAX_FUNCTION:
            yield module.at(function, f"{function.name} has {length} lines")
        if nesting(function.body) > MAX_NESTING:
            yield module.at(function, f"{function.name} is nested {nesting(function.body)} deep")


def public_definitions(body: list[ast.stmt]) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    for node in body:
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from public_definitions(node.body)


def is_undocumented(module: Module) -> Iterator[str]:
    if module.name.split(".")[-1] in ("utils", "common", "helpers"):
        yield f"{module.name}: a room is named after its step"
    lines = (ast.get_docstring(module.tree) or "").splitlines()
    is_init_of_room = module.name.endswith(".__init__")
    if not lines:
        yield f"{module.name}: no module docstring"
    elif not is_init_of_room and module.room not in ("__init__", "__main__"):
        text = " ".join(lines)
        yield from (
            f"{module.name}: docstring without {word!r}" for word in ("In: ", "Out: ", "ever ") if word not in text
        )
    for node in public_definitions(module.tree.body):
        if not ast.get_docstring(node):
            yield module.at(node, f"{node.name} has no docstring")


LAWS = [
    imports_upward,
    imports_torch_where_it_must_not,
    uses_private_torch,
    reads_globals,
    writes_graphs,
    is_too_large,
    is_undocumented,
]


@pytest.mark.parametrize("law", LAWS)
def test_law(law):
    assert [offence for module in load_modules() for offence in law(module)] == []


def deep(depth: int, block: str = "if x:") -> str:
    blocks = "".join(" " * level + block + "\n" for level in range(1, depth + 1))
    return f"def f():\n{blocks}{' ' * (depth + 1)}pass\n"


@pytest.mark.parametrize(
    ("law", "name", "text"),
    [
        (imports_upward, "solve.closure", "from ..graph import facts"),
        (imports_upward, "solve.closure", "from ..plan_types import Plan"),
        (imports_upward, "cost.prices", "from rematpass.graph.facts import Facts"),
        (imports_upward, "graph.facts", "from ..solve import closure"),
        (imports_upward, "graph.facts", "from rematpass.solve.closure import sweep_closures"),
        (imports_upward, "check.split", "from .. import cli"),
        (imports_upward, "check.split", "import rematpass"),
        (imports_upward, "emit.order", "from rematpass import measure_peak"),
        (imports_upward, "pipeline", "from .backend import x"),
        (imports_upward, "errors", "from .report.sizes import x"),
        (imports_upward, "cupboard.x", ""),
        (imports_torch_where_it_must_not, "plan_types", "def f():\n    import torch.fx"),
        (imports_torch_where_it_must_not, "solve.closure", "from torch import Tensor"),
        (uses_private_torch, "graph.facts", "import torch\ntorch._C.x()"),
        (uses_private_torch, "graph.facts", "import torch as t\nt.fx._x"),
        (uses_private_torch, "graph.facts", "from torch._inductor import config"),
        (uses_private_torch, "graph.facts", "from torch.utils import _pytree"),
        (uses_private_torch, "graph.facts", "from torch.fx import Node\nNode._x"),
        (uses_private_torch, "graph.facts", "import_module('torch._inductor.config')"),
        (reads_globals, "graph.facts", "import os\nos.environ['X']"),
        (reads_globals, "graph.facts", "import os\nos.getenv('X')"),
        (reads_globals, "graph.facts", "from os import environ"),
        (reads_globals, "options", "def f():\n    global x"),
        (writes_graphs, "graph.capture", "graph.call_function(f)"),
        (writes_graphs, "graph.capture", "with g.inserting_before(n): pass"),
        (writes_graphs, "graph.capture", "node.meta['x'] = 1"),
        (writes_graphs, "graph.capture", "node.meta['x'] += 1"),
        (writes_graphs, "graph.capture", "del node.meta['x']"),
        (writes_graphs, "graph.capture", "node.meta, x = {}, 1"),
        (writes_graphs, "graph.capture", "node.meta.update(x=1)"),
        (is_too_large, "pipeline", "x = 1\n" * 401),
        (is_too_large, "pipeline", "def f():\n" + " x = 1\n" * 60),
        (is_too_large, "pipeline", deep(4)),
        (is_too_large, "pipeline", deep(4, "with x:")),
        (is_undocumented, "pipeline", '"""In: x. Out: y. Never z."""\nclass A:\n    """A."""\n    def f(self): pass'),
        (is_undocumented, "pipeline", '"""A page."""'),
        (is_undocumented, "graph.utils", '"""In: x. Out: y. Never z."""'),
    ],
)
def test_law_sees_offence(law, name, text):
    assert list(law(Module(name, text)))


@pytest.mark.parametrize(
    ("law", "name", "text"),
    [
        (imports_upward, "errors", "def f():\n    from .report.sizes import x"),
        (imports_upward, "graph.facts", "from ..solve.program import Kind\nfrom .. import torch_compat"),
        (imports_upward, "solve.__init__", "from .flow import x"),
        (imports_upward, "check.split", "from ..cost.memory import x\nimport torch.fx"),
        (uses_private_torch, "graph.facts", "import torch\ntorch.__version__\nself._x"),
        (uses_private_torch, "torch_compat.graphs", "import torch\ntorch._C"),
        (writes_graphs, "emit.partition", "node.meta['x'] = graph.call_function(f)"),
        (writes_graphs, "graph.capture", "x = node.meta['x']\nnode.meta.get('x')\nseen['meta'] = 1"),
        (is_too_large, "pipeline", deep(3)),
        (is_too_large, "pipeline", "def f():\n" + "".join(f" {'el' * (i > 0)}if x: pass\n" for i in range(9))),
    ],
)
def test_law_lets_pass(law, name, text):
    assert list(law(Module(name, text))) == []


def test_no_room_is_in_a_circle():
    """The table itself goes downward: whoever may be imported does not reach back, printing aside."""
    below = {room: set(allowed) - {room} for room, allowed in MAY_IMPORT.items()}
    below["errors"] = below["errors"] - {"plan_types"}  # for type checking only
    done: set[str] = set()
    while ready := {room for room, allowed in below.items() if room not in done and allowed <= done}:
        done |= ready
    assert done == set(below)


def test_errors_imports_the_plan_for_type_checking_only():
    (module,) = (module for module in load_modules() if module.name == "errors")
    assert not [node for node in module.tree.body if isinstance(node, ast.ImportFrom) and node.module == "plan_types"]


def test_lint_really_selects_complexity():
    lint = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]
    assert {"C901", "PLR09"} <= set(lint["select"])
    assert lint["mccabe"]["max-complexity"] <= 10
    ignored = [*lint["ignore"], *(rule for rules in lint["per-file-ignores"].values() for rule in rules)]
    assert [rule for rule in ignored if re.match("C9|C$|PLR0?$|PLR09(?!13)", rule)] == []
    assert [rule for rule in lint["ignore"] if rule.startswith("PLR")] == []
