"""Learn from a provider's replies and errors how its token counts differ from ours, and how large its context window is.

Pure functions and frozen data. There is one `Learned` for each model. The code that owns it replaces it after each
reply, saves it, and merges it with the one that another process has saved.

    provider's tokens = ratio * tokens counted here, within the margin

Prompts are built in tokens counted here. So the maximum size of a prompt is the budget divided by the ratio with its
margin (`Budget.counted`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, Literal

import msgspec

from holdfast.domain.budget import Budget, step_down

LEAST: Final = 1_000
"""Prompts with fewer tokens than this are ignored: the tokens that the provider adds to every prompt would distort the
ratio."""
LOW, HIGH, MOST = 0.5, 2.5, 16.0
"""Limits for ratios.

A ratio below `LOW` or above `MOST` is an error: a truncated prompt, missing cached tokens, or the tokens of a whole
day. A ratio above `HIGH` may come from a single hidden prompt as long as ours. So it is used only after `AGREEING`
similar replies in a row, or after the provider refused a prompt because of it.
"""
AGREEING: Final = 3
ALIKE_RATIOS: Final = 1.25
"""Ratios above `HIGH` agree if the highest is at most this many times the lowest."""
ALLOWANCE: Final = 512
"""An exact count is not doubted if the provider's count is higher by at most this many tokens, or by a sixteenth of the
prompt if that is less. The safety headroom covers such a difference."""
EXACT_RATIO: Final = 1.01
"""A ratio up to this value confirms an exact count."""
NEWEST, HIGHEST = 32, 8
"""Numbers of pairs that are kept: the `NEWEST` newest ones, and of the last 24 hours the `HIGHEST` ones with the highest ratios.

So the ratio rises at once and falls slowly, regardless of the number of turns.
"""
DAY: Final = 86_400_000
"""Milliseconds of a day."""
ALIKE: Final = 4
"""Pairs this many times smaller than the largest one are ignored, because they do not show how a full window is
counted."""
OUTLIER_FROM: Final = 8
"""If there are at least this many pairs, the pair with the highest ratio is ignored, unless it comes from a refusal."""
ONE_MARGIN, MOST_MARGIN = 0.05, 0.25
"""The margin for a single pair, and the maximum margin. With more pairs, `ONE_MARGIN` is divided by the square root of
their number."""
STEP: Final = 0.02
"""Step to which `Measure.scale` is rounded up, so that budgets do not change with every turn."""
STALE: Final = 7 * DAY
"""Milliseconds after which the limit for prompts (`Learned.ceiling`) is dropped if no further refusal confirmed it."""

CountMethod = Literal["exact", "estimate", "calibrated", "provider"]


class MeasuredCount(msgspec.Struct, frozen=True, gc=False):
    """The number of tokens in a prompt, and its reliability."""

    tokens: int
    """The best known count in the provider's tokens, without the margin."""
    how: CountMethod
    margin: float
    """Fraction of `tokens` that is kept free because the count may be too low, with three digits; 0.0 for an exact count."""


class Measure(msgspec.Struct, frozen=True, gc=False):
    """The ratio and margin according to a calibration at one moment, for use in a budget."""

    ratio: float = 1.0
    """Provider's tokens per token counted here."""
    margin: float = 0.0
    """Fraction by which the ratio of the next prompt may exceed `ratio`."""
    samples: int = 0

    @property
    def scale(self) -> float:
        """The number by which a budget is divided: ratio and margin, rounded up to a multiple of `STEP`.

        It is exactly 1.0 if no correction is needed.
        """
        whole = self.ratio * (1 + self.margin)
        return 1.0 if whole == 1.0 else round(math.ceil(whole / STEP - 1e-9) * STEP, 6)

    def describe(self, counted: int, *, margin: float, provider: int | None = None) -> MeasuredCount:
        """Return the token count of a prompt with its reliability.

        Args:
            counted: tokens according to the counter here.
            margin: the margin of this counter, already included in `counted`; 0.0 for an exact counter.
            provider: the result of the provider's token-count endpoint, if that was called.
        """
        if provider is not None:
            return MeasuredCount(provider, "provider", 0.0)
        if self.samples and (margin or self.ratio != 1.0):
            return MeasuredCount(round(counted * self.ratio), "calibrated", round(self.margin, 3))
        if margin:
            return MeasuredCount(math.floor(counted / (1 + margin)), "estimate", round(margin, 3))
        return MeasuredCount(counted, "exact", 0.0)


