"""The ways in: the plain function, the method form, transformers' hook. All of them end in :class:`Decoder`."""

from __future__ import annotations

import functools
import inspect
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    EosTokenCriteria,
    GenerationConfig,
    GenerationMixin,
    LogitsProcessorList,
    MaxTimeCriteria,
    PrefixConstrainedLogitsProcessor,
    PreTrainedModel,
    StoppingCriteriaList,
    StopStringCriteria,
)

from ..cached_model import CachedModel
from ..compat import CACHE_ALIASES, CACHE_NAME, default_cache, take_cache
from ..compiling import compiling
from ..drafting import Draft
from ..drafting.schedule import Costs
from ..drafting.vocabulary import shared_limit
from ..eagle3.formats import check_target
from ..errors import LossyError, unknown
from ..laws import Law
from ..scores import Coins, Scorer
from . import options as _options
from .calibration import TEXT, costs
from .drafts import make_draft, which_coupling
from .loop import Run, decode
from .mode import may_infer
from .options import HANDED_ON, STATEFUL, UNSUPPORTED, Options, from_config, is_head, position_limit
from .outputs import LossyDecoderOnlyOutput, Recorder
from .statistics import Round, VerificationStats
from .stops import Stops


class Decoder:
    """A decoding loop for transformers' ``custom_generate`` hook; make it with :func:`decoder`.

    Transformers prepares inputs, configuration, processors, stopping criteria and the cache, and calls this. It drops
    ``assistant_model``, ``streamer``, ``tokenizer`` and ``synced_gpus`` on the way to a callable, so that these are bound
    here. The call's own options it finds in the signature.
    """

    __signature__ = inspect.Signature([inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in HANDED_ON])

    def __init__(self, options: Options, returns_tokens_only: bool = False) -> None:
        self.options, self.returns_tokens_only = options, returns_tokens_only

    def __call__(
        self,
        model: PreTrainedModel,
        input_ids: Int[Tensor, "batch prompt"],
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        **kwargs: Any,
    ) -> Tensor | LossyDecoderOnlyOutput:
        given = Options(**{name: kwargs.pop(name) for name in HANDED_ON if name in kwargs})
        configs = from_config(generation_config, prepared=True), from_config(model.generation_config)
        options = given.filled(self.options, *configs)
        models = [m for m in (model, options.assistant_model) if m is not None]
        infers = self.returns_tokens_only and may_infer(models, [*logits_processor, *stopping_criteria])
        with torch.inference_mode() if infers else torch.no_grad():
            run = prepare(model, input_ids, logits_processor, stopping_criteria, generation_config, options, kwargs)
            if options.streamer is not None:
                options.streamer.put(input_ids.cpu())
            finished = decode(run)
        sequences = pad_sequence(
            [row.clone() for row in finished], batch_first=True, padding_value=padding(generation_config)
        )
        if options.streamer is not None:
            options.streamer.end()
        if options.verification_stats is not None:
            options.verification_stats.add(run.stats)
        if not generation_config.return_dict_in_generate:
            return sequences
        # rows that stopped earlier have left the cache of a batch
        return run.recorder.output(sequences, run.target.cache if len(finished) == 1 else None, run.stats)


