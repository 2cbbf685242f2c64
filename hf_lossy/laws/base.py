"""The registry and the base class of all laws. Torch only."""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeVar, get_args, get_type_hints

from jaxtyping import Float, Int
from torch import Tensor

from ..errors import LossyError, unknown
from ..numerics import at, one_hot

Family = Literal["lossless", "collaborative", "truncation", "baseline"]


def parameter(
    default: Any,
    help: str,
    low: float = -math.inf,
    high: float = math.inf,
    *,
    open_low: bool = False,
    open_high: bool = False,
    choices: tuple[str, ...] = (),
    derive: Callable[[Any], Any] | None = None,
) -> Any:
    """A law's parameter: a dataclass field with its help text and its range, both checked and shown from here.

    ``derive`` computes the value from the law's other parameters where it is left at None.
    """
    bounds = {"low": low, "high": high, "open_low": open_low, "open_high": open_high}
    return field(default=default, metadata={"help": help, "choices": choices, "derive": derive, **bounds})


def allowed_values(spec: dataclasses.Field[Any]) -> str:
    """The allowed values of a parameter in words, ``"(0, 1]"``, ``"at least 0"`` or ``"'draft' or 'target'"``."""
    m = spec.metadata
    if m["choices"]:
        return " or ".join(map(repr, m["choices"]))
    if spec.type in ("bool", bool):
        return "True or False"
    if math.isinf(m["high"]):
        return f"{'greater than' if m['open_low'] else 'at least'} {m['low']:g}"
    return f"in {'(' if m['open_low'] else '['}{m['low']:g}, {m['high']:g}{')' if m['open_high'] else ']'}"


