"""Pages and plots made from the registry of laws: a law that is registered has a page, and nothing is listed here."""

from __future__ import annotations

import dataclasses
import inspect
import io
import math
import re
from collections.abc import Iterator

import matplotlib
import numpy as np
import torch
from markup import display, linked
from matplotlib import pyplot as plt

from hf_lossy.accounting import account
from hf_lossy.laws import Law, law_class, listed
from hf_lossy.laws.base import allowed_values
from hf_lossy.numerics import tv

matplotlib.use("Agg")

FAMILIES = {
    "lossless": "Lossless: the target's own distribution",
    "collaborative": "Collaborative: between target and draft",
    "truncation": "Truncation-based: the draft on a set that the target defines",
    "baseline": "Baselines: the target on such a set, verified losslessly",
}
STYLES = {
    "light": {"text": "#333333", "grid": "#d0d0d0", "p": "#9e9e9e", "q": "#1e88e5", "map": "plasma"},
    "dark": {"text": "#d6d8e0", "grid": "#4a4d5a", "p": "#8d909c", "q": "#64b5f6", "map": "spring"},
}
"""A plot for each colour scheme of the site."""
PAIRS, VOCABULARY = 2000, 20
P = torch.tensor([0.34, 0.22, 0.14, 0.10, 0.07, 0.05, 0.035, 0.02, 0.015, 0.01], dtype=torch.float64)
Q = torch.tensor([0.13, 0.30, 0.06, 0.18, 0.02, 0.08, 0.14, 0.01, 0.06, 0.02], dtype=torch.float64)
"""A target's and a draft's distribution, the same on every page."""
FLOOR = 1e-2
"""Where π/p = 0 is drawn on a logarithmic axis."""


def random_pairs() -> tuple[torch.Tensor, torch.Tensor]:
    """Pairs (p, q), [PAIRS, VOCABULARY]: a draft that roughly knows what the target says. Always the same ones."""
    generator = torch.Generator().manual_seed(0)
    shared, own_p, own_q = torch.randn(3, PAIRS, VOCABULARY, generator=generator, dtype=torch.float64)
    return (2 * shared + own_p).softmax(-1), (2 * shared + own_q).softmax(-1)


def strengths(cls: type[Law]) -> list[Law]:
    """The law at the strengths of its grid; as it is where it has none."""
    return [cls(**{cls.knob: strength}) for strength in cls.grid] if cls.knob else [cls()]


