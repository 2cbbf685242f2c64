"""From options to a draft, and to the coupling that fits it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel

from ..cached_model import CachedModel
from ..compiling import cache_for
from ..couplings import (
    Coupling,
    DescendCoupling,
    GreedyCoupling,
    GreedyPointMassCoupling,
    PointMassCoupling,
    coupling,
)
from ..drafting import Draft, Eagle3ChainDraft, Eagle3TreeDraft, HeadRunner, PromptLookupDraft, Stepping, TwoModelDraft
from ..drafting.schedule import Costs, Expected, ExpectedLookup, ExpectedTree, Heuristic, Schedule, TreeSchedule
from ..errors import LossyError
from ..laws import Law
from ..scores import Coins, Scorer, without_temperature
from .checks import whole
from .options import DEFAULT_DRAFT_LENGTH, DEFAULT_HEAD_CHAIN, TREE, Options, is_head, tree_defaults


def which_coupling(options: Options, draft: Draft, sampled: bool) -> type[Coupling]:
    """The coupling that a run uses: greedy when nothing is sampled, the tree coupling for deterministic candidates."""
    point_mass = options.draft_probs == "point_mass"
    if not sampled:
        return GreedyPointMassCoupling if point_mass else GreedyCoupling
    if draft.samples:
        return coupling(options.coupling or "block")
    return PointMassCoupling if point_mass else DescendCoupling


def make_draft(
    config: GenerationConfig,
    options: Options,
    law: Law,
    target: CachedModel,
    target_scorer: Scorer,
    coins: Coins,
    mask: Tensor | None,
    ends: Collection[int],
    costs: Callable[[int | None], Costs],
) -> Draft:
    """The draft that the options ask for; ``costs`` measures what its schedule may want to know
    (:func:`hf_lossy.generation.calibration.costs`)."""
    assistant = options.assistant_model
    for name in ("prompt_lookup_num_tokens", "max_matching_ngram_size"):
        if getattr(config, name, None) is not None:
            whole(1)(name, getattr(config, name))
    lookup = options.prompt_lookup_num_tokens or config.prompt_lookup_num_tokens
    if (lookup is None) == (assistant is None):
        state = "both" if lookup is not None else "neither"
        raise LossyError(
            f"verification={law.name!r} needs one draft, got {state} of assistant_model and prompt_lookup_num_tokens: give "
            "one (through decoder(), bind the assistant there), or verification=None for plain generation"
        )
    if not is_head(assistant):
        _refuse(options, ("draft_mode", *TREE), "is for EAGLE-3 heads: leave it out, or give a head as assistant_model")
    if assistant is None:
        assert lookup is not None
        why = "has no meaning with prompt lookup, which samples nothing: leave it out, or use a draft model"
        _refuse(options, ("draft_temperature", "assistant_confidence_threshold"), why)
        schedule = make_schedule(options, options.num_assistant_tokens or lookup, lambda: ExpectedLookup(costs(None)))
        return PromptLookupDraft(schedule, config.max_matching_ngram_size, target_scorer)
    if assistant.config.is_encoder_decoder:
        raise LossyError(
            f"the draft {type(assistant).__name__} is an encoder-decoder model: use a decoder-only draft of the same family"
        )
    sampled, temperature = bool(config.do_sample), options.draft_temperature
    if temperature and not sampled:
        raise LossyError(
            f"draft_temperature={temperature!r} has no meaning with do_sample=False, where the draft is greedy: leave it "
            "out, or sample"
        )
    processors = target_scorer.processors
    if temperature is not None and sampled:
        processors = without_temperature(processors, temperature)
    how = Stepping(
        scorer=Scorer(processors, target_scorer.vocabulary, target_scorer.limit, "draft", rows=len(target.held)),
        law=law,
        coins=coins,
        device=coins.device,
        greedy=not sampled or temperature == 0,
        point_mass=sampled and temperature == 0,
        needs_probs=sampled or bool(options.accounting) or law.needs_draft,
        confidence=options.assistant_confidence_threshold or 0.0,
        ends=ends,
    )
    if is_head(assistant):
        return head_draft(assistant, options, target, mask, how, costs)
    length = options.num_assistant_tokens or DEFAULT_DRAFT_LENGTH
    schedule = make_schedule(options, length, lambda: Expected(costs(None), _asks_bonus(options, law)))
    positions = None if mask is None else (mask.long().cumsum(1) - 1).clamp_min(0)
    cached = CachedModel(
        assistant,
        cache_for(assistant, target.compiled),
        "draft",
        rows=len(target.held),
        attention_mask=mask,
        position_ids=positions,
        last_position=target.last_position,
        compiled=target.compiled,
    )
    return TwoModelDraft(cached, how, schedule)


def head_draft(
    head: PreTrainedModel,
    options: Options,
    target: CachedModel,
    mask: Tensor | None,
    how: Stepping,
    costs: Callable[[int | None], Costs],
) -> Draft:
    """A tree or a chain from an EAGLE-3 head, which borrows the target's embedding unless it has one."""
    mode = options.draft_mode or "tree"
    if mode != "sampled" and options.draft_temperature == 0:
        raise LossyError(
            f"draft_temperature=0 has no meaning with draft_mode={mode!r}, whose candidates are the likeliest already: use "
            "draft_probs='point_mass' to count them as q = 1"
        )
    head.borrow_embedding(target.model)
    rows = len(target.held)
    runner = HeadRunner(head, target, [0] * rows if mask is None else mask.long().argmax(1).tolist())
    if mode == "tree":
        of_chains = ("num_assistant_tokens", "assistant_confidence_threshold")
        _refuse(options, of_chains, f"is for chains: a tree has {', '.join(TREE)}; or use draft_mode='chain'")
        defaults = tree_defaults(how.device)
        given = {name: getattr(options, name) for name in TREE}
        shape = {name: defaults[name] if value is None else value for name, value in given.items()}
        tree = tree_schedule(options, shape, _asks_bonus(options, how.law), costs)
        return Eagle3TreeDraft(runner, how.scorer, how.device, schedule=tree, top_k=shape["tree_top_k"])
    _refuse(options, TREE, f"has no meaning with draft_mode={mode!r}: use draft_mode='tree'")
    length = options.num_assistant_tokens or DEFAULT_HEAD_CHAIN
    schedule = make_schedule(options, length, lambda: Expected(costs(None), _asks_bonus(options, how.law)))
    how = replace(how, greedy=how.greedy or mode == "chain")
    return Eagle3ChainDraft(runner, how, schedule, samples=mode == "sampled")


