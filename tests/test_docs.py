"""Every Python block of the README and CONTRIBUTING runs as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import hf_lossy

ROOT = Path(__file__).parent.parent


def blocks(name: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (ROOT / name).read_text(), re.M | re.S)


@pytest.mark.parametrize("code", blocks("README.md"), ids=lambda code: code.splitlines()[-1][:40])
def test_readme_blocks_run(code, tmp_path):
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr


def test_the_law_of_contributing_works_in_one_file(tmp_path):
    """Copied into laws/ it registers, obeys its strict setting and is found by the command line."""
    (code,) = blocks("CONTRIBUTING.md")
    package = tmp_path / "hf_lossy"
    subprocess.run(["cp", "-r", ROOT / "hf_lossy", package], check=True)
    (package / "laws" / "halfway.py").write_text(code)
    check = (
        "import torch, hf_lossy; from hf_lossy.cli.common import parse_law;"
        "p, q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.2, 0.6]);"
        "pi = parse_law('halfway=0.5').induced(p, q);"
        "assert torch.allclose(pi, (p * q).sqrt() / (p * q).sqrt().sum());"
        "assert 'halfway' in hf_lossy.laws() and hf_lossy.Halfway(0).is_strict"
    )
    run = subprocess.run([sys.executable, "-c", check], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_the_readme_names_every_law():
    text = (ROOT / "README.md").read_text()
    assert all(f"`{name}`" in text for name in hf_lossy.laws())
