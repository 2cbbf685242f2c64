from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..cards import card_of, write_all
from ..errors import LossyError
from .common import console


def card(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(help="A head's folder, or result folders of one pair; none: all of a checkout."),
    ] = None,
    bench: Annotated[Path | None, typer.Option(help="The pair's benchmark (docs/results/bench/<pair>.json).")] = None,
    out: Annotated[Path | None, typer.Option(help="Write to this file (default: print).")] = None,
    root: Annotated[Path, typer.Option(help="The checkout whose cards are made.")] = Path("."),
) -> None:
    """Model cards from results, every figure with the file it came from."""
    if not folders:
        for name, value in (("--bench", bench), ("--out", out)):
            if value is not None:
                raise LossyError(f"{name} {value} is for the card of a folder: name the folder as well")
        changed = write_all(root)
        for path in changed:
            console.print(f"wrote {path}", markup=False)
        console.print(f"{len(changed)} files changed" if changed else "every card is as its results make it")
        return
    text = str(card_of(folders, bench))
    if out is None:
        print(text, end="")
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text, encoding="utf-8")
    console.print(f"wrote {out}", markup=False)
