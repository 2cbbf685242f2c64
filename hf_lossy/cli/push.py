from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from ..hub import LARGEST, package
from ..hub import upload as send
from .common import console


def push(
    source: Annotated[
        Path,
        typer.Argument(
            help="A recipe (folder with custom_generate/, or a script), a head's folder or a result folder."
        ),
    ],
    repo: Annotated[str, typer.Option(help="Where to: user/name on the Hub.")],
    bench: Annotated[
        Path | None, typer.Option(help="A head's or result's benchmark (docs/results/bench/<pair>.json), for its card.")
    ] = None,
    upload: Annotated[bool, typer.Option("--upload", help="Upload; otherwise only show what would be.")] = False,
    private: Annotated[bool, typer.Option("--private", help="If the repository is new, make it private.")] = False,
    largest: Annotated[int, typer.Option(min=1, help="Megabytes that a file may have.")] = LARGEST,
) -> None:
    """A recipe, a head or a result as a Hub repository: files, sizes and the card; with --upload, sent there."""
    made = package(source, repo, bench, largest)
    table = Table(title=f"{made.kind} as {repo}", title_justify="left")
    table.add_column("file", overflow="fold")
    table.add_column("bytes", justify="right")
    for name in sorted(made.files):
        table.add_row(name, f"{made.size(name):,}")
    table.add_section()
    table.add_row(f"{len(made.files)} files", f"{sum(map(made.size, made.files)):,}")
    console.print(table)
    for name in made.left_out:
        console.print(f"left out: {name}", markup=False)
    if upload:
        console.print(f"uploaded: {send(made, private)}", markup=False)
        return
    print(made.card)
    console.print("dry run: nothing was uploaded. --upload does, with the token of hf auth login or HF_TOKEN")