def few(laws: list[Law]) -> list[Law]:
    """The first, the middle and the last."""
    return laws if len(laws) <= 3 else [laws[0], laws[len(laws) // 2], laws[-1]]


# --- text ------------------------------------------------------------------------------------------------------------


def formulas(cls: type[Law]) -> list[str]:
    """The indented blocks of a law's docstring as TeX displays."""
    names = [spec.name for spec in dataclasses.fields(cls) if not spec.metadata["choices"]]
    return [
        display([line[4:] for line in block.splitlines()], names) for block in _blocks(cls) if block.startswith("    ")
    ]


def _blocks(cls: type[Law]) -> list[str]:
    return re.split(r"\n\s*\n", inspect.cleandoc(cls.__doc__ or ""))


def prose(cls: type[Law]) -> str:
    """The docstring as Markdown: formulas as TeX, arXiv numbers as links."""
    shown = iter(formulas(cls))
    return "\n\n".join(
        f"$$\n{next(shown)}\n$$" if block.startswith("    ") else linked(block) for block in _blocks(cls)
    )


def bound(law: Law) -> str:
    """The bound on the overshoot in words."""
    largest = law.overshoot_bound
    if math.isinf(largest):
        return "none"
    return f"π/p ≤ {math.exp(largest):.3g} (log {largest:.3g})"


def page(name: str) -> str:
    """The page of a law."""
    cls = law_class(name)
    example = cls()
    baseline = example.matched_baseline()
    parts = [f"# {name}", prose(cls), "## Parameters"]
    rows = [
        f"| `{spec.name}` | {_shown(getattr(example, spec.name))} | {allowed_values(spec)} | {spec.metadata['help']} |"
        for spec in dataclasses.fields(cls)
    ]
    parts.append(
        "\n".join(["| parameter | default | allowed | |", "|---|---|---|---|", *rows]) if rows else "It has none."
    )
    facts = {
        "family": cls.family,
        "π = p at": cls.strict_at,
        "largest overshoot at the default": bound(example),
        "matched baseline": "itself" if baseline == example else f"[`{baseline}`]({baseline.name}.md)",
        "needs the draft's probabilities": "yes" if cls.uses_draft else "no",
        "strength": "–"
        if cls.knob is None
        else f"`{cls.knob}`; worth comparing: {', '.join(f'{x:g}' for x in cls.grid)}",
        "names elsewhere": f"{cls.peers or '–'}",
        "source": linked(cls.reference) or "–",
    }
    lines = [f"| {what} | {said} |" for what, said in facts.items()]
    parts.append("\n".join([lines[0], "|---|---|", *lines[1:]]))
    both = images(f"{name}-position", f"π of {name} beside p and q at one position")
    parts += ["## What it does", f"{both}\n{images(f'{name}-overshoot', f'π/p of {name} against q/p')}", caption(cls)]
    parts += [figures(strengths(cls)), f"Means over {PAIRS:,} random pairs of distributions over {VOCABULARY} tokens."]
    given = "" if cls.knob is None else f", {cls.knob}={cls.grid[0]:g}"
    option = name if cls.knob is None else f"{name}={cls.grid[0]:g}"
    parts += [
        "## Use",
        f"""```python
import torch

import hf_lossy

law = hf_lossy.law("{name}"{given})
p, q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.2, 0.6])
print(law, law.induced(p, q))

target, draft, tokenizer = hf_lossy.embedded.load("arithmetic")
inputs = tokenizer(
    "14 4 1 1 21 :", return_tensors="pt", return_token_type_ids=False
)
tokens = hf_lossy.generate(
    target,
    **inputs,
    assistant_model=draft,
    verification=law,
    do_sample=True,
    max_new_tokens=24,
)
```""",
        f"```bash\nhf-lossy compare --law {option}\n```",
    ]
    return "\n\n".join(parts) + "\n"


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else f"`{value!r}`"


def caption(cls: type[Law]) -> str:
    """What the plot shows."""
    bounded = any(math.isfinite(law.overshoot_bound) and not law.is_strict for law in strengths(cls))
    ceiling = " Dashed: the ceiling of each strength." if bounded else ""
    return (
        "First: what is emitted at one position. Second: π/p of each token of a larger vocabulary against its q/p, both "
        f"logarithmic; crosses at the bottom are tokens that are never emitted.{ceiling}"
    )


def figures(laws: list[Law]) -> str:
    """A table of what laws do to the random pairs."""
    p, q = random_pairs()
    lines = ["| | acceptance | TV(π, p) | waste | largest π/p | bound |", "|---|---:|---:|---:|---:|---|"]
    for law in laws:
        bill = account(p, q, law.induced(p, q))
        means = [f"{bill.acceptance.mean():.3f}", f"{bill.tv.mean():.3f}", f"{bill.wasted_distortion.mean():.3f}"]
        lines.append(f"| `{law}` | {' | '.join(means)} | {bill.max_log_ratio.max().exp():.3g} | {bound(law)} |")
    return "\n".join(lines)


def index() -> str:
    """The overview."""
    parts = [
        "# Laws",
        "A law is a map (p, q) → π from the target's and the draft's next-token distributions to the one that is emitted. "
        "These pages are made from the registry. [Choosing a law](../choosing.md) says which to take; "
        "[Adding a law](../adding-a-law.md) how to write one.",
    ]
    for family, title in FAMILIES.items():
        rows = []
        for name in listed():
            cls = law_class(name)
            if cls.family == family:
                summary = _blocks(cls)[0].replace("\n", " ")
                rows.append(f"| [`{name}`]({name}.md) | {summary} | {cls.strict_at} | {bound(cls())} |")
        head = ["| law | | π = p at | overshoot at the default |", "|---|---|---|---|"]
        parts += [f"## {title}", "\n".join([*head, *rows])]
    p, q = random_pairs()
    parts += [
        "## Acceptance against distortion",
        images("exchange", "acceptance against distortion of every law at the strengths of its grid"),
        f"Means over {PAIRS:,} random pairs of distributions over {VOCABULARY} tokens, whose mean TV(p, q) is "
        f"{tv(p, q).mean():.2f}; each curve runs over the strengths of a law's grid. On the dashed line acceptance is "
        "bought one for one; what lies below it is waste.",
        "## At the defaults",
        figures([law_class(name)() for name in listed()]),
        f"The same {PAIRS:,} pairs. The largest π/p is the largest of all their tokens.",
    ]
    return "\n\n".join(parts) + "\n"


# --- plots -----------------------------------------------------------------------------------------------------------


def images(name: str, alt: str) -> str:
    """Both variants of a plot, of which the site shows the one for its colour scheme."""
    return "\n".join(f"![{alt}](images/{name}-{scheme}.svg#only-{scheme})" for scheme in STYLES)


def _svg(figure: plt.Figure) -> str:
    text = io.StringIO()
    figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    plt.close(figure)
    return text.getvalue()


def _styled(style: dict[str, str]) -> dict[str, object]:
    names = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color", "axes.titlecolor")
    return {
        **dict.fromkeys(names, style["text"]),
        "svg.hashsalt": "hf_lossy",  # the same file from the same code
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "legend.frameon": False,
        "legend.fontsize": 8,
        "grid.color": style["grid"],
    }


def colours(count: int, style: dict[str, str]) -> list[object]:
    """Of strengths, from the first to the last."""
    return [plt.get_cmap(style["map"])(0.25 + 0.55 * i / max(1, count - 1)) for i in range(count)]


def position(name: str, style: dict[str, str]) -> str:
    """π beside p and q at one position."""
    shown = few(strengths(law_class(name)))
    with plt.rc_context(_styled(style)):
        figure, axes = plt.subplots(figsize=(4.8, 3.4), layout="constrained")
        place = np.arange(len(P))
        axes.bar(place - 0.2, P.numpy(), 0.38, color=style["p"], alpha=0.65, label="p, target")
        axes.bar(place + 0.2, Q.numpy(), 0.38, color=style["q"], alpha=0.45, label="q, draft")
        for law, colour, marker in zip(shown, colours(len(shown), style), "osD", strict=False):
            axes.plot(place, law.induced(P, Q).numpy(), marker, ms=4.5, color=colour, label=f"π, {law}")
        axes.set(xlabel="token, by p", ylabel="probability", xticks=place, xticklabels=place.tolist())
        axes.legend()
        return _svg(figure)


def overshoot(name: str, style: dict[str, str]) -> str:
    """π/p against q/p, token by token."""
    shown = few(strengths(law_class(name)))
    p, q = wide_pair()
    ratio = (q / p).numpy()
    with plt.rc_context(_styled(style)):
        figure, axes = plt.subplots(figsize=(4.8, 3.4), layout="constrained")
        for law, colour in zip(shown, colours(len(shown), style), strict=True):
            over = (law.induced(p, q) / p).numpy()
            kept = over > 0
            axes.plot(ratio[kept], over[kept], ".", ms=3, color=colour, label=f"{law}")
            axes.plot(ratio[~kept], np.full_like(ratio[~kept], FLOOR), "x", ms=3, color=colour, alpha=0.5)
            if math.isfinite(law.overshoot_bound) and not law.is_strict:
                axes.axhline(math.exp(law.overshoot_bound), color=colour, lw=0.8, ls="--")
        ends = np.array([ratio.min(), ratio.max()])
        axes.plot(ends, ends, color=style["text"], lw=0.7, ls=":", label="π = q")
        axes.axhline(1, color=style["text"], lw=0.7, label="π = p")
        axes.set(xscale="log", yscale="log", xlabel="q/p", ylabel="π/p", ylim=(FLOOR * 0.7, 3 * ratio.max()))
        axes.legend(loc="lower right", markerscale=2)
        return _svg(figure)


def wide_pair() -> tuple[torch.Tensor, torch.Tensor]:
    """A pair over 300 tokens whose q/p runs over four orders of magnitude."""
    generator = torch.Generator().manual_seed(1)
    shared, own = torch.randn(2, 300, generator=generator, dtype=torch.float64)
    return (1.2 * shared).softmax(-1), (1.2 * shared + 1.6 * own).softmax(-1)


def exchange(style: dict[str, str]) -> str:
    """Mean acceptance against mean distortion for every law that has a strength."""
    p, q = random_pairs()
    apart = float(tv(p, q).mean())
    with plt.rc_context(_styled(style)):
        figure, axes = plt.subplots(figsize=(8, 4.6), layout="constrained")
        line = np.array([0, apart])
        axes.plot(line, 1 - apart + line, color=style["text"], lw=1, ls="--", label="one for one")
        laws = [law_class(name) for name in listed() if law_class(name).knob]
        for i, cls in enumerate(laws):
            bills = [account(p, q, law.induced(p, q)) for law in strengths(cls)]
            x, y = [float(b.tv.mean()) for b in bills], [float(b.acceptance.mean()) for b in bills]
            hollow = {} if cls.uses_draft else {"markerfacecolor": "none"}
            axes.plot(x, y, marker="ovs^DPX*<>"[i % 10], ms=5, lw=1, color=f"C{i % 10}", label=cls.name, **hollow)
        axes.set(xlabel="TV(π, p), distortion", ylabel="acceptance, Σ min(π, q)")
        axes.grid(alpha=0.5)
        axes.legend(ncols=2)
        return _svg(figure)


def pages() -> Iterator[tuple[str, str]]:
    """Every generated file, (path in the docs folder, content)."""
    yield "laws/index.md", index()
    for name in listed():
        yield f"laws/{name}.md", page(name)


def plots() -> Iterator[tuple[str, str]]:
    """Every generated plot."""
    for scheme, style in STYLES.items():
        yield f"laws/images/exchange-{scheme}.svg", exchange(style)
        for name in listed():
            yield f"laws/images/{name}-position-{scheme}.svg", position(name, style)
            yield f"laws/images/{name}-overshoot-{scheme}.svg", overshoot(name, style)