@dataclass(frozen=True)
class Law:
    """What is emitted: a map (p, q) → π from the target's and the draft's next-token distributions.

    A law is a frozen dataclass whose fields are made with :func:`parameter`; a subclass writes `_induced` and says what
    it is with the class attributes below. It goes into a file of its own in ``hf_lossy/laws`` under ``@register``.
    """

    name: ClassVar[str]
    """The registered name."""
    family: ClassVar[Family]
    """What kind of rule it is; collaborative laws mix p and q, truncation-based ones use a set."""
    uses_draft: ClassVar[bool] = True
    """Whether π depends on q."""
    knob: ClassVar[str | None] = None
    """The parameter that sets the strength."""
    grid: ClassVar[tuple[float, ...]] = ()
    """Strengths worth comparing, from 2607.26627 where it has them."""
    strict_at: ClassVar[str] = "never"
    """The strict setting in words."""
    peers: ClassVar[str] = ""
    """What other systems call it."""
    reference: ClassVar[str] = ""
    """Where it comes from."""

    def __post_init__(self) -> None:
        for spec in dataclasses.fields(self):
            value = getattr(self, spec.name)
            if value is not None or not spec.metadata["derive"]:
                self._check(spec, value)
            if isinstance(value, numbers.Real) and not isinstance(value, int | float):
                object.__setattr__(self, spec.name, float(value))  # a numpy number, which JSON can't store
        for spec in dataclasses.fields(self):
            if getattr(self, spec.name) is None:
                object.__setattr__(self, spec.name, spec.metadata["derive"](self))

    def _check(self, spec: dataclasses.Field[Any], value: Any) -> None:
        m = spec.metadata
        if m["choices"]:
            ok = value in m["choices"]
        elif isinstance(spec.default, bool):
            ok = isinstance(value, bool)
        else:
            ok = isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)
            ok = ok and (m["low"] < value if m["open_low"] else m["low"] <= value)
            ok = ok and (value < m["high"] if m["open_high"] else value <= m["high"])
        if not ok:
            raise LossyError(f"{self.name}: {spec.name} must be {allowed_values(spec)}, got {value!r}")

    # --- the law -------------------------------------------------------------------------------------------------

    def induced(
        self, p: Float[Tensor, "*batch vocab"], q: Float[Tensor, "*batch vocab"]
    ) -> Float[Tensor, "*batch vocab"]:
        """π, the distribution that is emitted at a position.

        Args:
            p: the target's distribution, rows that sum to one, after processors and warpers.
            q: the draft's distribution at the same prefix, the one the draft token was sampled from.
        """
        return p if self.is_strict else self._induced(p, q)

    def _induced(
        self, p: Float[Tensor, "*batch vocab"], q: Float[Tensor, "*batch vocab"]
    ) -> Float[Tensor, "*batch vocab"]:
        raise NotImplementedError

    @property
    def is_strict(self) -> bool:
        """Whether π = p whatever q is."""
        return False

    @property
    def needs_draft(self) -> bool:
        """Whether π depends on q at this setting."""
        return self.uses_draft and not self.is_strict

    def matched_baseline(self) -> Law:
        """The law that this one has to beat under the same draft and coupling (2607.26627, Section 5)."""
        return law("lossless")

    @property
    def overshoot_bound(self) -> float:
        """The largest possible log(π/p) in nats over all p and q: 0 at the strict setting, ``inf`` where there is none."""
        return 0.0 if self.is_strict else math.inf

    def shape_draft(self, q: Float[Tensor, "*batch vocab"]) -> Float[Tensor, "*batch vocab"]:
        """The distribution that the draft samples from, given its own; the identity unless a law truncates the draft."""
        return q

    def keeps(self, p: Float[Tensor, "*batch vocab"], token: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
        """With what probability a candidate that counts as q = 1 is kept: π(token) at q = δ_token, unless a law says
        otherwise. See :func:`hf_lossy.couplings.sibling_walk`."""
        return at(self.induced(p, one_hot(token, p)), token)

    def published_rule(
        self, p: Float[Tensor, "*batch vocab"], q: Float[Tensor, "*batch vocab"]
    ) -> tuple[Float[Tensor, "*batch vocab"], Float[Tensor, "*batch vocab"]] | None:
        """(h, r): the acceptance probability of each token and the replacement law as first published.

        None where that is no different from the token coupling of π. With them π = q h + (1 − Σ q h) r.
        """
        return None

    # --- telling about itself ------------------------------------------------------------------------------------

    @classmethod
    def examples(cls) -> Iterator[Law]:
        """Settings that the test battery runs: the grid of the knob, and whatever variants a law adds."""
        yield cls()
        for strength in cls.grid:
            yield cls(**{cls.knob: strength}) if cls.knob else cls()

    def parameters(self) -> dict[str, Any]:
        """The parameters by name."""
        return {spec.name: getattr(self, spec.name) for spec in dataclasses.fields(self)}

    def to_dict(self) -> dict[str, Any]:
        """``{"method": name, **parameters}``, which :func:`make` turns back into the law."""
        return {"method": self.name, **self.parameters()}

    def __str__(self) -> str:
        """Name and the parameters that are not at their defaults, ``lenience(0.4)``."""
        shown = []
        for spec in dataclasses.fields(self):
            value = getattr(self, spec.name)
            if spec.name == self.knob:
                shown.append(f"{value:g}")
            elif value != (spec.metadata["derive"](self) if spec.default is None else spec.default):
                shown.append(f"{spec.name}={value}")
        return f"{self.name}({', '.join(shown)})" if shown else self.name


L = TypeVar("L", bound=type[Law])
_REGISTRY: dict[str, type[Law]] = {}


def register(cls: L) -> L:
    """Class decorator: make a law known by its name. Checks what the rest of the package relies on."""
    if not (isinstance(cls, type) and issubclass(cls, Law)):
        raise TypeError(f"register needs a subclass of Law, got {cls!r}")
    name = getattr(cls, "name", None)
    if not isinstance(name, str) or not name.isidentifier() or name != name.lower():
        raise TypeError(f"{cls.__name__}.name must be a lower-case identifier, got {name!r}")
    known = _REGISTRY.get(name)
    if known is not None and (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
        raise TypeError(f"{cls.__name__}: the name {name!r} is taken by {known.__name__} of {known.__module__}")
    if getattr(cls, "family", None) not in get_args(Family):
        raise TypeError(f"{cls.__name__}.family must be one of {get_args(Family)}")
    if not getattr(vars(cls).get("__dataclass_params__"), "frozen", False):  # its own, not Law's
        raise TypeError(f"{cls.__name__} must be a frozen dataclass (@register above @dataclass(frozen=True))")
    loose = [f.name for f in dataclasses.fields(cls) if "help" not in f.metadata]
    if loose:
        raise TypeError(f"{cls.__name__}: make the field {loose[0]!r} with parameter(default, help, ...)")
    if cls.knob is not None and cls.knob not in get_type_hints(cls):
        raise TypeError(f"{cls.__name__}.knob names {cls.knob!r}, which is not one of its parameters")
    _REGISTRY[name] = cls
    return cls


def names() -> list[str]:
    """The registered names, in the order of registration."""
    return list(_REGISTRY)


def law_class(name: str) -> type[Law]:
    """The class registered under a name."""
    if name not in _REGISTRY:
        raise unknown("verification", name, _REGISTRY)
    return _REGISTRY[name]


def law(name: str, **parameters: Any) -> Law:
    """Make a law by name, ``law("lenience", lenience=0.4)``.

    Raises:
        LossyError: unknown name, a parameter of another method, or a value out of range.
    """
    cls = law_class(name)
    known = {spec.name for spec in dataclasses.fields(cls)}
    for key in parameters:
        if key not in known:
            owners = [n for n, c in _REGISTRY.items() if key in {s.name for s in dataclasses.fields(c)}]
            has = f"it has {', '.join(map(repr, sorted(known)))}" if known else "it has no parameters"
            whose = f"; {key!r} belongs to {', '.join(owners)}" if owners else ""
            raise LossyError(f"{name} has no parameter {key!r} (got {parameters[key]!r}): {has}{whose}")
    return cls(**parameters)


def make(verification: str | dict[str, Any] | Law, config: dict[str, Any] | None = None) -> Law:
    """A law from what a user may give: a name with its parameters, a dict ``{"method": ..., ...}``, or an instance."""
    if isinstance(verification, Law):
        if config:
            raise LossyError(
                f"verification_config={config!r} was given beside the instance {verification}: "
                "put the parameters into the instance, or give verification by name"
            )
        return verification
    if isinstance(verification, dict):
        if "method" not in verification:
            raise LossyError(f"verification={verification!r} needs the key 'method', one of {', '.join(names())}")
        given = {k: v for k, v in verification.items() if k != "method"}
        both = sorted(given.keys() & (config or {}).keys())
        if both:
            raise LossyError(f"verification and verification_config both set {both[0]!r}: leave one of them out")
        return law(verification["method"], **given, **(config or {}))
    if not isinstance(verification, str):
        raise LossyError(
            f"verification must be a name, a dict with 'method', or a Law, got {type(verification).__name__}"
        )
    return law(verification, **(config or {}))
