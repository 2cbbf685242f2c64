from __future__ import annotations

import pytest
import torch
from jaxtyping import install_import_hook

from . import typecheck

torch.set_num_threads(1)

# shapes in signatures are checked in tests, and only there: this must come before the first import of the package
install_import_hook(
    ["hf_lossy.laws", "hf_lossy.couplings", "hf_lossy.accounting", "hf_lossy.numerics"],
    f"{typecheck.__name__}.{typecheck.shapes.__name__}",
)


@pytest.fixture(autouse=True)
def _seed():
    """Every test draws the same numbers alone, in any order and on any worker."""
    torch.manual_seed(0)


@pytest.fixture
def _modules(tmp_path, monkeypatch):
    """Where transformers copies the code of a ``custom_generate`` folder to."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))


def pytest_terminal_summary(terminalreporter):
    """Say how much was enumerated and how close it came, and what of the documentation was run (also with workers, which
    hand properties over)."""
    found = [dict(r.user_properties) for r in terminalreporter.getreports("passed") if r.when == "call"]
    enumerated = [f for f in found if "enumerated" in f]
    if enumerated:
        count, worst = sum(f["enumerated"] for f in enumerated), max(f["worst_tv"] for f in enumerated)
        terminalreporter.write_line(f"exact enumeration: {count} combinations, worst TV {worst:.1e}")
    pages = [f["documentation"] for f in found if "documentation" in f]
    if pages:
        totals = {name: sum(page[name] for page in pages) for name in pages[0]}
        terminalreporter.write_line(
            f"documentation: {totals['python']} Python blocks and {totals['run']} commands run, {totals['parsed']} commands "
            f"parsed, on {len(pages)} pages"
        )
