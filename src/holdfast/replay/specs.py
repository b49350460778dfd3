"""What is played, as it is named on a command line: `digest`, `digest@2048`, `token_window:preserve_recent=3,target=0.5`.

Compositions are written in the order in which they work: `clear_tool_results:keep=2+token_window` clears tool results, and then
does what `token_window` does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from holdfast.context.settings import CLEARING, STRATEGIES, ContextSettings, parse
from holdfast.context.strategies import WITHOUT_MODEL, Strategy, make_strategy
from holdfast.errors import InvalidRequest

WHERE: Final = "--strategy"
DIGEST: Final = "digest"
"""As a summarizer's name: no model, the digest stands in."""
NOBODY: Final = WITHOUT_MODEL | {DIGEST}
"""Names of summarizers for which the digest stands in."""
_BUDGET, _SUMMARIZER, _SCORER = "budget", "summarizer_llm", "scorer"
_LARGEST = 999_999_999
_CANNOT: Final = (
    "{text!r}: {wrong} composes with nothing behind it; "
    f"only {CLEARING} works before another strategy: {CLEARING}+{{wrong}}"
)
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|\[[^\[\]]*\]|\{[^{}]*\}|.', re.DOTALL)
"""A JSON string, list or object, in which nothing is parted; or any one character."""


class Spec(msgspec.Struct, frozen=True):
    """A strategy with the keys that were given, `clear_tool_results` among them where it comes first."""

    strategy: str
    options: dict[str, Any] = {}
    """Without `budget`."""
    budget: int | None = None
    """Its own; None: it takes the one that it is played at."""

    @property
    def label(self) -> str:
        """Names it in tables, without its budget: what `spec_of` reads as this spec again."""
        clearing = self.options.get(CLEARING)
        own = _named(self.strategy, {key: value for key, value in self.options.items() if key != CLEARING})
        if clearing is None or clearing is False:
            return own
        return f"{_named(CLEARING, clearing if isinstance(clearing, Mapping) else {})}+{own}"

    @property
    def has_summaries(self) -> bool:
        """Whether its strategy has summaries, whoever writes them."""
        return _SUMMARIZER in STRATEGIES[self.strategy].keys

    @property
    def summarizes(self) -> bool:
        """Whether its summaries are a model's, if there is one."""
        return self.has_summaries and self.options.get(_SUMMARIZER) not in NOBODY

    @property
    def summarizer(self) -> str | None:
        """Who writes its summaries; None where it does not say."""
        named = self.options.get(_SUMMARIZER)
        return str(named) if self.summarizes and named is not None else None

    def settings(self, budget: int, *, where: str = WHERE) -> ContextSettings:
        """Its settings at a budget, where it takes one. Raises `InvalidRequest` for what no strategy knows."""
        takes = self.strategy in STRATEGIES and _BUDGET in STRATEGIES[self.strategy].keys
        given = {"strategy": self.strategy, **self.options}
        return parse({**given, **({_BUDGET: budget} if takes else {})}, where=where)

    def policy(self, budget: int, *, written: bool = False) -> Strategy:
        """Its policy at a budget.

        Args:
            budget: where it takes one.
            written: whether somebody writes its summaries; otherwise the digest stands in for them.
        """
        settings = self.settings(budget)
        if self.has_summaries and not (written and self.summarizes):
            settings = ContextSettings(settings.strategy, {**settings.options, _SUMMARIZER: "none"})
        return make_strategy(settings)


def _named(strategy: str, options: Mapping[str, Any]) -> str:
    given = ",".join(f"{key}={_shown(value)}" for key, value in options.items())
    return f"{strategy}:{given}" if given else strategy


def _shown(value: Any) -> str:
    """A value as it is read again: a text as it stands, unless that would be read as something else."""
    if isinstance(value, str) and _value(value) == value and not set(value) & set(',+"[]{}'):
        return value
    return msgspec.json.encode(value).decode()


# -- reading -----------------------------------------------------------------


def specs_of(texts: Iterable[str]) -> list[Spec]:
    """The specs in texts that list them with commas, each once: a piece `KEY=VALUE` belongs to the spec before it.

    Raises:
        InvalidRequest: as `spec_of` does; or a key stands before every strategy.
    """
    found: dict[tuple[str, int | None], Spec] = {}
    for text in texts:
        for word in _joined(_split(text, ",")):
            spec = spec_of(word)
            found[spec.label, spec.budget] = spec
    return list(found.values())


