"""The package's imports point down and in no circle, and what is delicate stays in the files made for it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "python_shim" / "vllm_weight_checker"
LAYERS = {
    4: "cli endpoint plugin",
    3: "client worker accelerate cpu_weights cpu_experts",
    2: "engines replies servers verification merging planned pickled model "
    "recorder twin finishing offered unused recording movements",
    1: "verbs elsewhere provenance",
    0: "_native _dlpack _exchange _pybuffer tensors torch_tensors arrays buffers dtypes rank report errors "
    "baselines plans regions strict_json checkpoint_roots files notices interrupts tables waiting loop_json",
}
LAYER = {module: layer for layer, modules in LAYERS.items() for module in modules.split()}
FILES = sorted(PACKAGE.glob("*.py"))


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes that are executed: not those under `if TYPE_CHECKING:`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        yield node
        yield from statements(node)


def imports(path: Path) -> tuple[set[str], set[str]]:
    """The modules of this package, and the top-level packages of others, that a file imports anywhere."""
    ours, others = set(), set()
    for node in statements(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            others |= {name.name.split(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            others.add(str(node.module).split(".")[0])
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 1, f"{path.name} imports from outside the package"
            ours |= {node.module} if node.module else {name.name for name in node.names} & LAYER.keys()
    return ours, others - {"__future__"}


def test_every_module_has_a_layer() -> None:
    assert {path.stem for path in FILES} - {"__init__"} == LAYER.keys()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_imports_point_down(path: Path) -> None:
    ours, _ = imports(path)
    above = {module for module in ours if LAYER[module] > LAYER.get(path.stem, -1)}
    assert not above, f"{path.name} imports {above}, above it"


def test_imports_go_in_no_circle() -> None:
    graph = {path.stem: imports(path)[0] for path in FILES}
    assert sum(map(len, graph.values())) > 40, "the imports are not found any more"
    TopologicalSorter(graph).prepare()


@pytest.mark.parametrize("module", [module for module, layer in LAYER.items() if layer <= 1])
def test_the_lower_layers_need_only_python(module: str) -> None:
    _, others = imports(PACKAGE / f"{module}.py")
    assert others <= sys.stdlib_module_names


def test_raw_memory_is_touched_in_four_files_only() -> None:
    users = {path.stem for path in FILES if "ctypes" in imports(path)[1]}
    assert users == {"_native", "_dlpack", "_exchange", "_pybuffer"}


def test_one_file_calls_the_library() -> None:
    users = {path.stem for path in FILES if "wc_" in path.read_text(encoding="utf-8")}
    assert users == {"_native"}
