"""Drafts: how candidates are proposed. Transformers' ``CandidateGenerator`` subclasses."""

from __future__ import annotations

from .base import Draft, Proposal
from .prompt_lookup import PromptLookupDraft
from .two_model import TwoModelDraft

__all__ = ["Draft", "PromptLookupDraft", "Proposal", "TwoModelDraft"]
