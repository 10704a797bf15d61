"""A sampler for expensive, failing launches with one or more objectives."""

from autotune.sampler.hint import Prior, SpaceHint
from autotune.sampler.importance import Effect, importance
from autotune.sampler.sampler import ParetoSampler

__all__ = ["Effect", "ParetoSampler", "Prior", "SpaceHint", "importance"]
