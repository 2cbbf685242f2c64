"""One run of the comparison: the same prompt in several columns at the same time."""

from __future__ import annotations

import dataclasses
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import StoppingCriteria, StoppingCriteriaList
from transformers.generation.streamers import BaseStreamer

from ..embedded import clock_sums
from ..errors import LossyError
from ..generation import VerificationStats, generate
from ..laws import Law, law, law_class
from ..loading import Pair
from .models import Models
from .pieces import Pieces
from .records import Records, distributions, records
from .turns import StopWatch, Turns

TARGET = "target alone"
REFRESH = 0.1
"""Seconds between two looks at the columns."""
log = logging.getLogger(__name__)
State = Literal["waiting", "running", "done", "stopped", "failed"]


@dataclass(frozen=True)
class Way:
    """How a column decodes: the law (:data:`TARGET` for none) at a strength, its coupling, and the draft by name."""

    law: str
    strength: float | None
    coupling: str
    draft: str

    def verification(self) -> Law | None:
        """The law, None for the target alone."""
        return None if self.law == TARGET else law(self.law, **self.parameters())

    def parameters(self) -> dict[str, float]:
        """The law's parameters, as ``verification_config`` takes them."""
        knob = law_class(self.law).knob
        return {} if knob is None or self.strength is None else {knob: self.strength}

    def __str__(self) -> str:
        return str(self.verification() or TARGET)


@dataclass(frozen=True)
class Request:
    """What is to be decoded, the same in all columns.

    Attributes:
        prompt: as it was typed.
        chat: whether it goes into the tokenizer's chat template.
        ways: the columns.
        temperature: 0 is greedy.
        max_new_tokens, seed: of every column.
        gamma: drafted tokens in a round, of drafts that are chains; None: the pair's own.
    """

    prompt: str
    chat: bool
    ways: Sequence[Way]
    temperature: float = 1.0
    max_new_tokens: int = 64
    seed: int = 0
    gamma: int | None = None

    def text(self, pair: Pair) -> str:
        """The prompt as the model sees it."""
        return pair.chat(self.prompt) if self.chat else self.prompt

    def arguments(self, pair: Pair, way: Way) -> dict[str, Any]:
        """The arguments of ``generate`` besides the inputs, the randomness and what only watches."""
        sampling: dict[str, Any] = {"do_sample": self.temperature > 0, "max_new_tokens": self.max_new_tokens}
        if self.temperature > 0:
            sampling |= {"temperature": self.temperature, "top_k": 0, "top_p": 1.0}
        if way.law == TARGET:
            return sampling
        shape = {}
        if pair.head is None:
            shape["prompt_lookup_num_tokens" if pair.draft is None else "num_assistant_tokens"] = self.gamma
        given = {"verification": way.law, "verification_config": way.parameters() or None, "coupling": way.coupling}
        return pair.drafting(**shape) | {k: v for k, v in given.items() if v is not None} | sampling


@dataclass
class Output:
    """What a column has written so far, and in the end how.

    Attributes:
        way: its settings.
        limit: the most tokens it may write.
        tokens: the emitted ids.
        pieces: their texts; joined they are the text.
        state: where it stands; ``error`` says why it failed.
        seconds: its own decoding time, without the turns of others.
        sources: of each token, ``"accepted"``, ``"replaced"``, ``"bonus"``, or :data:`TARGET`; known at the end.
        rounds: tokens emitted by each round.
        block_efficiency: tokens a target forward.
        records: p, q and π of each token.
        right, mistake: on clock sums whether the answer is right, and the first token that is not.
    """

    way: Way
    limit: int
    tokens: list[int] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    state: State = "waiting"
    error: str = ""
    seconds: float = 0.0
    sources: list[str] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)
    block_efficiency: float = math.nan
    records: Records | None = None
    right: bool | None = None
    mistake: int | None = None

    @property
    def finished(self) -> bool:
        """Whether nothing more will come."""
        return self.state in ("done", "stopped", "failed")

    @property
    def verifying(self) -> Way:
        """The column's way; for the target alone the law that emits the same, lossless."""
        return dataclasses.replace(self.way, law="lossless", coupling="block") if self.way.law == TARGET else self.way

    @property
    def tokens_per_second(self) -> float:
        """Tokens over the column's own seconds, prefill included."""
        return len(self.tokens) / self.seconds if self.seconds else math.nan

    @property
    def tv(self) -> float:
        """Mean TV(π, p) of a position."""
        return _mean(self.records.tv) if self.records else math.nan

    @property
    def kl(self) -> float:
        """Σ KL(π‖p) over the sequence in nats, an unbiased estimate of the sequence-level KL."""
        return sum(self.records.kl) if self.records else math.nan

    @property
    def max_log_ratio(self) -> float:
        """The largest log(π/p) over positions and tokens, in nats."""
        return max(self.records.max_log_ratio, default=math.nan) if self.records else math.nan