def prepare(
    model: PreTrainedModel,
    input_ids: Int[Tensor, "batch prompt"],
    processors: LogitsProcessorList,
    criteria: StoppingCriteriaList,
    config: GenerationConfig,
    options: Options,
    model_kwargs: dict[str, Any],
) -> Run:
    """Check that the call can be done as asked, and set up a run. Raises LossyError where something does not fit."""
    if options.verification is None:
        beside = f" beside verification_config={options.verification_config!r}" if options.verification_config else ""
        raise LossyError(f"no verification was given{beside}: name a law, for example verification='lenience'")
    law = options.law()
    check_supported(model, config)
    check_processors(processors)
    check_batch(input_ids, processors, config, options)
    cache = take_cache(model_kwargs)
    if cache is None:
        raise LossyError(
            "use_cache=False can't be combined with speculative decoding, which rolls a cache back: leave it on"
        )
    mask, positions = model_kwargs.pop("attention_mask", None), model_kwargs.pop("position_ids", None)
    padded = mask is not None and not bool(mask.all())
    if padded and not bool(mask[:, -1].all()):
        raise LossyError(
            "the attention_mask of a row ends in 0, and a text can't go on behind padding: pad on the left "
            "(tokenizer.padding_side = 'left')"
        )
    rows, prompt = input_ids.shape
    stops = Stops(criteria, int(config.max_length))
    forward_kwargs = forwarded(model_kwargs)
    head = options.assistant_model if is_head(options.assistant_model) else None
    if head is not None:
        check_target(head, model)
    target = CachedModel(
        model,
        cache,
        "target",
        rows=rows,
        attention_mask=mask if padded else None,
        position_ids=positions if padded or not _counts_from_zero(positions) else None,
        last_position=stops.max_length - 1 if rows > 1 else None,
        taps=() if head is None else head.config.taps,
        compiled=compiling(config, cache, head is not None),
        **forward_kwargs,
    )
    if prompt == 0:
        raise LossyError("the prompt is empty: give at least one token, for example the tokenizer's bos_token")
    if (held := target.held[0]) >= prompt:
        raise LossyError(
            f"the cache already holds {held} tokens but only {prompt} input_ids were given: pass the whole "
            "sequence, with at least one token that is not in the cache"
        )
    if head is not None and held:
        raise LossyError(
            f"the cache already holds {held} tokens, whose hidden states an EAGLE-3 head needs: leave the cache "
            "out, and the whole prompt is read again"
        )
    vocabulary = model.config.get_text_config(decoder=True).vocab_size
    limit = vocabulary
    if options.assistant_model is not None:
        draft_rows = options.assistant_model.config.get_text_config(decoder=True).vocab_size
        limit = shared_limit(vocabulary, draft_rows, options.tokenizer, options.assistant_tokenizer)
        if int(input_ids.max()) >= draft_rows:
            raise LossyError(
                f"the prompt holds token {int(input_ids.max())}, and the draft knows only {draft_rows}: use a draft of the "
                "same model family"
            )
    sampled, device = bool(config.do_sample), input_ids.device
    coins = Coins(options.generator, device)
    accounting = bool(options.accounting)
    target_scorer = Scorer(processors, vocabulary, limit, "target", stops.eos, rows)
    text = functools.partial(short_text, model, input_ids, mask if padded else None, config, options, criteria)

    def measure(top_k: int | None) -> Costs:
        began = time.time()
        found = costs(model, options.assistant_model, input_ids, text, top_k, target.compiled)
        for criterion in criteria:
            if isinstance(criterion, MaxTimeCriteria):  # the time is for the text
                criterion.initial_timestamp += time.time() - began
        return found

    draft = make_draft(config, options, law, target, target_scorer, coins, mask if padded else None, stops.eos, measure)
    check_draft(options, law, draft, sampled)
    if options.stop_strings is not None:
        if options.tokenizer is None:
            raise LossyError(f"stop_strings={options.stop_strings!r} needs the tokenizer: pass tokenizer= as well")
        stops.others.append(StopStringCriteria(options.tokenizer, options.stop_strings))
    stats = VerificationStats(
        {
            "law": law.to_dict(),
            "coupling": which_coupling(options, draft, sampled).name,
            "bonus": options.bonus or "induced",
            "draft_probs": options.draft_probs or ("head" if draft.has_probs else None),
            **draft.describe(),
            "do_sample": sampled,
        }
    )
    capacity = max(stops.max_length, prompt + 1)
    tokens = torch.cat([input_ids, input_ids.new_zeros(rows, capacity - prompt)], 1)
    recorded = bool(config.return_dict_in_generate)
    return Run(
        target=target,
        scorer=target_scorer,
        draft=draft,
        law=law,
        coupling=which_coupling(options, draft, sampled),
        coins=coins,
        stops=stops,
        recorder=Recorder(
            rows,
            recorded and bool(config.output_scores),
            recorded and bool(config.output_logits),
            recorded and bool(config.output_hidden_states),
            recorded and bool(config.output_attentions),
        ),
        tokens=tokens,
        lengths=[prompt] * rows,
        sampled=sampled,
        induced_bonus=options.bonus != "target",
        point_mass=options.draft_probs == "point_mass",
        accounting=accounting,
        prefill_chunk=config.prefill_chunk_size,
        on_token=None if options.streamer is None else functools.partial(stream, options.streamer),
        stats=stats,
    )


def stream(streamer: Any, token: int) -> None:
    """Hand a token to a streamer, in an ordinary tensor."""
    with torch.inference_mode(False), torch.no_grad():
        streamer.put(torch.tensor([token]))


