"""Drafts: how candidates are proposed. Transformers' ``CandidateGenerator`` subclasses."""

from __future__ import annotations

from .base import Draft, Proposal
from .eagle3 import Eagle3ChainDraft, Eagle3TreeDraft, HeadRunner
from .prompt_lookup import PromptLookupDraft
from .stepwise import Stepping, StepwiseDraft
from .two_model import TwoModelDraft

__all__ = [
    "Draft",
    "Eagle3ChainDraft",
    "Eagle3TreeDraft",
    "HeadRunner",
    "PromptLookupDraft",
    "Proposal",
    "Stepping",
    "StepwiseDraft",
    "TwoModelDraft",
]
