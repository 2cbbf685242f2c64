"""The law tab: p, q and π at one position."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ..accounting import Accounting, account
from ..errors import LossyError
from ..laws import Law
from ..numerics import tv
from .models import Backend
from .pieces import Pieces
from .records import distributions, row
from .session import Session

REGIONS = {
    "undershoot": "π below both p and q",
    "between": "π from p to q: its distortion buys acceptance one for one",
    "overshoot": "π above both p and q: distortion that buys nothing",
    "outside A": "π = 0 though target or draft would say it",
}
SETTLED = 1e-9
"""Differences below this are rounding."""
NEGLIGIBLE = 1e-3
"""A token that target, draft and law all give less than this has no bar to look at."""
FEWEST = 3
"""Tokens that are shown all the same."""


@dataclass(frozen=True)
class Token:
    """One token of a position: its text, probabilities, and the region its π lies in."""

    text: str
    p: float
    q: float
    pi: float
    region: str


@dataclass(frozen=True)
class LawView:
    """A position under a law: its likeliest tokens, and the figures of the whole of it."""

    law: Law
    tokens: list[Token]
    rest: int
    tv_draft: float
    figures: Accounting


def region(p: float, q: float, pi: float) -> str:
    """Where π lies in relation to p and q, one of :data:`REGIONS`."""
    if pi == 0 and max(p, q) > 0:
        return "outside A"
    if pi < min(p, q) - SETTLED:
        return "undershoot"
    return "overshoot" if pi > max(p, q) + SETTLED else "between"


def look(p: Float[Tensor, "vocab"], q: Float[Tensor, "vocab"], law: Law, texts: Sequence[str], shown: int) -> LawView:
    """π of a law at (p, q), the ``shown`` tokens with the most probability under any of the three first."""
    pi = law.induced(p, q)
    order = torch.stack([p, q, pi]).amax(0).argsort(descending=True, stable=True).tolist()
    rows = [
        (texts[i], float(p[i]), float(q[i]), float(pi[i]))
        for place, i in enumerate(order[:shown])
        if place < FEWEST or max(p[i], q[i], pi[i]) >= NEGLIGIBLE
    ]
    tokens = [Token(text, a, b, c, region(a, b, c)) for text, a, b, c in rows]
    return LawView(law, tokens, len(p) - len(tokens), float(tv(p, q)), account(p, q, pi))


def hand_set(text: str, name: str) -> Float[Tensor, "vocab"]:
    """A distribution from numbers as somebody types them; they need not sum to one.

    Raises:
        LossyError: something that is no weight, or no weights.
    """
    weights = []
    for word in text.replace(",", " ").split():
        try:
            weight = float(word)
        except ValueError:
            weight = math.nan
        if not (math.isfinite(weight) and weight >= 0):
            raise LossyError(f"{name}: {word!r} is no weight: give numbers of 0 or more, as in 0.5 0.3 0.2")
        weights.append(weight)
    if not any(weights):
        raise LossyError(f"{name} has no weight above 0: give numbers, as in 0.5 0.3 0.2")
    found = torch.tensor(weights, dtype=torch.float64)
    found /= found.max()  # so that no sum is too large
    return found / found.sum()


def by_hand(p_text: str, q_text: str) -> tuple[Tensor, Tensor, list[str]]:
    """p, q and names of the tokens of two hand-set distributions."""
    p, q = hand_set(p_text, "p"), hand_set(q_text, "q")
    if len(p) != len(q):
        raise LossyError(f"p has {len(p)} tokens and q {len(q)}: give both the same number of weights")
    return p, q, [f"token {i + 1}" for i in range(len(p))]


def at_position(backend: Backend, session: Session, column: int, position: int) -> tuple[Tensor, Tensor, Sequence[str]]:
    """p, q and texts of the tokens at a position of a column of the last run.

    Raises:
        LossyError: no run, no such position, or a draft without probabilities.
    """
    run = session.run
    if run is None or not run.finished:
        raise LossyError("there is no finished run to look into: press Run in the Compare tab, or set p and q by hand")
    if not column < len(run.outputs) or not position < len(run.outputs[column].tokens):
        raise LossyError(f"column {column + 1} has no token {position + 1}: choose another position")
    output = run.outputs[column]
    models = backend.models(run.models)
    pair = models.pairs[output.way.draft]
    kept = session.row
    if kept is not None and kept[0] is run and kept[1:3] == (column, position):
        p, q = kept[3:]
    else:
        arguments = run.request.arguments(pair, output.verifying)
        prompt = torch.tensor([run.prompt], device=pair.target.device)
        with backend.turns:
            p, q = row(distributions(pair, arguments, prompt, output.tokens, output.rounds), position)
        if q is None:
            raise LossyError(
                f"{output.way.draft} has no probabilities q: choose a column whose draft is a model or a head"
            )
        p, q = p.cpu(), q.cpu()
        session.row = run, column, position, p, q
    return p, q, _Texts(Pieces(pair.tokenizer, [*run.prompt, *output.tokens[:position]]))


class _Texts(Sequence[str]):
    """The text of each token as the next one."""

    def __init__(self, pieces: Pieces) -> None:
        self.pieces = pieces

    def __getitem__(self, token: int) -> str:  # type: ignore[override]
        return self.pieces.next(token)

    def __len__(self) -> int:
        return len(self.pieces.tokenizer)
