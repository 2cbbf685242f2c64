"""Where a reported number comes from: command, versions, commit, machine."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any


def provenance() -> dict[str, Any]:
    """Command, date, package versions, git commit (with ``-dirty`` where the package differs from it) and machine."""
    import torch

    versions = {}
    for name in ("hf-lossy", "torch", "transformers", "accelerate"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return {
        "command": shlex.join([*_program(Path(sys.argv[0])), *sys.argv[1:]]),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "versions": {"python": platform.python_version(), **versions},
        "commit": _commit(),
        "machine": {
            "cpu": _cpu(),
            "cores": os.cpu_count(),
            "torch_threads": torch.get_num_threads(),
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        },
    }


def _program(path: Path) -> list[str]:
    """How a program is called that Python runs from this path."""
    return ["python", "-m", path.parent.name] if path.name == "__main__.py" else [path.name]


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file whole or not at all, also when interrupted."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        draft.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _commit() -> str | None:
    git = ["git", "-C", str(Path(__file__).parent)]
    try:
        describe = [*git, "describe", "--always", "--abbrev=12"]
        commit = subprocess.run(describe, check=True, capture_output=True, text=True).stdout.strip()
        same = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", "."]).returncode == 0
        return commit if same else f"{commit}-dirty"
    except (OSError, subprocess.CalledProcessError):
        return None  # not a git checkout, or no git


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
