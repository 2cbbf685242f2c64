"""The page in gradio: controls, and which function each of them calls."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradio as gr

from ..errors import LossyError
from ..laws import law, listed
from . import compare, law_view, render, trade_off
from .compare import COLOURS, DEFAULT_WAYS, MOST, Strength, View
from .gpu import ZERO, on_gpu
from .models import Backend, Models
from .runs import Request, Run, stream
from .session import Session

TITLE = "hf_lossy: what a lossy law does to a text"
LAST_RUN = "last run"
HAND_SET = ("0.4 0.3 0.15 0.1 0.04 0.01", "0.25 0.2 0.35 0.02 0.1 0.08")
OWN = "own"
FORGOTTEN = 3600
"""Seconds without a click after which a visitor's run is dropped."""


def launch(demo: gr.Blocks, **kwargs: Any) -> Any:
    """Serve the page: with its style, and with fonts that are on the visitor's machine."""
    fonts = ["system-ui", "sans-serif"]
    theme = gr.themes.Default(primary_hue="blue", font=fonts, font_mono=["ui-monospace", "monospace"]).set(
        block_info_text_color="*neutral_600",  # gradio's own is too light to read
        block_info_text_color_dark="*neutral_300",
    )
    style = Path(__file__).with_name("style.css")
    return demo.launch(theme=theme, css_paths=[style], footer_links=[], **kwargs)


def build(backend: Backend) -> gr.Blocks:
    """The four tabs."""
    first = backend.models(backend.first)

    @on_gpu
    def decode(run: Run, session: Session) -> Iterator[Run]:
        yield from stream(run, backend.models(run.models), backend.turns, compare.stopped(session))

    with gr.Blocks(title=TITLE, analytics_enabled=False, fill_width=True) as demo:
        session = gr.State(Session(backend.first), time_to_live=FORGOTTEN)
        gr.HTML(
            '<div class="hl-head"><h1>hf_lossy</h1><p>Lossy verification emits π instead of the target’s p: more tokens of '
            "the draft are kept, and the text becomes another one. See which tokens, and what it costs.</p></div>"
        )
        with gr.Tabs():
            with gr.Tab("Compare", id="compare"):
                comparison = _Comparison(backend, first)
            with gr.Tab("Law", id="law"):
                position = _Position(backend)
            with gr.Tab("Trade-off", id="trade-off") as tab:
                _trade_off(backend, tab)
            with gr.Tab("Models", id="models"):
                _models(backend, session, comparison)
        comparison.connect(session, decode, position)
        position.connect(session)
    return demo.queue(default_concurrency_limit=4)


def in_turn(name: str) -> dict[str, Any]:
    """Settings of events that draw the same place: one after the other, or an early slow one would land over the last."""
    return {"concurrency_id": name, "concurrency_limit": 1}


