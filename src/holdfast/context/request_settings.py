"""The strategy and budget of one request, within what its agent and its API key allow."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import msgspec

from holdfast.context.settings import BUILT_IN, RECALL, STRATEGIES, ContextSettings, parse
from holdfast.errors import InvalidRequest
from holdfast.numbers import MOST, check_whole

MODEL_STRATEGIES: Final = frozenset({"summary_buffer"})
"""Strategies that call a model."""
FREE_STRATEGIES: Final = tuple(name for name in STRATEGIES if name not in MODEL_STRATEGIES)
"""Strategies that call none."""
_BUDGETED: Final = "token_window"
"""Takes the place of a strategy that has no budget, where there is one to keep."""


class RequestSettings(msgspec.Struct, frozen=True):
    """What a request, and the key that it comes with, say of the working set."""

    strategy: str | None = None
    """Asked for by the request."""
    budget: int | None = None
    """Asked for by the request, tokens."""
    limit: int | None = None
    """The key's budget, tokens."""
    recall: str | bool | None = None
    """Asked for by the request: `auto`, `on` or `off`."""

    def check(self, settings: ContextSettings, allowed: Collection[str]) -> None:
        """Refuse what the request may not have.

        Args:
            settings: the agent's.
            allowed: strategies that a request may name; by default those of the application, too.

        Raises:
            InvalidRequest: an unknown strategy, one that is not allowed, or a budget over the agent's or the key's.
        """
        if self.budget is not None:
            check_whole(self.budget, "budget", 1, MOST)
        if self.recall is not None:
            parse({RECALL: self.recall}, where="")
        if self.strategy is not None:
            parse({"strategy": self.strategy}, where="")
            own = self.strategy not in BUILT_IN and tuple(allowed) == FREE_STRATEGIES
            if self.strategy not in allowed and self.strategy != settings.strategy and not own:
                message = f"strategy {self.strategy!r} is not allowed here; allowed: {', '.join(allowed) or 'none'}"
                raise InvalidRequest(message, param="strategy")
        for whose, limit in (("agent", budget_of(settings)), ("API key", self.limit)):
            if self.budget is not None and limit is not None and self.budget > limit:
                message = f"budget {self.budget:,} is more than the {limit:,} tokens of the {whose}: a request may only lower it"
                raise InvalidRequest(message, param="budget")
        strategy = self.strategy or settings.strategy
        asked = self.strategy is not None or self.budget is not None
        if asked and "budget" not in STRATEGIES[strategy].keys and self._least(settings) is not None:
            message = f"strategy {strategy!r} has no budget, and {self._least(settings):,} tokens are the most here"
            raise InvalidRequest(message, param="strategy" if self.strategy else "budget")

    def apply(self, settings: ContextSettings) -> ContextSettings:
        """Return the settings that hold for the request; the same object where they are the agent's own.

        A strategy without a budget gives way to `token_window` where a budget has to be kept: an agent that takes over in
        the middle of a turn cannot refuse the request any more.
        """
        strategy, least = self.strategy or settings.strategy, self._least(settings)
        if strategy == settings.strategy and least == budget_of(settings) and self.recall is None:
            return settings
        if least is not None and "budget" not in STRATEGIES[strategy].keys:
            strategy = _BUDGETED
        stays = STRATEGIES[strategy].keys if strategy == settings.strategy else (RECALL,)
        options: dict[str, Any] = {key: value for key, value in settings.options.items() if key in stays}
        options |= {} if self.recall is None else {RECALL: self.recall}
        return ContextSettings(strategy, options if least is None else {**options, "budget": least})

    def _least(self, settings: ContextSettings) -> int | None:
        """Return the smallest budget of request, key and agent; None where none has one."""
        known = [limit for limit in (self.budget, self.limit, budget_of(settings)) if limit is not None]
        return min(known, default=None)


def budget_of(settings: ContextSettings) -> int | None:
    """Return the budget of settings in tokens, given or by default; None: the model's input budget, or no limit."""
    key = STRATEGIES[settings.strategy].keys.get("budget")
    if key is None:
        return None
    budget: int | None = settings.options.get("budget", key.default)
    return budget