def short_text(
    model: PreTrainedModel,
    input_ids: Int[Tensor, "batch prompt"],
    mask: Int[Tensor, "batch prompt"] | None,
    config: GenerationConfig,
    options: Options,
    criteria: StoppingCriteriaList,
) -> list[Round]:
    """The rounds of a short greedy, lossless text after a call's first prompt, with the call's draft at a fixed length."""
    prompt, length = input_ids[:1] if mask is None else input_ids[:1, mask[0].bool()], TEXT
    if (limit := position_limit(model, options.assistant_model)) is not None:
        length = min(TEXT, limit // 2)
        prompt = prompt[:, length - limit :]
    ends = StoppingCriteriaList([one for one in criteria if type(one) is EosTokenCriteria])
    drafting = ("assistant_model", "prompt_lookup_num_tokens", "draft_mode", "tokenizer", "assistant_tokenizer")
    asked = {name: getattr(options, name) for name in drafting}
    plain = GenerationConfig(
        do_sample=False,
        max_length=prompt.shape[1] + length,
        prompt_lookup_num_tokens=config.prompt_lookup_num_tokens,
        max_matching_ngram_size=config.max_matching_ngram_size,
    )
    own = {CACHE_NAME: default_cache(model)}
    coins = torch.Generator().manual_seed(0)  # nothing depends on them, and the call's own are left alone
    how = Options(verification="lossless", generator=coins, **asked)
    run = prepare(model, prompt, LogitsProcessorList(), ends, plain, how, own)
    decode(run)
    return run.stats.rounds


def check_supported(model: PreTrainedModel, config: GenerationConfig) -> None:
    """One clear sentence for everything that can't be combined with verification."""
    if model.config.is_encoder_decoder:
        raise LossyError(
            f"{type(model).__name__} is an encoder-decoder model; verification supports decoder-only models: use "
            "model.generate without it"
        )
    if config.num_beams not in (None, 1):
        raise LossyError(f"num_beams={config.num_beams} can't be combined with verification: use num_beams=1")
    for name, why in UNSUPPORTED.items():
        value = getattr(config, name, None)
        if value is not None and value is not False and (name, value) != ("guidance_scale", 1):
            raise LossyError(f"{name}={value!r} can't be combined with verification: {why}")


def check_batch(
    input_ids: Int[Tensor, "batch prompt"], processors: LogitsProcessorList, config: GenerationConfig, options: Options
) -> None:
    """An error for what only works with one sequence at a time, and where the number of generators is not that of rows."""
    rows = input_ids.shape[0]
    if isinstance(options.generator, list) and len(options.generator) != rows:
        raise LossyError(
            f"generator has {len(options.generator)} generators for a batch of {rows}: give one a row, or one"
        )
    if rows == 1:
        return
    refused = {
        "streamer": options.streamer is not None,
        "output_hidden_states=True": config.return_dict_in_generate and config.output_hidden_states,
        "output_attentions=True": config.return_dict_in_generate and config.output_attentions,
        "prefix_allowed_tokens_fn": any(isinstance(p, PrefixConstrainedLogitsProcessor) for p in processors),
    }
    for name, is_asked_for in refused.items():
        if is_asked_for:
            raise LossyError(
                f"{name} with a batch of {rows} is not supported with verification, where rows keep different numbers of "
                "tokens: leave it out, or call generate once for each sequence"
            )
    if config.pad_token_id is None and config.eos_token_id is None:
        raise LossyError(
            f"a batch of {rows} needs a token for the rows that end earlier: give pad_token_id, for example the tokenizer's"
        )


def padding(config: GenerationConfig) -> int:
    """What follows the end of a row in a batch: the padding token, else the (first) end-of-sequence token."""
    known = (config.pad_token_id, config.eos_token_id, 0)
    token = next(token for token in known if token is not None)
    return int(token[0] if isinstance(token, list) else token)


def check_draft(options: Options, law: Law, draft: Draft, sampled: bool) -> None:
    """An error where the draft has not what the options need of it."""
    if law.needs_draft and not draft.has_probs and options.draft_probs != "point_mass":
        raise LossyError(
            f"verification={law.name!r} needs the draft's probabilities, and prompt lookup has none: use a draft model, a "
            "law that needs none (lossless, min_p, eta), or draft_probs='point_mass', which counts each candidate as q = 1"
        )
    if options.draft_probs == "point_mass" and draft.samples:
        raise LossyError(
            "draft_probs='point_mass' is for deterministic candidates, and this draft samples its tokens: leave it out, or "
            "use draft_temperature=0 for a greedy draft"
        )
    if options.coupling not in (None, "block") and not draft.samples and sampled:
        raise LossyError(
            f"coupling={options.coupling!r} is for sampled candidates, and these are a function of the prefix, which are "
            "verified by drawing from the law: leave it out"
        )


def check_processors(processors: LogitsProcessorList) -> None:
    """An error for processors that count their calls: they are called for drafted tokens that may be refused."""
    for processor in processors:
        if isinstance(processor, STATEFUL):
            raise LossyError(
                f"the logits processor {type(processor).__name__} keeps state between calls and can't be rolled back after "
                "a refused token: leave it out, or generate without verification"
            )


def forwarded(model_kwargs: dict[str, Any]) -> dict[str, Any]:
    """The model kwargs that go into every forward; an error for those that this loop would get wrong."""
    for name in ("use_cache", "logits_to_keep", "next_sequence_length", "return_dict"):
        model_kwargs.pop(name, None)
    kept = {name: value for name, value in model_kwargs.items() if value is not None}
    for name, value in kept.items():
        if isinstance(value, Tensor):
            raise LossyError(
                f"{name} is not supported with verification, which takes text only (input_ids, attention_mask)"
            )
    return kept


def _counts_from_zero(positions: Tensor | None) -> bool:
    return positions is None or bool((positions == torch.arange(positions.shape[-1], device=positions.device)).all())


# --- the ways in -------------------------------------------------------------------------------------------------


def decoder(**options: Any) -> Decoder:
    """A decoding loop to give to transformers' own hook, with nothing patched::

        model.generate(**inputs, custom_generate=hf_lossy.decoder(assistant_model=draft, verification="lenience"))

    Args:
        **options: the fields of :class:`hf_lossy.Options`. Transformers passes neither ``assistant_model`` nor
            ``streamer``, ``tokenizer`` or ``stop_strings`` on to a callable, so give them here and not to ``generate``.

    Raises:
        LossyError: an unknown option or a wrong value.
    """
    return Decoder(_checked(options))


def generate(model: PreTrainedModel, *args: Any, **kwargs: Any) -> Any:
    """``model.generate`` with a verification law; nothing is patched::

        hf_lossy.generate(model, **inputs, assistant_model=draft, verification="lenience",
                          verification_config={"lenience": 0.4}, do_sample=True, max_new_tokens=256)

    Args:
        model: the target, a decoder-only ``PreTrainedModel``.
        *args, **kwargs: the arguments of transformers' ``generate``, and the fields of :class:`hf_lossy.Options`.

    Returns:
        Token ids [B, length], or with ``return_dict_in_generate=True`` a :class:`LossyDecoderOnlyOutput`, whose field
        ``verification`` holds the statistics.

    Raises:
        LossyError: something that can't be done as asked; the message says what, and what to do instead.
    """
    if not hasattr(model, "generate") or not hasattr(model, "config"):
        raise LossyError(f"model must be a loaded causal language model, got {model!r}")
    given = {name: kwargs.pop(name) for name in _options.NAMES if name in kwargs}
    if "verification" in given and given["verification"] is None:
        _without_verification(given)
        if is_head(given.get("assistant_model")):
            raise LossyError(
                "an EAGLE-3 head drafts only under a law: give verification='lossless' to leave the text as it is"
            )
        plain = {name: value for name, value in given.items() if name in _options.SHARED}
        return _undisturbed(_plain_generate(model), model, *args, **plain, **kwargs)
    own = kwargs.get("generation_config", args[1] if len(args) > 1 else None)

    def setting(name: str) -> Any:
        """A generation setting as transformers will find it."""
        values = (kwargs.get(name), getattr(own, name, None), getattr(model.generation_config, name, None))
        return next((value for value in values if value is not None), None)

    if kwargs.get("custom_generate") is not None:
        raise LossyError("custom_generate and verification are both decoding loops: give one of them")
    if kwargs.pop("synced_gpus", None):
        raise LossyError(
            "synced_gpus=True is not supported with verification: use device_map for a target on several GPUs"
        )
    if kwargs.get("inputs_embeds") is not None:
        raise LossyError("inputs_embeds can't be verified, since a draft needs token ids: pass input_ids")
    if setting("use_cache") is False:
        raise LossyError(
            "use_cache=False can't be combined with speculative decoding, which rolls a cache back: leave it on"
        )
    if setting("cache_implementation") == "paged":
        raise LossyError(
            "continuous batching (cache_implementation='paged') can't be combined with verification: leave it out"
        )
    if model.config.is_encoder_decoder or setting("num_beams") not in (None, 1):
        check_supported(model, GenerationConfig(num_beams=setting("num_beams")))
    if setting("token_healing"):
        raise LossyError(
            "token_healing=True can't be combined with verification: heal the prompt before, with "
            "model.heal_tokens(input_ids, tokenizer)"
        )
    # stops are ours to check, at every accepted prefix; and beside a lookup transformers refuses num_return_sequences
    for name in ("stop_strings", "prompt_lookup_num_tokens"):
        if setting(name) is not None:
            if given.get(name) is None:
                given[name] = setting(name)
            kwargs[name] = None
    options = _checked(given).filled(from_config(own))
    leaves_more = setting("return_dict_in_generate") or any(kwargs.get(name) is not None for name in CACHE_ALIASES)
    loop = Decoder(options, returns_tokens_only=not leaves_more)
    return _plain_generate(model)(model, *args, custom_generate=loop, **kwargs)


def _checked(given: dict[str, Any]) -> Options:
    for name in given:
        if name not in _options.NAMES:
            raise unknown("option", name, _options.NAMES)
    return Options(**given)


# --- the method form ---------------------------------------------------------------------------------------------

_lock = threading.Lock()
_inside: ContextVar[bool] = ContextVar("inside transformers' own generate", default=False)
_original: Callable[..., Any] | None = None


def _plain_generate(model: PreTrainedModel) -> Callable[..., Any]:
    """Transformers' ``generate`` of a model's class, below our patch."""
    function = type(model).generate
    return getattr(function, "__wrapped_by_hf_lossy__", function)


def _without_verification(given: dict[str, Any]) -> None:
    """An error for options that mean nothing without a law."""
    for name, value in given.items():
        if name in _options.NAMES and name not in _options.SHARED and value is not None:
            raise LossyError(
                f"{name}={value!r} was given without verification: name the law as well, for example "
                "verification='lenience'"
            )


def _undisturbed(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Transformers' ``generate``, in which the calls of its own draft are transformers' too."""
    before = _inside.set(True)
    try:
        return original(*args, **kwargs)
    finally:
        _inside.reset(before)


def _with_verification(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def generate_(self: PreTrainedModel, *args: Any, **kwargs: Any) -> Any:
        if _inside.get() or isinstance(kwargs.get("custom_generate"), Decoder | str):
            return original(self, *args, **kwargs)  # a draft's own call, or a loop that takes what is ours itself
        configs = (kwargs.get("generation_config", args[1] if len(args) > 1 else None), self.generation_config)
        stored = next((v for v in (getattr(c, "verification", None) for c in configs) if v is not None), None)
        if kwargs.get("verification", stored) is not None:
            return generate(self, *args, **kwargs)
        kwargs.pop("verification", None)
        _without_verification(kwargs)
        return _undisturbed(original, self, *args, **kwargs)

    generate_.__wrapped_by_hf_lossy__ = original  # type: ignore[attr-defined]
    return generate_


def enable(model: PreTrainedModel | None = None) -> None:
    """Teach ``model.generate`` the argument ``verification`` (and those beside it), for one model or for all.

    Without ``verification``, given or stored on the generation config, an enabled ``generate`` is transformers' own.
    :func:`disable` takes it back and leaves nothing behind; :func:`enabled` does both around a block.
    """
    global _original
    with _lock:
        if model is not None:
            if "generate" not in vars(model):
                object.__setattr__(model, "generate", _with_verification(_plain_generate(model)).__get__(model))
            elif not is_enabled(model):
                raise LossyError(
                    f"this {type(model).__name__} has a generate of its own (a custom_generate repository's): call "
                    "hf_lossy.generate(model, ...), or load it without trust_remote_code"
                )
        elif _original is None:
            _original = GenerationMixin.generate
            GenerationMixin.generate = _with_verification(_original)


def disable(model: PreTrainedModel | None = None) -> None:
    """Undo :func:`enable`, for the model or for the class."""
    global _original
    with _lock:
        if model is not None:
            if is_enabled(model):
                object.__delattr__(model, "generate")
        elif _original is not None:
            GenerationMixin.generate = _original
            _original = None


def is_enabled(model: PreTrainedModel | None = None) -> bool:
    """Whether ``generate`` is enabled on a model itself, or on the class."""
    return _original is not None if model is None else hasattr(vars(model).get("generate"), "__wrapped_by_hf_lossy__")


@contextmanager
def enabled(model: PreTrainedModel | None = None) -> Iterator[None]:
    """:func:`enable` for a block; afterwards everything is as it was before."""
    before = is_enabled(model)
    enable(model)
    try:
        yield
    finally:
        if not before:
            disable(model)