class _Comparison:
    """The compare tab."""

    def __init__(self, backend: Backend, models: Models) -> None:
        self.backend = backend
        self.prompt = gr.Textbox(models.prompts[0], label="Prompt", lines=1, max_lines=8, elem_id="prompt")
        self.examples = gr.Dataset(
            components=[gr.Textbox(visible=False)], samples=[[p] for p in models.prompts], label="Examples"
        )
        with gr.Row():
            self.run = gr.Button("Run", variant="primary", elem_id="run", min_width=120)
            self.stop = gr.Button("Stop", variant="stop", interactive=False, elem_id="stop", min_width=120)
        with gr.Row():
            self.count = gr.Radio([2, 3, 4], value=3, label="Columns", elem_id="columns")
            self.colour = gr.Radio(list(COLOURS), value=COLOURS[0], label="Colour tokens by", elem_id="colour")
            self.kind = gr.Radio(["chat", "plain"], value="chat", label="Prompt is", visible=not models.arithmetic)
        with gr.Accordion("Sampling and draft length", open=False), gr.Row():
            self.temperature = gr.Slider(0, 2, value=1, step=0.05, label="Temperature", info="0 is greedy")
            self.length = gr.Slider(1, 512, value=_length(models), step=1, label="New tokens", elem_id="length")
            self.seed = gr.Number(0, precision=0, label="Seed", info="the same in every column", elem_id="seed")
            self.gamma = gr.Slider(1, 15, value=5, step=1, label="γ, drafted tokens a round", info="not for trees")
        self.status = gr.HTML(render.status("pick a prompt and press Run"), elem_id="status")
        self.legend = gr.HTML(render.legend(COLOURS[0], models.arithmetic))
        with gr.Row(equal_height=False):
            self.columns = [_column(i, models) for i in range(MOST)]

    @property
    def settings(self) -> list[Any]:
        """The controls of all columns in a row."""
        return [control for column in self.columns for control in column.controls]

    @property
    def shown(self) -> list[Any]:
        """What a run writes to."""
        texts, codes = [c.text for c in self.columns], [c.code for c in self.columns]
        return [self.status, self.run, self.stop, *texts, *codes]

    def connect(self, session: gr.State, decode: compare.Decode, position: _Position) -> None:
        """Connect the controls."""

        def start(session: Session, *values: Any) -> Iterator[list[Any]]:
            prompt, kind, count, colour, temperature, length, seed, gamma, *settings = values
            request = Request(
                prompt or "",
                kind == "chat",
                compare.ways(count, settings),
                temperature,
                int(length),
                int(seed or 0),
                int(gamma),
            )
            for view in compare.run(self.backend, session, request, colour, decode):
                yield _shown(view)
                if ZERO and session.stopping:  # the GPU's process can't see the button
                    yield _shown(dataclasses.replace(view, running=False))
                    return

        inputs = [self.prompt, self.kind, self.count, self.colour, self.temperature, self.length, self.seed, self.gamma]
        started = gr.on(
            [self.run.click, self.prompt.submit],
            start,
            [session, *inputs, *self.settings],
            self.shown,
            show_progress="hidden",
            concurrency_limit=8,
        )
        after = {"show_progress": "hidden", **in_turn("position")}
        started.then(position.refresh, [session, *position.inputs], position.refreshed, **after)
        self.stop.click(compare.stop, session, None, queue=False, show_progress="hidden")
        self.examples.click(lambda sample: sample[0], self.examples, self.prompt, show_progress="hidden")
        self.count.input(
            lambda count: [gr.Column(visible=i < count) for i in range(MOST)],
            self.count,
            [c.block for c in self.columns],
            show_progress="hidden",
        )

        def recolour(session: Session, colour: str) -> list[Any]:
            models = self.backend.models(session.models)
            view = compare.recolour(self.backend, session, colour)
            return [render.legend(colour, models.arithmetic), *view.columns]

        texts = [c.text for c in self.columns]
        self.colour.input(recolour, [session, self.colour], [self.legend, *texts], show_progress="hidden")
        for column in self.columns:
            column.law.input(
                lambda name: _strength(name, help=False), column.law, column.strength, show_progress="hidden"
            )

    @property
    def adopting(self) -> list[Any]:
        """What changes with the models."""
        drafts = [c.draft for c in self.columns]
        return [self.prompt, self.examples, self.kind, self.length, self.legend, *drafts]

    def adopt(self, models: Models, colour: str) -> list[Any]:
        """The controls for other models."""
        drafts = list(models.pairs)
        return [
            models.prompts[0],
            gr.Dataset(samples=[[p] for p in models.prompts]),
            gr.Radio(value="chat" if models.first.tokenizer.chat_template else "plain", visible=not models.arithmetic),
            _length(models),
            render.legend(colour, models.arithmetic),
            *[gr.Dropdown(drafts, value=drafts[0]) for _ in self.columns],
        ]


@dataclass(frozen=True)
class _Column:
    """The controls of one column, and where it writes."""

    block: Any
    law: Any
    strength: Any
    coupling: Any
    draft: Any
    text: Any
    code: Any

    @property
    def controls(self) -> list[Any]:
        return [self.law, self.strength, self.coupling, self.draft]