@dataclass
class Run:
    """A comparison, running or finished.

    Attributes:
        models: key of the models.
        request: what was asked for.
        prompt: token ids.
        outputs: the columns.
        operands: of a clock sum.
    """

    models: str
    request: Request
    prompt: list[int]
    outputs: list[Output]
    operands: list[int] | None = None

    @property
    def finished(self) -> bool:
        """Whether all columns are."""
        return all(output.finished for output in self.outputs)

    def divergence(self, column: int) -> int | None:
        """The first token at which a column differs from the first one; of the first one, from any other."""
        if column:
            return first_difference(self.outputs[0], self.outputs[column])
        found = [first_difference(self.outputs[0], other) for other in self.outputs[1:]]
        return min((place for place in found if place is not None), default=None)

    def speed_up(self, column: int) -> float:
        """Tokens a second over those of the first column."""
        return self.outputs[column].tokens_per_second / self.outputs[0].tokens_per_second


def first_difference(a: Output, b: Output) -> int | None:
    """The first place at which two columns have different tokens; where one ends, only when it is finished."""
    for place, (x, y) in enumerate(zip(a.tokens, b.tokens, strict=False)):
        if x != y:
            return place
    shorter, longer = sorted((a, b), key=lambda output: len(output.tokens))
    return len(shorter.tokens) if shorter.state == "done" and len(longer.tokens) > len(shorter.tokens) else None


def prepared(key: str, models: Models, request: Request) -> Run:
    """A run that has not begun, after all that can be checked beforehand.

    Raises:
        LossyError: a prompt that is empty, too long, or in words that the models don't know.
    """
    if not request.prompt.strip():
        raise LossyError("the prompt is empty: type one, or pick an example")
    operands = None
    if models.arithmetic:
        stray = [word for word in request.prompt.split() if word not in clock_sums.WORDS]
        if stray:
            raise LossyError(
                f"{stray[0]!r} is not one of the {len(clock_sums.WORDS)} words of the clock-sum models: give five numbers "
                f"below {clock_sums.MODULUS} and a colon, as in {models.prompts[0]!r}, or choose other models"
            )
        operands = clock_sums.operands_of(request.prompt)
    for way in request.ways:
        if way.draft not in models.pairs:
            raise LossyError(f"{models.title} has no draft {way.draft!r}: choose one of {', '.join(models.pairs)}")
        way.verification()
    pair = models.first
    prompt = pair.inputs(request.text(pair))["input_ids"][0].tolist()
    limits = [limit for way in request.ways if (limit := models.limit(way.draft)) is not None]
    if limits and len(prompt) + request.max_new_tokens > min(limits):
        raise LossyError(
            f"the prompt has {len(prompt)} tokens, which with {request.max_new_tokens} new ones is more than the "
            f"{min(limits)} that {models.title} takes: shorten it, or ask for fewer new tokens"
        )
    outputs = [Output(way, request.max_new_tokens) for way in request.ways]
    return Run(key, request, prompt, outputs, operands)


def stream(run: Run, models: Models, turns: Turns, stopped: Callable[[], bool]) -> Iterator[Run]:
    """Decode all columns at the same time; the run, again and again as it grows, the last time finished.

    Args:
        run: from :func:`prepared`.
        models: its models.
        turns: in which the models are used.
        stopped: asked after every token; true ends all columns there.
    """
    abandoned = threading.Event()
    threads = [
        threading.Thread(
            target=_decode,
            args=(run, output, models, turns, lambda: stopped() or abandoned.is_set()),
            daemon=True,
        )
        for output in run.outputs
    ]
    for thread in threads:
        thread.start()
    try:
        while not run.finished:
            yield run
            _wait(threads, REFRESH)
    finally:  # also where the reader has gone away
        abandoned.set()
        for thread in threads:
            thread.join()
    yield run


def _wait(threads: Sequence[threading.Thread], seconds: float) -> None:
    """Until all threads have ended, or some seconds are over."""
    end = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))


