"""The import directions of docs/architecture.md, read from its table and held against the code."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "hf_lossy"
TABLE = {
    module: (set(re.findall(r"`(\w+)`", imports)), "torch only" in duty)
    for module, duty, imports in re.findall(
        r"^\| `(\w+)` \| (.*?) \| ?(.*?) ?\|$", (ROOT / "docs/architecture.md").read_text(), re.M
    )
}


def module_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> tuple[set[str], set[str]]:
    """What a file imports: modules of this package, and top-level names of others."""
    ours: set[str] = set()
    others: set[str] = set()
    depth = len(path.relative_to(PACKAGE).parts)  # how many dots lead to the package itself
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first, *rest = alias.name.split(".")
                (ours if first == "hf_lossy" else others).add(
                    (rest or ["hf_lossy"])[0] if first == "hf_lossy" else first
                )
        elif isinstance(node, ast.ImportFrom):
            if node.level == 0:
                others.add((node.module or "").split(".")[0])
            elif node.level == depth:
                ours |= {node.module.split(".")[0]} if node.module else {alias.name for alias in node.names}
    return ours, others


FILES = [p for p in sorted(PACKAGE.rglob("*.py")) if p != PACKAGE / "__init__.py"]


def test_every_module_is_in_the_table():
    assert {module_of(p) for p in FILES} == set(TABLE)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_follow_the_table(path):
    module = module_of(path)
    allowed, torch_only = TABLE[module]
    ours, others = imports(path)
    assert ours - {module, "hf_lossy"} <= allowed
    if torch_only:
        assert others <= {"torch", "jaxtyping"} | sys.stdlib_module_names


def test_the_table_has_no_cycle_and_nothing_unused():
    used = {module: set[str]() for module in TABLE}
    for path in FILES:
        used[module_of(path)] |= imports(path)[0] - {module_of(path), "hf_lossy"}
    assert used == {module: allowed for module, (allowed, _) in TABLE.items()}
    done: set[str] = set()
    while remaining := [m for m in used if m not in done]:
        ready = [m for m in remaining if used[m] <= done]
        assert ready, f"a cycle among {remaining}"
        done |= set(ready)


@pytest.mark.parametrize("name", ["laws", "couplings", "accounting", "numerics"])
def test_the_mathematics_does_not_load_transformers(name):
    code = f"import hf_lossy.{name}, sys; sys.exit('transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_importing_the_package_loads_neither_torch_nor_transformers():
    code = "import hf_lossy, sys; sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
