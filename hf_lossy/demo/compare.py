"""The compare tab: what its controls do, without gradio."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ..couplings.base import couplings as registered_couplings
from ..errors import LossyError
from ..laws import law_class, listed
from . import render
from .models import Backend, Models
from .runs import TARGET, Request, Run, Way, prepared
from .script import script
from .session import Session

MOST = 4
"""Columns at most."""
COLOURS = ("source", "overshoot")
DEFAULT_WAYS = ((TARGET, None), ("lossless", None), ("lenience", 0.4), ("cos", 0.4))
Decode = Callable[[Run, Session], Iterator[Run]]


@dataclass(frozen=True)
class Strength:
    """The slider of a law: its parameter, range and first value; ``name`` is None for a law without strength."""

    name: str | None = None
    low: float = 0.0
    high: float = 1.0
    value: float = 0.0
    step: float = 0.01
    help: str = ""

    @staticmethod
    def of(name: str) -> Strength:
        """From the registry: range and help text are the parameter's own."""
        cls = None if name == TARGET else law_class(name)
        if cls is None or cls.knob is None:
            return Strength()
        spec = cls.__dataclass_fields__[cls.knob]
        low, high = spec.metadata["low"], min(spec.metadata["high"], max(1.0, 2 * max(cls.grid, default=0.5)))
        step = Strength.step
        low, high = low + step * spec.metadata["open_low"], high - step * spec.metadata["open_high"]
        return Strength(cls.knob, low, high, float(getattr(cls(), cls.knob)), step, spec.metadata["help"])


@dataclass
class View:
    """What the tab shows: a line of status or an error, and each column with its code."""

    status: str
    columns: list[str] = field(default_factory=lambda: [""] * MOST)
    code: list[str] = field(default_factory=lambda: [""] * MOST)
    running: bool = False


def laws() -> list[str]:
    """What a column can be set to: every registered law, and the target alone."""
    return [TARGET, *listed()]


def couplings() -> list[str]:
    """The registered couplings, the default one first."""
    return sorted(registered_couplings(), key=lambda name: name != "block")


def run(backend: Backend, session: Session, request: Request, colour: str, decode: Decode) -> Iterator[View]:
    """Decode a request in all its columns. An error that concerns all of them is shown in place of the status."""
    session.started += 1
    session.stopping, number = False, session.started
    yield View(render.status("loading the models"), running=True)
    try:
        models = backend.models(session.models)
        new = prepared(session.models, models, request)
    except LossyError as error:
        yield View(render.error(str(error)))
        return
    for one in decode(new, session):
        if session.started != number:
            return
        session.run, session.row = one, None
        yield view(one, models, colour)


def view(run: Run, models: Models, colour: str) -> View:
    """A run as it stands."""
    found = View(render.run_status(run), running=not run.finished)
    for i, output in enumerate(run.outputs):
        found.columns[i] = render.column(run, i, colour)
        if output.finished:
            found.code[i] = script(models, run.request, output.way)
    return found


def recolour(backend: Backend, session: Session, colour: str) -> View:
    """The last run in other colours."""
    if session.run is None:
        return View("")
    return view(session.run, backend.models(session.run.models), colour)


def stop(session: Session) -> None:
    """End what is running after the token that is being written."""
    session.stopping = True


def stopped(session: Session) -> Callable[[], bool]:
    """Whether the comparison that is starting now has to end: stopped, or another one was started."""
    number = session.started
    return lambda: session.stopping or session.started != number


def ways(count: int, settings: list[object]) -> list[Way]:
    """The first ``count`` columns from their controls: law, strength, coupling and draft of each in turn."""
    found = []
    for i in range(count):
        law, strength, coupling, draft = settings[4 * i : 4 * i + 4]
        has = Strength.of(str(law)).name is not None
        value = float(strength) if has and strength is not None else None  # type: ignore[arg-type]
        found.append(Way(str(law), value, str(coupling), str(draft)))
    return found
