"""What the page shows, as HTML. Everything that comes from a user or a model is escaped here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from ..embedded import clock_sums
from ..fit import Check
from .law_view import REGIONS, LawView
from .runs import TARGET, Output, Run

SOURCES = {
    "accepted": "drafted and kept",
    "replaced": "drawn in place of a refused token",
    "bonus": "drawn after a block that was kept whole",
    TARGET: "decoded by the target alone",
}
OVERSHOOTS = ((1.0, "π ≤ p"), (1.25, "to 1.25 p"), (2.0, "to 2 p"), (4.0, "to 4 p"), (math.inf, "above 4 p"))
"""Upper ends of π/p and what they are called."""
_CLASSES = {"accepted": "accepted", "replaced": "replaced", "bonus": "bonus", TARGET: "target"}


def number(value: float, digits: int = 2) -> str:
    """A number for people; a dash where there is none."""
    return "–" if math.isnan(value) else "∞" if math.isinf(value) else f"{value:.{digits}f}"


def probability(value: float) -> str:
    """A probability for people: one that is not 0 does not look like 0."""
    return "< 0.001" if 0 < value < 0.001 else number(value, 3)


def error(message: str) -> str:
    """Something that went wrong, for the whole page or a column."""
    return f'<div class="hl-error" role="alert">{escape(message)}</div>'


def status(message: str) -> str:
    """A line about what is going on."""
    return f'<div class="hl-status" role="status">{escape(message)}</div>'


def run_status(run: Run) -> str:
    """How far a run is."""
    written = sum(len(output.tokens) for output in run.outputs)
    if not run.finished:
        return status(f"decoding: {written} tokens so far")
    how = "stopped" if any(output.state == "stopped" for output in run.outputs) else "done"
    return status(f"{how}: {written} tokens in {len(run.outputs)} columns")


# --- the columns of the comparison ------------------------------------------------------------------------------------


def column(run: Run, index: int, colour: str) -> str:
    """A column: heading, progress, tokens, verdict and figures."""
    output = run.outputs[index]
    parts = [f"<h4>{escape(str(output.way))}</h4>", _progress(output)]
    if output.error:
        parts.append(error(output.error))
    if output.tokens:
        parts.append(_tokens(run, index, colour))
    if output.right is not None and run.operands is not None:
        parts.append(_verdict(output, run.operands))
    if output.finished and not output.error:
        parts.append(_figures(run, index))
    return f'<div class="hl-column" data-state="{output.state}">{"".join(parts)}</div>'


def _progress(output: Output) -> str:
    if output.finished:
        return ""
    return (
        f'<progress max="{output.limit}" value="{len(output.tokens)}"></progress>'
        f'<span class="hl-count">{len(output.tokens)} / {output.limit}</span>'
    )


def _tokens(run: Run, index: int, colour: str) -> str:
    output, split = run.outputs[index], run.divergence(index)
    spans = []
    for i, piece in enumerate(output.pieces[: len(output.tokens)]):
        classes = ["hl-tok", _colour(output, i, colour)]
        classes += ["hl-split"] if i == split else []
        classes += ["hl-mistake"] if i == output.mistake else []
        tip = escape(_tip(output, i, i == split), quote=True)
        shown = escape(piece).replace("\n", "↵\n") or "∅"
        spans.append(
            f'<span class="{" ".join(classes)}" tabindex="0" data-tip="{tip}" aria-label="{tip}">{shown}</span>'
        )
    return f'<div class="hl-tokens">{"".join(spans)}</div>'


def _colour(output: Output, i: int, colour: str) -> str:
    if output.records is None:
        return "hl-written"
    if colour == "source":
        return f"hl-{_CLASSES[output.sources[i]]}"
    # a rounding error is no overshoot
    ratio = math.exp(output.records.overshoot[i]) - 1e-6
    return f"hl-over{next(k for k, (end, _) in enumerate(OVERSHOOTS) if ratio <= end)}"


def _tip(output: Output, i: int, split: bool) -> str:
    """What is said about a token under the pointer."""
    lines = [f"{i + 1}: {output.pieces[i].strip() or output.pieces[i]!r}"]
    if output.records is not None:
        r = output.records
        lines[0] += f" · {output.sources[i]}"
        lines.append(" · ".join(f"{name} {probability(x[i])}" for name, x in (("p", r.p), ("q", r.q), ("π", r.pi))))
        lines.append(f"acceptance {number(r.acceptance[i])} · π/p {number(math.exp(r.overshoot[i]))}")
    if split:
        lines.append("the first token that differs")
    return "\n".join(lines)


def _verdict(output: Output, operands: Sequence[int]) -> str:
    answer = sum(operands) % clock_sums.MODULUS
    if output.right:
        return f'<div class="hl-verdict hl-right">✓ right: {answer}</div>'
    if output.state == "stopped":
        return '<div class="hl-verdict">stopped before the answer</div>'
    return f'<div class="hl-verdict hl-wrong">✗ wrong: it is {answer}</div>'


def _figures(run: Run, index: int) -> str:
    output = run.outputs[index]
    cells = [
        ("tokens/s", number(output.tokens_per_second, 1), "tokens over this column's own seconds, prefill included"),
        ("speed-up", f"{number(run.speed_up(index))}×", "tokens/s over those of the first column"),
        ("block efficiency", number(output.block_efficiency), "tokens a target forward"),
        ("TV(π, p)", number(output.tv, 3), "mean over the positions"),
        ("sequence KL", number(output.kl), "Σ KL(π‖p) over the positions, nats; estimates KL(Π‖P)"),
        ("max log π/p", number(output.max_log_ratio), "largest over positions and tokens, nats"),
    ]
    return (
        '<dl class="hl-figures">'
        + "".join(f'<div title="{escape(why)}"><dt>{name}</dt><dd>{value}</dd></div>' for name, value, why in cells)
        + "</dl>"
    )


def legend(colour: str, arithmetic: bool) -> str:
    """What the colours mean."""
    if colour == "source":
        items = [(f"hl-{_CLASSES[name]}", name, why) for name, why in SOURCES.items()]
    else:
        items = [(f"hl-over{k}", name, "π/p of the token") for k, (_, name) in enumerate(OVERSHOOTS)]
    items.append(("hl-split", "first difference", "where a column leaves the first one"))
    if arithmetic:
        items.append(("hl-mistake", "first mistake", "where the sum goes wrong"))
    spans = "".join(f'<span class="hl-tok {c}" title="{escape(why)}">{escape(name)}</span> ' for c, name, why in items)
    return f'<div class="hl-legend">{spans}</div>'


# --- the law ----------------------------------------------------------------------------------------------------------


def law_view(found: LawView, heading: str) -> str:
    """Bars of p, q and π of the likeliest tokens, the region of each, and the figures of the position."""
    widest = max((max(t.p, t.q, t.pi) for t in found.tokens), default=1.0) or 1.0
    rows = []
    for t in found.tokens:
        lines = "".join(
            f'<div class="hl-line"><i class="hl-{name}" style="width:{100 * value / widest:.2f}%"></i>'
            f"<b>{symbol} {probability(value)}</b></div>"
            for name, symbol, value in (("p", "p", t.p), ("q", "q", t.q), ("pi", "π", t.pi))
        )
        ratio = t.pi / t.p if t.p else math.inf if t.pi else math.nan
        kind = t.region.split()[0]
        rows.append(
            f'<div class="hl-bar" data-region="{t.region}"><div class="hl-name">{_visible(t.text)}</div>'
            f'<div class="hl-lines">{lines}</div>'
            f'<div class="hl-side"><span class="hl-region hl-{kind}">{t.region}</span>'
            f"<span>π/p {number(ratio)}</span></div></div>"
        )
    more = f'<div class="hl-status">and {found.rest} more tokens</div>' if found.rest else ""
    return (
        f'<div class="hl-law"><div class="hl-status">{escape(heading)}</div>{_law_figures(found)}'
        f'<div class="hl-bars">{"".join(rows)}</div>{more}{_regions()}</div>'
    )


def _law_figures(found: LawView) -> str:
    f, bound = found.figures, found.law.overshoot_bound
    cells = [
        ("TV(π, p)", number(float(f.tv), 3), "distortion"),
        ("TV(p, q)", number(found.tv_draft, 3), "how far the draft is from the target"),
        ("acceptance", number(float(f.acceptance), 3), "Σ min(π, q)"),
        ("wasted", number(float(f.wasted_distortion), 3), "distortion that buys no acceptance"),
        ("KL(π‖p)", number(float(f.kl), 3), "nats"),
        ("max log π/p", number(float(f.max_log_ratio)), "nats"),
        ("its bound", "none" if math.isinf(bound) else number(bound), "largest log π/p over all p and q, nats"),
    ]
    inner = "".join(f'<div title="{escape(why)}"><dt>{name}</dt><dd>{value}</dd></div>' for name, value, why in cells)
    return f'<dl class="hl-figures">{inner}</dl>'


def _regions() -> str:
    items = "".join(
        f'<li><span class="hl-region hl-{name.split()[0]}">{name}</span> {escape(why)}</li>'
        for name, why in REGIONS.items()
    )
    return f'<ul class="hl-regions">{items}</ul>'


def _visible(text: str) -> str:
    """A token's text with its spaces and line ends to be seen."""
    stripped = text.strip()
    return escape(stripped if stripped else repr(text))


# --- the models -------------------------------------------------------------------------------------------------------


def check_table(found: Sequence[Check], heading: str = "") -> str:
    """What was checked of a target and a draft."""
    rows = "".join(
        f"<tr><td>{escape(c.what)}</td><td>{escape(c.found)}</td>"
        f'<td class="{"hl-right" if c.ok else "hl-wrong"}">{"✓ ok" if c.ok else "✗ no"}</td></tr>'
        for c in found
    )
    title = f"<h4>{escape(heading)}</h4>" if heading else ""
    return f'{title}<table class="hl-checks"><tr><th></th><th>target / draft</th><th></th></tr>{rows}</table>'