def _column(i: int, models: Models) -> _Column:
    name, strength = DEFAULT_WAYS[i]
    with gr.Column(visible=i < 3, min_width=250, elem_classes="hl-panel") as block:
        with gr.Group():
            chosen = gr.Dropdown(compare.laws(), value=name, label=f"Law of column {i + 1}", elem_id=f"law-{i + 1}")
            slider = _strength(name, strength, help=False, elem_id=f"strength-{i + 1}")
            with gr.Accordion("Coupling and draft", open=False):
                coupling = gr.Dropdown(compare.couplings(), value="block", label="Coupling")
                drafts = list(models.pairs)
                draft = gr.Dropdown(drafts, value=drafts[0], label="Draft", elem_id=f"draft-{i + 1}")
        text = gr.HTML("", elem_id=f"column-{i + 1}")
        with gr.Accordion("Copy as code", open=False):
            code = gr.Code("", language="python", interactive=False, show_label=False)
    return _Column(block, chosen, slider, coupling, draft, text, code)


def _strength(name: str, value: float | None = None, help: bool = True, **kwargs: Any) -> Any:
    """The slider of a law, with or without what it means."""
    s = Strength.of(name)
    return gr.Slider(
        s.low,
        s.high,
        value=s.value if value is None else value,
        step=s.step,
        label=s.name or "no strength",
        info=s.help if help else None,
        interactive=s.name is not None,
        # kept in its place, so that columns stay level
        elem_classes=[] if s.name else ["hl-none"],
        **kwargs,
    )


