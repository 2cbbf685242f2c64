from __future__ import annotations

import dataclasses
import json
import math
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from ..laws import law_class, listed
from ..laws.base import allowed_values
from .common import console

WIDE = 140
"""Terminal columns that the table needs."""


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
    if console.width >= WIDE:
        table = Table(title="Laws: what is emitted, (p, q) → π", show_lines=True)
        for column in ("law", *(name for name, _ in lines(entries[0]))):
            table.add_column(column, overflow="fold")
        for entry in entries:
            table.add_row(_title(entry), *(value for _, value in lines(entry)))
        console.print(table)
    else:  # one below the other, where seven columns would be of eight letters each
        for entry in entries:
            console.print(_title(entry))
            for name, value in lines(entry):
                console.print(Padding(f"[dim]{name}:[/dim] {value}".replace("\n", "; "), (0, 0, 0, 4)))
    console.print("arXiv numbers under source. Add a law: CONTRIBUTING.md.", style="dim")


def _title(entry: dict[str, Any]) -> str:
    return f"[bold]{entry['name']}[/bold] [dim]({entry['family']})[/dim]\n{entry['law']}"


def lines(entry: dict[str, Any]) -> list[tuple[str, str]]:
    """What is said about a law, by column."""
    parameters = [
        f"{name} = {format(p['default'], 'g') if isinstance(p['default'], float) else p['default']} {escape(p['allowed'])}"
        for name, p in entry["parameters"].items()
    ]
    bound = entry["overshoot_bound_at_default"]
    return [
        ("parameters (default, allowed)", "\n".join(parameters) or "none"),
        ("strict at", entry["strict_at"]),
        ("matched baseline", entry["baseline"]),
        ("largest log π/p at the default", "no bound" if bound is None else f"{bound:.3g}"),
        ("elsewhere", entry["peers"] or "–"),
        ("source", entry["reference"]),
    ]