def spec_of(text: str) -> Spec:
    """The spec in `STRATEGY[@BUDGET][:KEY=VALUE,…]`, or in `clear_tool_results[:KEY=VALUE,…]+` before one.

        >>> spec_of("token_window@2048:preserve_recent=3")
        Spec(strategy='token_window', options={'preserve_recent': 3}, budget=2048)
        >>> spec_of("clear_tool_results:keep=2+token_window").options
        {'clear_tool_results': {'keep': 2}}

    Raises:
        InvalidRequest: it is none, or this version does not have the strategy or one of its keys.
    """
    *before, last = [_piece(part) for part in _split(text, "+")]
    if before:
        last = _composed(text, before, last)
    make_strategy(last.settings(last.budget or 1, where=""))
    if _SCORER in last.options:
        raise InvalidRequest(f"{_SCORER} is not played: replay rates by the built-in signals", param=_SCORER)
    return last


def tokens(text: str) -> int:
    """A number of tokens. Raises `InvalidRequest` where it is none."""
    text = text.strip()
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text)):
        raise InvalidRequest(f"{text!r} is no number of tokens, from 1 to {_LARGEST}", param=_BUDGET)
    return int(text)


# -- inside ------------------------------------------------------------------


def _split(text: str, mark: str) -> list[str]:
    """`text` parted at each `mark` that stands in no JSON value."""
    parts = [""]
    for token in _TOKEN.findall(text):
        if token == mark:
            parts.append("")
        else:
            parts[-1] += token
    return [part.strip() for part in parts]


def _joined(words: Iterable[str]) -> Iterator[str]:
    """Words with the keys behind them that are theirs."""
    spec = ""
    for word in filter(None, words):
        key, equals, _ = word.partition("=")
        if not equals or set(key) & set(":@+"):
            if spec:
                yield spec
            spec = word
        elif spec:
            spec += ("," if ":" in _split(spec, "+")[-1] else ":") + word
        else:
            raise InvalidRequest(f"{word!r} stands before any strategy", param="strategy")
    if spec:
        yield spec


def _piece(text: str) -> Spec:
    """One strategy with its keys, unchecked."""
    head, _, rest = text.partition(":")
    name, at, number = head.partition("@")
    options = dict(_option(part) for part in _split(rest, ",") if part)
    given = [tokens(number)] if at else []
    if _BUDGET in options:
        given.append(tokens(str(options.pop(_BUDGET))))
    if len(given) > 1:
        raise InvalidRequest(f"{text!r} names two budgets", param=_BUDGET)
    return Spec(name.strip(), options, given[0] if given else None)


def _option(part: str) -> tuple[str, Any]:
    key, equals, value = part.partition("=")
    if not equals:
        raise InvalidRequest(f"{part.strip()!r} is no KEY=VALUE", param="strategy")
    return key.strip(), _value(value.strip())


def _value(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return text


def _composed(text: str, before: Sequence[Spec], last: Spec) -> Spec:
    """`last` with what works before it. Raises `InvalidRequest` for what does not compose."""
    for spec in (*before, last):
        if spec.strategy:
            Spec(spec.strategy).settings(1, where="")  # one that is unknown is told as such
    if not all(spec.strategy for spec in (*before, last)):
        raise InvalidRequest(f"{text!r}: `+` stands between two strategies", param="strategy")
    wrong = next((spec.strategy for spec in before if spec.strategy != CLEARING), None)
    if wrong is not None:
        raise InvalidRequest(_CANNOT.format(text=text, wrong=wrong), param="strategy")
    if len(before) > 1 or last.strategy == CLEARING or CLEARING in last.options:
        raise InvalidRequest(f"{text!r}: {CLEARING} stands there twice", param="strategy")
    if before[0].budget is not None:
        raise InvalidRequest(f"{text!r}: the budget goes with the last strategy, {last.strategy}@N", param=_BUDGET)
    return msgspec.structs.replace(last, options={**last.options, CLEARING: before[0].options or True})
