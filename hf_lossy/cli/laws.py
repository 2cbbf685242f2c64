from __future__ import annotations

import dataclasses
import json
import math
from typing import Annotated, Any

import typer
from rich.table import Table

from ..laws import law_class, listed
from ..laws.base import allowed_values
from .common import console


def rows() -> list[dict[str, Any]]:
    """The registry, one entry a law."""
    entries = []
    for name in listed():
        cls = law_class(name)
        example = cls()
        bound = example.overshoot_bound
        entries.append(
            {
                "name": name,
                "family": cls.family,
                "law": (cls.__doc__ or "").strip().splitlines()[0],
                "parameters": {
                    spec.name: {
                        "default": getattr(example, spec.name),
                        "allowed": allowed_values(spec),
                        "help": spec.metadata["help"],
                    }
                    for spec in dataclasses.fields(cls)
                },
                "strict_at": cls.strict_at,
                "baseline": str(example.matched_baseline()),
                "overshoot_bound_at_default": None if math.isinf(bound) else bound,
                "uses_draft": cls.uses_draft,
                "peers": cls.peers,
                "reference": cls.reference,
            }
        )
    return entries


def laws(
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """The registered laws: parameters, strict setting, baseline, bound on overshoot, names elsewhere."""
    entries = rows()
    if as_json:
        print(json.dumps(entries, indent=2, ensure_ascii=False))
        return
    table = Table(title="Laws: what is emitted, (p, q) → π", show_lines=True)
    for column in (
        "law",
        "parameters (default, allowed)",
        "strict at",
        "baseline",
        "max log π/p",
        "elsewhere",
        "source",
    ):
        table.add_column(column, overflow="fold")
    for entry in entries:
        parameters = "\n".join(
            f"{name} = {p['default'] if not isinstance(p['default'], float) else format(p['default'], 'g')}, {p['allowed']}"
            for name, p in entry["parameters"].items()
        )
        bound = entry["overshoot_bound_at_default"]
        table.add_row(
            f"[bold]{entry['name']}[/bold]\n[dim]{entry['family']}[/dim]\n{entry['law']}",
            parameters or "none",
            entry["strict_at"],
            entry["baseline"],
            "no bound" if bound is None else f"{bound:.3g}",
            entry["peers"] or "–",
            entry["reference"],
        )
    console.print(table)
    console.print("arXiv numbers under source. Add a law: CONTRIBUTING.md.", style="dim")