def make_schedule(options: Options, length: int, expected: Callable[[], Schedule]) -> Schedule:
    """How the draft length is chosen; ``expected`` makes the schedule of that name, which measures first."""
    name = options.num_assistant_tokens_schedule or "constant"
    if name != "expected":
        return (Heuristic if name == "heuristic" else Schedule)(length)
    _refuse(options, ("num_assistant_tokens",), _CHOSEN)
    return expected()


def tree_schedule(
    options: Options, shape: dict[str, int], asks_bonus: bool, costs: Callable[[int | None], Costs]
) -> TreeSchedule | ExpectedTree:
    """How the shape of a tree is chosen."""
    name = options.num_assistant_tokens_schedule or "constant"
    if name == "expected":
        _refuse(options, ("tree_size", "tree_depth"), _CHOSEN)
        return ExpectedTree(costs(shape["tree_top_k"]), asks_bonus)
    if name == "heuristic":
        _refuse(options, ("num_assistant_tokens_schedule",), "is for chains: use 'expected', or draft_mode='chain'")
    return TreeSchedule(shape["tree_size"], shape["tree_depth"] + 1)


_CHOSEN = "has no meaning with num_assistant_tokens_schedule='expected', which chooses it: leave it out"


def _asks_bonus(options: Options, law: Law) -> bool:
    """Whether a block that was accepted whole costs a step of the draft more, for the q after it."""
    has_q = options.bonus != "target" and options.draft_probs != "point_mass"
    return has_q and (law.needs_draft or bool(options.accounting))


def _refuse(options: Options, names: Collection[str], why: str) -> None:
    """An error for the first of these options that was given."""
    for name in names:
        if getattr(options, name) is not None:
            raise LossyError(f"{name}={getattr(options, name)!r} {why}")