def _decode(run: Run, output: Output, models: Models, turns: Turns, stopped: Callable[[], bool]) -> None:
    """One column, from beginning to end; what goes wrong is its own business."""
    try:
        torch.set_num_threads(models.threads)  # of this thread
        with turns:
            output.state = "running"
            stats = _generate(run, output, models, turns, stopped)
            _account(run, output, models.pairs[output.way.draft], stats)
        output.state = "stopped" if stopped() and len(output.tokens) < output.limit else "done"
    except LossyError as error:
        output.error, output.state = str(error), "failed"
    except Exception as error:  # the page shows it; the log has where it came from
        log.exception("%s failed", output.way)
        output.error, output.state = f"{type(error).__name__}: {error}", "failed"


def _generate(run: Run, output: Output, models: Models, turns: Turns, stopped: Callable[[], bool]) -> VerificationStats:
    """The call of ``generate``, watched."""
    pair, request, stats = models.pairs[output.way.draft], run.request, VerificationStats()
    inputs, arguments = pair.inputs(request.text(pair)), request.arguments(pair, output.way)
    watch = StopWatch()
    watching: dict[str, Any] = {
        "streamer": _Writer(output, Pieces(pair.tokenizer, run.prompt), turns, watch, pair.target.device),
        "stopping_criteria": StoppingCriteriaList([_Stop(stopped)]),
    }
    if output.way.law == TARGET:
        torch.manual_seed(request.seed)
        watch.start()
        pair.target.generate(**inputs, **arguments, **watching)
    else:
        generator = torch.Generator(pair.target.device).manual_seed(request.seed)
        watch.start()
        generate(pair.target, **inputs, **arguments, **watching, generator=generator, verification_stats=stats)
    return stats


def _account(run: Run, output: Output, pair: Pair, stats: VerificationStats) -> None:
    """Where each token came from, and its p, q and π."""
    count, chosen = len(output.tokens), output.verifying.verification()
    assert chosen is not None
    if output.way.law == TARGET:
        output.sources, output.rounds, output.block_efficiency = [TARGET] * count, [1] * count, 1.0
    else:
        output.sources = list(stats.rows[0].sources)
        output.rounds = [r.emitted for r in stats.rounds]
        output.block_efficiency = stats.block_efficiency
    if count:
        prompt = torch.tensor([run.prompt], device=pair.target.device)
        arguments = run.request.arguments(pair, output.verifying)
        output.records = records(
            distributions(pair, arguments, prompt, output.tokens, output.rounds), chosen, output.tokens
        )
    if run.operands is not None:
        working = pair.tokenizer.decode(output.tokens)
        mistake = clock_sums.first_mistake(run.operands, working)
        output.right = clock_sums.is_correct(run.operands, working)
        output.mistake = None if mistake is None else mistake[0]


class _Stop(StoppingCriteria):
    """Ends a generation when somebody asks for it."""

    def __init__(self, stopped: Callable[[], bool]) -> None:
        self.stopped = stopped

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        return torch.full((input_ids.shape[0],), self.stopped(), dtype=torch.bool, device=input_ids.device)


class _Writer(BaseStreamer):
    """Puts a column's tokens on the page, and lets the other columns have a turn after each."""

    def __init__(self, output: Output, pieces: Pieces, turns: Turns, watch: StopWatch, device: torch.device) -> None:
        self.output, self.pieces, self.turns, self.watch, self.device = output, pieces, turns, watch, device
        self._prompt_seen = False

    def put(self, value: Tensor) -> None:
        """The prompt first, then token by token."""
        if not self._prompt_seen:
            self._prompt_seen = True
            return
        self.watch.stop()
        for token in value.flatten().tolist():
            self.output.pieces.append(self.pieces.add(token))
            self.output.tokens.append(token)
        self.output.seconds = self.watch.seconds
        coins = self._coins()
        self.turns.pass_on()
        self._set_coins(coins)
        self.watch.start()

    def end(self) -> None:
        """Nothing is left over."""
        self.watch.stop()
        self.output.seconds = self.watch.seconds

    def _coins(self) -> Tensor | None:
        """The state of the generator that transformers' own loop draws from, which the columns share."""
        if self.output.way.law != TARGET:
            return None  # has a generator of its own
        return torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else torch.get_rng_state()

    def _set_coins(self, state: Tensor | None) -> None:
        if state is None:
            return
        if self.device.type == "cuda":
            torch.cuda.set_rng_state(state, self.device)
        else:
            torch.set_rng_state(state)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan
