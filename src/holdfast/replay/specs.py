"""What is played, as it is named on a command line: `digest`, `digest@2048`, `token_window:preserve_recent=3,target=0.5`."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.context.policies import policy
from holdfast.context.settings import STRATEGIES, ContextSettings, parse
from holdfast.errors import InvalidRequest

WHERE = "--strategy"
_BUDGET = "budget"
_LARGEST = 999_999_999


class Spec(msgspec.Struct, frozen=True):
    """A strategy with the keys that were given."""

    strategy: str
    options: dict[str, Any] = {}
    """Without `budget`."""
    budget: int | None = None
    """Its own; None: it takes the one that it is played at."""

    @property
    def label(self) -> str:
        """Names it in tables, without its budget."""
        given = ",".join(f"{key}={value}" for key, value in self.options.items())
        return f"{self.strategy}:{given}" if given else self.strategy

    def settings(self, budget: int, *, where: str = WHERE) -> ContextSettings:
        """Its settings at a budget, where it takes one. Raises `InvalidRequest` for what no strategy knows."""
        takes = self.strategy in STRATEGIES and _BUDGET in STRATEGIES[self.strategy].keys
        given = {"strategy": self.strategy, **self.options}
        return parse({**given, **({_BUDGET: budget} if takes else {})}, where=where)


def spec_of(text: str) -> Spec:
    """The spec in `STRATEGY[@BUDGET][:KEY=VALUE,…]`.

        >>> spec_of("token_window@2048:preserve_recent=3")
        Spec(strategy='token_window', options={'preserve_recent': 3}, budget=2048)

    Raises:
        InvalidRequest: it is none, or this version does not have the strategy or one of its keys.
    """
    head, _, rest = text.strip().partition(":")
    name, at, number = head.partition("@")
    options = dict(_option(part) for part in rest.split(",") if part.strip())
    given = [tokens(number)] if at else []
    if _BUDGET in options:
        given.append(tokens(str(options.pop(_BUDGET))))
    if len(given) > 1:
        raise InvalidRequest(f"{text!r} names two budgets", param=_BUDGET)
    spec = Spec(name.strip(), options, given[0] if given else None)
    policy(spec.settings(spec.budget or 1, where=""))
    return spec


def tokens(text: str) -> int:
    """A number of tokens. Raises `InvalidRequest` where it is none."""
    text = text.strip()
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text)):
        raise InvalidRequest(f"{text!r} is no number of tokens, from 1 to {_LARGEST}", param=_BUDGET)
    return int(text)


def settings_for(name: str, budget: int) -> ContextSettings:
    """A strategy's defaults with `budget`, where it takes one. Raises `InvalidRequest` for an unknown strategy."""
    return Spec(name).settings(budget)


def _option(part: str) -> tuple[str, Any]:
    key, equals, value = part.partition("=")
    if not equals:
        raise InvalidRequest(f"{part.strip()!r} is no KEY=VALUE", param="strategy")
    try:
        return key.strip(), msgspec.json.decode(value.strip())
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return key.strip(), value.strip()