class Pair(msgspec.Struct, frozen=True, gc=False, order=True, array_like=True):
    """Two token counts of one prompt: the count here and the provider's count."""

    at: int
    """Milliseconds since the epoch."""
    counted: int
    """Tokens counted here."""
    reported: int
    """Tokens reported by the provider."""
    refused: bool = False
    """True if the provider refused the prompt as too long. Such a pair is never ignored as an outlier."""

    @property
    def ratio(self) -> float:
        """Provider's tokens per token counted here."""
        return self.reported / self.counted

    @property
    def doubt(self) -> float:
        """The ratio that is used if the counter here is exact. It is 1.0, unless the provider counts more tokens than can be explained."""
        added = min(ALLOWANCE, self.counted // 16)
        return 1.0 if self.reported <= self.counted * EXACT_RATIO + added else self.ratio


def is_believable(counted: int, reported: int) -> bool:
    """Return True if the two counts can be used, alone or together with others. See `LEAST`, `LOW` and `MOST`."""
    return counted >= LEAST and LOW <= reported / counted <= MOST


class Calibration(msgspec.Struct, frozen=True, gc=False):
    """The token counts of prompts of one model. Merging is commutative and idempotent."""

    pairs: tuple[Pair, ...] = ()

    def add_pair(self, pair: Pair) -> Calibration:
        """Return the calibration with one more pair; unchanged if the pair cannot be used."""
        return Calibration(_select_kept([*self.pairs, pair])) if is_believable(pair.counted, pair.reported) else self

    def merge(self, other: Calibration) -> Calibration:
        """Return the calibration combined with that of another process."""
        return Calibration(_select_kept([*self.pairs, *other.pairs])) if other.pairs else self

    def measure(self, *, exact: bool) -> Measure:
        """Return the ratio and margin that the pairs imply.

        Args:
            exact: True if the counter here is the model's own tokenizer. Then the ratio is 1.0, or more if the provider
                counts more. It is never less, because a prompt of another kind may cost more.
        """
        return _measure(self.pairs, exact) if self.pairs else _NOTHING_LEARNED


_NOTHING_LEARNED: Final = Measure()


@lru_cache(maxsize=256)
def _measure(pairs: tuple[Pair, ...], exact: bool) -> Measure:  # noqa: FBT001 - see `Calibration.measure`
    largest = max((pair.counted for pair in pairs), default=0)
    alike = _select_trusted([pair for pair in pairs if pair.counted * ALIKE >= largest])
    if not alike:
        return Measure()
    ordered = sorted(alike, key=lambda pair: pair.doubt if exact else pair.ratio)
    ratios = [pair.doubt if exact else pair.ratio for pair in ordered]
    top = ratios[-2] if len(ratios) >= OUTLIER_FROM and not ordered[-1].refused else ratios[-1]
    if exact and top == 1.0:
        return Measure(samples=len(ratios))
    spread = (top - statistics.median(ratios)) / top
    margin = min(MOST_MARGIN, ONE_MARGIN / math.sqrt(len(ratios)) + max(0.0, spread) / 2)
    return Measure(top, margin, len(ratios))


def _select_trusted(pairs: Sequence[Pair]) -> list[Pair]:
    """Return the pairs that are used.

    Ratios above `HIGH` are used only if a refusal, or `AGREEING` pairs in a row, confirm them.
    """
    if all(pair.ratio <= HIGH for pair in pairs):
        return list(pairs)
    confirmed = [pair.ratio for pair in pairs if pair.refused]
    for row in zip(*(pairs[at:] for at in range(AGREEING)), strict=False):
        ratios = [pair.ratio for pair in row]
        if HIGH < max(ratios) <= min(ratios) * ALIKE_RATIOS:
            confirmed += ratios
    limit = max([HIGH, *(ratio * ALIKE_RATIOS for ratio in confirmed if ratio > HIGH)])
    return [pair for pair in pairs if pair.ratio <= limit]


def _select_kept(pairs: Sequence[Pair]) -> tuple[Pair, ...]:
    ordered = sorted(set(pairs))
    since = ordered[-1].at - DAY
    highest = sorted((pair for pair in ordered if pair.at > since), key=lambda pair: (pair.ratio, pair))[-HIGHEST:]
    return tuple(sorted({*ordered[-NEWEST:], *highest}))


class Learned(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Knowledge about one model, learned from its provider's replies and errors."""

    window: int | None = None
    """The context window in tokens that an error named; None if it is unknown."""
    window_at: int = 0
    """Milliseconds since the epoch at which `window` was learned or reset to None."""
    ceiling: int | None = None
    """Limit for the prompt in the provider's tokens. Each refusal that nothing else explains lowers it by a tenth."""
    ceiling_at: int = 0
    calibration: Calibration = Calibration()

    def record_usage(self, counted: int, reported: int, *, at: int) -> Learned:
        """Return the updated knowledge after a prompt was accepted.

        Args:
            counted: the prompt's tokens as counted here (`WorkingSet.total_tokens`).
            reported: `usage.prompt_tokens` including cached tokens, or the result of a token-count endpoint; 0 if it is
                missing.
            at: milliseconds since the epoch.
        """
        learned = msgspec.structs.replace(self, calibration=self.calibration.add_pair(Pair(at, counted, reported)))
        # The provider accepted this many tokens, so a lower limit is wrong.
        if learned.window is not None and reported > learned.window:
            learned = msgspec.structs.replace(learned, window=None, window_at=at)
        if learned.ceiling is not None and (reported > learned.ceiling or at - learned.ceiling_at > STALE):
            learned = msgspec.structs.replace(learned, ceiling=None, ceiling_at=at)
        return learned

    def record_refusal(
        self, counted: int, budget: Budget, *, limit: int | None = None, requested: int | None = None, at: int
    ) -> Learned:
        """Return the updated knowledge after a prompt was refused as too long.

        Figures in the error are trusted. Each refusal that remains unexplained lowers the ceiling by a tenth.

        Args:
            counted: the prompt's tokens as counted here.
            budget: the budget for which the prompt was built.
            limit: the context window that the error named (`ContextTooLong.context_limit`).
            requested: the tokens of the prompt that the error named (`ContextTooLong.requested`).
            at: milliseconds since the epoch.
        """
        learned, known = self, budget.context_window
        if limit is not None:
            known = limit
            learned = msgspec.structs.replace(learned, window=limit, window_at=at)
        expected = math.ceil(counted * budget.scale)
        named = requested if requested is not None and is_believable(counted, requested) else None
        if named is None and expected + budget.max_reply_tokens <= known:
            named = self._explain_refusal(counted, budget, known)
        if (named or expected) + budget.max_reply_tokens <= known:
            ceiling = step_down(min(budget.input, expected))
            return msgspec.structs.replace(learned, ceiling=min(ceiling, learned.ceiling or ceiling), ceiling_at=at)
        if named is None:
            return learned
        taught = learned.calibration.add_pair(Pair(at, counted, named, refused=True))
        return msgspec.structs.replace(learned, calibration=taught)

    def _explain_refusal(self, counted: int, budget: Budget, known: int) -> int | None:
        """Return the size of a refused prompt, computed with the ratio of the newest accepted prompt whose ratio exceeds `HIGH`.

        Args:
            counted: the prompt's tokens as counted here.
            budget: the budget for which the prompt was built.
            known: the context window in tokens.

        Returns:
            The size in the provider's tokens; None if there is no such ratio, or the size does not explain the refusal.
        """
        doubted = [pair for pair in self.calibration.pairs if pair.ratio > HIGH and not pair.refused]
        if not doubted:
            return None
        tokens = math.ceil(counted * doubted[-1].ratio)
        return tokens if is_believable(counted, tokens) and tokens + budget.max_reply_tokens > known else None

    def merge(self, other: Learned) -> Learned:
        """Return this knowledge combined with that of another process: the newer value of each limit, and the pairs of both."""
        window = max(self, other, key=lambda one: (one.window_at, one.window or 0))
        ceiling = max(self, other, key=lambda one: (one.ceiling_at, -(one.ceiling or 0)))
        return Learned(
            window=window.window,
            window_at=window.window_at,
            ceiling=ceiling.ceiling,
            ceiling_at=ceiling.ceiling_at,
            calibration=self.calibration.merge(other.calibration),
        )


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Learned)


def encode_learned(learned: Learned) -> bytes:
    """Encode the knowledge about a model as bytes for a store."""
    return _encoder.encode(learned)


def decode_learned(data: bytes) -> Learned:
    """Decode the bytes that `encode_learned` returned; return an empty `Learned` if another version wrote them."""
    try:
        return _decoder.decode(data)
    except msgspec.MsgspecError:
        return Learned()
