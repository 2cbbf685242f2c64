"""Whether a target and a draft speak the same tokens, and which ids both have."""

from __future__ import annotations

from typing import Any

from ..errors import LossyError

PADDING_ROWS = 1024
"""Output rows are padded to multiples of at most this; a larger difference in size is no padding."""


def first_difference(tokenizer: Any, other: Any) -> tuple[int, str | None, str | None] | None:
    """The lowest token id at which two tokenizers differ, with both tokens, or None."""
    ours = {i: token for token, i in tokenizer.get_vocab().items()}
    theirs = {i: token for token, i in other.get_vocab().items()}
    if ours == theirs:
        return None
    differing = min(i for i in ours.keys() | theirs.keys() if ours.get(i) != theirs.get(i))
    return differing, ours.get(differing), theirs.get(differing)


def shared_limit(
    target_rows: int, draft_rows: int, tokenizer: Any | None = None, assistant_tokenizer: Any | None = None
) -> int:
    """How many token ids, from 0 on, may carry probability: the padding rows of both models are left out.

    Args:
        target_rows: output rows of the target.
        draft_rows: output rows of the draft.
        tokenizer: the target's tokenizer where it is known; ids it can't produce get no probability.
        assistant_tokenizer: the draft's, where it is given; it must be the same tokenizer.

    Raises:
        LossyError: different tokenizers, or sizes too different to be one tokenizer with padding.
    """
    if tokenizer is not None and assistant_tokenizer is not None:
        difference = first_difference(tokenizer, assistant_tokenizer)
        if difference is not None:
            i, ours, theirs = difference
            raise LossyError(
                f"the target and the draft have different tokenizers: token {i} is {ours!r} in the target's and "
                f"{theirs!r} in the draft's; use a draft of the same model family"
            )
    limit = min(target_rows, draft_rows)
    if tokenizer is None:
        if abs(target_rows - draft_rows) > PADDING_ROWS:
            raise LossyError(
                f"the target has {target_rows} output rows and the draft {draft_rows}, too different to be one tokenizer "
                "with padding; use a draft of the same model family, or pass tokenizer= and assistant_tokenizer= to "
                "show that they are the same"
            )
        return limit
    known = len(tokenizer)
    if known > limit:
        raise LossyError(
            f"the tokenizer has {known} tokens but the {'draft' if draft_rows < target_rows else 'target'} only {limit} "
            "output rows; use a draft of the same model family"
        )
    return known if target_rows != draft_rows else limit