def _length(models: Models) -> int:
    """New tokens to begin with: the pair's own number, else 64, and no more than half of what the models take."""
    given = models.first.generate.get("max_new_tokens")
    if given is not None:
        return int(given)
    limits = [limit for draft in models.pairs if (limit := models.limit(draft)) is not None]
    return min([64, *(limit // 2 for limit in limits)])


def _shown(view: View) -> list[Any]:
    """A view for the components of :attr:`_Comparison.shown`."""
    codes = [gr.skip()] * MOST if view.running else view.code
    buttons = [gr.Button(interactive=not view.running), gr.Button(interactive=view.running)]
    return [view.status, *buttons, *view.columns, *codes]


class _Position:
    """The law tab."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        with gr.Row():
            self.source = gr.Radio(
                [LAST_RUN, "set by hand"], value="set by hand", label="Distributions", elem_id="source"
            )
            self.law = gr.Dropdown(listed(), value="lenience", label="Law", elem_id="law")
            self.strength = _strength("lenience", 0.4, elem_id="law-strength")
        with gr.Row(visible=False) as self.of_run:
            self.column = gr.Dropdown([("column 1", 0)], value=0, label="Column", elem_id="law-column", min_width=260)
            self.place = gr.Slider(1, 2, value=1, step=1, label="Token", elem_id="law-position", min_width=260)
        with gr.Row() as self.by_hand:
            self.p = gr.Textbox(HAND_SET[0], label="p, weights of the target", elem_id="hand-p")
            self.q = gr.Textbox(HAND_SET[1], label="q, weights of the draft", elem_id="hand-q")
        self.count = gr.Slider(3, 30, value=8, step=1, label="Tokens shown")
        first = (None, "set by hand", "lenience", 0.4, 0, 1, *HAND_SET, 8)
        self.view = gr.HTML(self.draw(*first), elem_id="law-view")

    @property
    def inputs(self) -> list[Any]:
        return [self.source, self.law, self.strength, self.column, self.place, self.p, self.q, self.count]

    @property
    def refreshed(self) -> list[Any]:
        return [self.source, self.law, self.strength, self.column, self.place, self.view, *self.groups]

    @property
    def groups(self) -> list[Any]:
        return [self.of_run, self.by_hand]

    @staticmethod
    def shown(source: str) -> list[Any]:
        """The controls that a source has."""
        return [gr.Row(visible=source == LAST_RUN), gr.Row(visible=source != LAST_RUN)]

    def draw(self, session: Session | None, *values: Any) -> str:
        """The bars, or what is in the way."""
        source, name, strength, column, place, p_text, q_text, count = values
        try:
            if source == LAST_RUN and session is not None:
                p, q, texts = law_view.at_position(self.backend, session, int(column or 0), int(place) - 1)
                heading = _heading(session, int(column or 0), int(place) - 1)
            else:
                p, q, texts = law_view.by_hand(p_text or "", q_text or "")
                heading = "Weights are scaled to sum to one."
            knob = Strength.of(name).name
            chosen = law(name, **({knob: strength} if knob else {}))
            return render.law_view(law_view.look(p, q, chosen, texts, int(count)), heading)
        except LossyError as error:
            return render.error(str(error))

    def refresh(self, session: Session, *values: Any) -> list[Any]:
        """After a run: the column that is farthest from the target, at its token with the largest distortion."""
        run = session.run
        if run is None or not run.finished or not any(output.records for output in run.outputs):
            return [gr.skip()] * len(self.refreshed)
        columns = [(f"{i + 1}: {output.way}", i) for i, output in enumerate(run.outputs) if output.records]
        column = max((i for _, i in columns), key=lambda i: run.outputs[i].tv)
        output = run.outputs[column]
        assert output.records is not None
        place = 1 + max(range(len(output.tokens)), key=output.records.tv.__getitem__)
        name, strength = output.verifying.law, output.way.strength
        view = self.draw(session, LAST_RUN, name, strength, column, place, *values[5:])
        slider = gr.Slider(maximum=max(2, len(output.tokens)), value=place)
        chosen = gr.Dropdown(columns, value=column)
        return [LAST_RUN, name, _strength(name, strength), chosen, slider, view, *self.shown(LAST_RUN)]

    def connect(self, session: gr.State) -> None:
        """Connect the controls."""
        # Again after a value that the page itself set: the last drawing is of what is shown.
        every = {"show_progress": "hidden", "trigger_mode": "always_last", **in_turn("position")}
        moved = [self.strength.change, self.place.change, self.count.change, self.p.change, self.q.change]
        gr.on(moved, self.draw, [session, *self.inputs], self.view, **every)

        def other_source(session: Session, *values: Any) -> list[Any]:
            return [self.draw(session, *values), *self.shown(values[0])]

        self.source.input(other_source, [session, *self.inputs], [self.view, *self.groups], **every)

        def other_law(session: Session, *values: Any) -> list[Any]:
            value = Strength.of(values[1]).value
            return [_strength(values[1]), self.draw(session, *values[:2], value, *values[3:])]

        self.law.input(other_law, [session, *self.inputs], [self.strength, self.view], **every)

        def other_column(session: Session, *values: Any) -> list[Any]:
            run, column = session.run, int(values[3] or 0)
            if run is None:
                return [gr.skip(), self.draw(session, *values)]
            count = len(run.outputs[column].tokens)
            place = min(values[4], count)
            slider = gr.Slider(maximum=max(2, count), value=place)
            return [slider, self.draw(session, *values[:4], place, *values[5:])]

        self.column.input(other_column, [session, *self.inputs], [self.place, self.view], **every)


def _heading(session: Session, column: int, place: int) -> str:
    assert session.run is not None
    output = session.run.outputs[column]
    before = "".join(output.pieces[max(0, place - 12) : place]).strip()
    after = f"After “{'…' if place > 12 else ''}{before}”" if place else "At the beginning"
    return f"{after}, where column {column + 1} wrote “{output.pieces[place].strip()}”"


def _trade_off(backend: Backend, tab: gr.Tab) -> None:
    """The trade-off tab."""
    found = trade_off.folders(backend)
    with gr.Row(equal_height=True):
        chosen = gr.Dropdown(
            found,
            value=found[0][1] if found else None,
            label="Results",
            elem_id="results",
            visible=bool(found),
            min_width=260,
        )
        named = gr.Textbox(
            label="Or a folder that hf-lossy evaluate wrote",
            visible=backend.local,
            elem_id="folder",
            scale=2,
            min_width=260,
        )
        show = gr.Button("Show", variant="primary", elem_id="show-results", scale=0, min_width=110)
    empty = "No results yet: name a folder of hf-lossy evaluate" if not found else ""
    problem = gr.HTML(render.status(empty), elem_id="results-problem")
    with gr.Row():
        plots = []
        for label in trade_off.SHOWN.values():
            with gr.Column(min_width=320):
                plots.append(gr.Plot(label=label))
    table = gr.Markdown(elem_classes="hl-table", elem_id="results-table")

    def draw(listed: str | None, folder: str) -> list[Any]:
        try:
            figures, text = trade_off.curves(backend, folder or listed or "")
        except LossyError as error:
            return [render.error(str(error)), *[gr.skip()] * (len(plots) + 1)]
        return ["", *figures, text]

    def draw_listed(listed: str | None) -> list[Any]:
        return draw(listed, "") if listed else [gr.skip()] * len(outputs)

    outputs = [problem, *plots, table]
    every = {"show_progress": "minimal", **in_turn("trade-off")}
    gr.on([show.click, named.submit], draw, [chosen, named], outputs, **every)
    gr.on([chosen.input, tab.select], draw_listed, chosen, outputs, **every)


def _models(backend: Backend, session: gr.State, comparison: _Comparison) -> None:
    """The models tab."""
    choices = [*backend.choices(), ("Others, by name", OWN)]
    radio = gr.Radio(choices, value=backend.first, label="Models", elem_id="models")
    with gr.Group(visible=False) as own:
        with gr.Row():
            where = "a Hub id, or a folder" if backend.local else "a Hub id"
            target = gr.Textbox(label="Target", placeholder=where, elem_id="own-target")
            draft = gr.Textbox(
                label="Draft or EAGLE-3 head", placeholder=f"{where}; empty: prompt lookup", elem_id="own-draft"
            )
            dtype = gr.Dropdown(["float32", "bfloat16", "float16"], value=backend.dtype, label="Precision", scale=0)
        with gr.Row():
            check = gr.Button("Check", elem_id="check")
            load = gr.Button("Check and load", variant="primary", elem_id="load")
    status = gr.HTML(render.status(f"in use: {backend.models(backend.first).title}"), elem_id="models-status")
    table = gr.HTML(_inspected(backend.models(backend.first)), elem_id="checks")
    outputs = [status, table, *comparison.adopting]
    kept = [gr.skip()] * len(comparison.adopting)

    def use(session: Session, key: str, colour: str, table: str = "") -> Iterator[list[Any]]:
        yield [render.status("loading: this can take minutes for large models"), table, *kept]
        try:
            models = backend.models(key)
        except LossyError as error:
            yield [render.error(str(error)), table, *kept]
            return
        session.models = key
        yield [render.status(f"in use: {models.title}"), _inspected(models), *comparison.adopt(models, colour)]

    def choose(session: Session, key: str, colour: str) -> Iterator[list[Any]]:
        if key == OWN:
            yield [gr.skip(), gr.skip(), *kept, gr.Group(visible=True)]
            return
        for update in use(session, key, colour):
            yield [*update, gr.Group(visible=False)]

    def look(target: str, draft: str, dtype: str) -> tuple[str, str, str | None]:
        """Status, table, and the key of what fits."""
        try:
            key = backend.name(target or "", draft or "", dtype)
            found = backend.check(key)
        except LossyError as error:
            return render.error(str(error)), "", None
        bad = [c.what for c in found if not c.ok]
        verdict = f"does not fit: {', '.join(bad)}" if bad else "fits"
        return (
            (render.error(verdict) if bad else render.status(verdict)),
            render.check_table(found),
            None if bad else key,
        )

    def checked(target: str, draft: str, dtype: str) -> Iterator[tuple[str, str]]:
        yield render.status("reading configurations and tokenizers"), ""
        yield look(target, draft, dtype)[:2]

    def loaded(session: Session, colour: str, target: str, draft: str, dtype: str) -> Iterator[list[Any]]:
        yield [render.status("reading configurations and tokenizers"), "", *kept]
        status, table, key = look(target, draft, dtype)
        if key is None:
            yield [status, table, *kept]
            return
        yield from use(session, key, colour, table)

    named = [target, draft, dtype]
    radio.input(choose, [session, radio, comparison.colour], [*outputs, own], show_progress="hidden")
    check.click(checked, named, [status, table], show_progress="hidden")
    load.click(loaded, [session, comparison.colour, *named], outputs, show_progress="hidden")


def _inspected(models: Models) -> str:
    """What fits what, of models that are loaded."""
    return "".join(render.check_table(found, f"Draft: {name}") for name, found in models.inspected().items())
