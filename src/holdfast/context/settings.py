"""Settings of the strategies: the table of all keys that `context:` and requests may set, and their validation.

This module has the names, types, ranges and defaults of the keys, and decides what requests and API keys may set.
`holdfast.context.strategies` implements the strategies.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple

import msgspec

from holdfast.errors import InvalidRequest
from holdfast.numbers import MOST, check_whole

DEFAULT_STRATEGY: Final = "digest"
CLEARING: Final = "clear_tool_results"
"""Name of a strategy, and also of a key of every other strategy. As a key, it clears old tool results before the strategy is applied."""
RECALL: Final = "recall"
"""Key that turns on recalling evicted messages of the same session. Its value stays in force if a request names another strategy."""
RECALLING: Final = frozenset({"digest", "summary_buffer", "salience", CLEARING})
"""Strategies that recall evicted messages by default."""


_OVER: Final = "over the budget"
_OLDER: Final = "older than the last messages of the window"
_NOT_CONDENSED: Final = "over the budget, and no room to condense it"


class Key(msgspec.Struct, frozen=True):
    """Description of one configuration key of a strategy: its type, default, meaning and minimum."""

    kind: Literal["integer", "share", "text", "texts", "flag", "switch", "clearing"]
    """The type of the value. These kinds need an explanation:

    - `share`: a number above 0 and below 1. With 1.0 there would be no space for the next message.
    - `switch`: `auto`, `on` or `off`. YAML reads `on` and `off` as true and false, so these are accepted too.
    - `clearing`: a mapping with the keys of `clear_tool_results`, true for their defaults, or false to turn it off.
    """
    default: Any
    """The default value; None if `about` describes the default."""
    about: str
    """Description of the value in one line, with its unit, for the documentation."""
    low: int = 0
    """Minimum value of an integer. There is no maximum."""


class StrategySpec(msgspec.Struct, frozen=True):
    """Description of a strategy and of its keys."""

    about: str
    keys: Mapping[str, Key] = {}
    left: str = _OVER
    """Reason that `explain` gives for entries that the strategy evicts; empty if the strategy evicts nothing."""
    chosen: str = ""
    """Reason that `explain` gives for older entries that the strategy chose to keep; empty if the strategy only keeps the newest ones."""


class ContextSettings(msgspec.Struct, frozen=True):
    """The name of a strategy, and the options that were set. All other options have the strategy's defaults."""

    strategy: str = DEFAULT_STRATEGY
    options: dict[str, Any] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        # Copied, so that the caller's mapping cannot change the frozen settings.
        if not isinstance(self.options, Mapping):
            raise InvalidRequest(f"options must be an object, not {type(self.options).__name__}", param="options")
        msgspec.structs.force_setattr(self, "options", dict(self.options))


class Problem(NamedTuple):
    """A mistake in settings."""

    key: str
    """The key with the mistake; empty if the whole mapping is wrong."""
    message: str
    """Text that says what is wrong and what is allowed."""


# -- the table -----------------------------------------------------------------

_RECALL = Key(
    "switch",
    "auto",
    "whether evicted messages are recalled if the current message asks about them: `auto`, `on`, `off`",
)
_WINDOW_SIZE = Key("integer", 20, "number of newest messages that are kept", low=1)
_TARGET = Key("share", 0.33, "share of the budget that is still used after messages were removed")


def _make_budget_key(default: int | None, about: str = "maximum tokens of the conversation") -> Key:
    return Key("integer", default, about, low=1)


MAX_WINDOW: Final = 200_000
"""Maximum tokens of a model's context window that are used if no budget is set.

Without this limit, hardly any message would be evicted from a window of a million tokens, and models find less in long prompts."""
_MAX_WINDOW = Key(
    "integer", MAX_WINDOW, "if `budget` is unset: maximum tokens of the model's window that are used", low=1
)


def _make_facts_key(*, default: bool) -> Key:
    about = "whether the user's standing facts stay, verbatim, when their messages are removed"
    return Key("flag", default=default, about=about)


_BY_INPUT = "maximum tokens of the conversation; unset: the model's input budget"
_CLEARING_KEYS: Final[Mapping[str, Key]] = {
    "trigger": Key(
        "integer",
        None,
        "tokens of the prompt above which results are cleared; unset: they are cleared when the budget is full",
        low=1,
    ),
    "keep": Key("integer", 3, "number of newest tool results that stay"),
    "clear_at_least": Key("integer", 4000, "results are cleared only if that frees at least this number of tokens"),
    "exclude_tools": Key("texts", (), "names of tools whose results stay"),
    "keep_latest": Key("flag", default=False, about="whether the latest result of each tool stays too"),
    "trigger_uses": Key("integer", None, "number of tool results above which results are cleared too", low=1),
    "clear_tool_inputs": Key("flag", default=False, about="whether the calls of cleared results lose their arguments"),
    "clear_inputs_of": Key(
        "texts", (), "names of tools whose calls lose their arguments when their results are cleared"
    ),
    "keep_thinking": Key(
        "integer", None, "number of newest turns whose reasoning is sent, of those with reasoning; unset: all", low=1
    ),
}


def _make_spec(
    about: str,
    keys: Mapping[str, Key] = MappingProxyType({}),
    *,
    left: str = _OVER,
    chosen: str = "",
    facts: bool = False,
) -> StrategySpec:
    """Return the description of a strategy. The keys that all strategies except `clear_tool_results` have in common are added to `keys`."""
    clearing = Key("clearing", None, "its keys, or true: older tool results are cleared first; unset: they are not")
    return StrategySpec(
        about, {**keys, "facts": _make_facts_key(default=facts), CLEARING: clearing, RECALL: _RECALL}, left, chosen
    )


_WINDOW_KEYS = {
    "window_size": _WINDOW_SIZE,
    "budget": _make_budget_key(None, "maximum tokens of the conversation, as a second limit; unset: no second limit"),
}
_strategies: dict[str, StrategySpec] = {
    "none": _make_spec("the whole log; the request is refused if that does not fit the model's window", left=""),
    "buffer_window": _make_spec(
        "the last messages and pinned messages, but not the task",
        _WINDOW_KEYS,
        left=_OLDER,
    ),
    "head_tail": _make_spec(
        "the task, pinned messages and the last messages",
        _WINDOW_KEYS,
        left=_OLDER,
    ),
    "token_window": _make_spec(
        "the task, pinned messages and the newest messages that fit the budget",
        {
            "budget": _make_budget_key(8000),
            "preserve_recent": Key(
                "integer", 5, "number of newest messages that are shortened before they are removed"
            ),
            "target": _TARGET,
        },
    ),
    "digest": _make_spec(
        "like token_window; removed messages are condensed to their facts, without a model",
        {"budget": _make_budget_key(None, _BY_INPUT), "max_window": _MAX_WINDOW, "target": _TARGET},
        left=_NOT_CONDENSED,
        facts=True,
    ),
    "salience": _make_spec(
        "removes the least important messages first",
        {
            "budget": _make_budget_key(None, _BY_INPUT),
            "max_window": _MAX_WINDOW,
            "target": Key(
                "share",
                None,
                "share of the budget that is still used after messages were removed; unset: 1 up to a budget of 2,048 tokens, falling to 0.33 at 8,192",
            ),
            "scorer": Key("text", None, "name of a scorer or an llm that rates messages; unset: built-in signals"),
        },
        left="over the budget, and less important than what stays",
        chosen="important",
        facts=True,
    ),
    "summary_buffer": _make_spec(
        "when the prompt exceeds the threshold, a model replaces older messages by one summary",
        {
            "budget": _make_budget_key(8000),
            "threshold": Key("share", 0.85, "share of the budget above which a summary is made"),
            "target": Key("share", 0.7, "share of the budget that is used after a summary; less than `threshold`"),
            "summarizer_llm": Key(
                "text",
                None,
                "name of the llm that writes the summary; unset: the agent's own; `none`: no model, use the digest",
            ),
            "prompt": Key("text", None, "the summarizer's instructions; unset: the built-in text"),
        },
        left=_NOT_CONDENSED,
        facts=True,
    ),
    CLEARING: StrategySpec(
        "replaces old tool results with markers; if that is not enough, continues like digest",
        {
            "budget": _make_budget_key(None, _BY_INPUT),
            "max_window": _MAX_WINDOW,
            "facts": _make_facts_key(default=True),
            **_CLEARING_KEYS,
            RECALL: _RECALL,
        },
        left=_NOT_CONDENSED,
    ),
}
STRATEGIES: Final[Mapping[str, StrategySpec]] = MappingProxyType(_strategies)
"""All strategies by name, including those that the application registered."""
BUILT_IN: Final = frozenset(_strategies)


def add_strategy(name: str) -> None:
    """Add an application's strategy to `STRATEGIES`."""
    _strategies[name] = _make_spec(
        "a strategy of the application",
        {
            "budget": _make_budget_key(None, _BY_INPUT),
            "max_window": _MAX_WINDOW,
            "threshold": Key("share", None, "share of the budget past which the function is called; unset: all of it"),
        },
        left=f"over the budget, and not chosen by the strategy {name}",
        chosen=f"chosen by the strategy {name}",
    )


def remove_strategy(name: str) -> None:
    """Remove an application's strategy from `STRATEGIES`."""
    _strategies.pop(name, None)


# -- parsing -------------------------------------------------------------------


def is_recalling(strategy: str, given: object) -> bool:
    """Return True if a strategy recalls evicted messages when its key `recall` has the value `given`."""
    return strategy in RECALLING if given in ("auto", None) else given in ("on", True)


def parse(given: object, *, where: str = "context", base: ContextSettings | None = None) -> ContextSettings:
    """Parse settings from a mapping with `strategy` and its keys.

        >>> parse({"strategy": "token_window", "budget": 4000})
        ContextSettings(strategy='token_window', options={'budget': 4000})

    Args:
        given: the mapping. Keys with the value None are ignored.
        where: path of the mapping, for error messages; empty if the mapping is the request itself.
        base: settings from which the strategy and missing options are taken if `given` names no strategy.

    Raises:
        InvalidRequest: there are mistakes. The message lists all of them; `param` is the path of the first one.
    """
    settings, problems = examine(given, base=base)
    if not problems:
        return settings
    paths = [".".join(filter(None, (where, problem.key))) for problem in problems]
    text = "; ".join(f"{path}: {problem.message}" for path, problem in zip(paths, problems, strict=True))
    raise InvalidRequest(text, param=paths[0] or None)


def check_settings(settings: Any, *, where: str = "context") -> ContextSettings:
    """Check a `ContextSettings` object, as `parse` checks a mapping, and return it.

    Raises:
        InvalidRequest: the settings are invalid.
    """
    if not isinstance(settings, ContextSettings):
        raise InvalidRequest(f"{where} must be ContextSettings, not {type(settings).__name__}", param=where)
    parse({"strategy": settings.strategy, **settings.options}, where=where)
    return settings


def examine(given: object, *, base: ContextSettings | None = None) -> tuple[ContextSettings, list[Problem]]:
    """Return the settings without the wrong options, and all mistakes. For callers that report mistakes with line numbers.

    Args:
        given: the mapping, as for `parse`.
        base: the defaults, as for `parse`.
    """
    base = base or ContextSettings()
    if not isinstance(given, Mapping):
        return base, [Problem("", f"expected a mapping with `strategy` and its keys, got {_format_value(given)}")]
    options = {key: value for key, value in given.items() if value is not None}
    strategy = options.pop("strategy", None)
    if strategy is None:
        strategy, inherited = base.strategy, base.options
    elif not isinstance(strategy, str) or strategy not in STRATEGIES:
        return base, [Problem("strategy", _describe_unknown_strategy(strategy))]
    else:
        inherited = {key: value for key, value in base.options.items() if key == RECALL}
    keys = STRATEGIES[strategy].keys
    whose = f"keys of strategy {strategy!r}"
    problems = [wrong for key, value in options.items() for wrong in _find_problems(keys, key, value, whose)]
    wrong = {problem.key.partition(".")[0] for problem in problems}
    if not wrong & {"threshold", "target"}:
        right = {key: value for key, value in options.items() if key not in wrong}
        problems += _find_conflicts(strategy, {**inherited, **right})
        wrong |= {problem.key for problem in problems}
    kept = {key: value for key, value in options.items() if key not in wrong}
    return ContextSettings(strategy, {**inherited, **kept}), problems


def _describe_unknown_strategy(strategy: object) -> str:
    near = difflib.get_close_matches(strategy, STRATEGIES, n=1) if isinstance(strategy, str) else []
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"unknown strategy {_format_value(strategy)}; {hint}known: {', '.join(STRATEGIES)}"


def _find_problems(keys: Mapping[str, Key], name: str, value: object, whose: str) -> list[Problem]:
    """Return the mistakes in one option and in the keys of its mapping, if its value is a mapping.

    Args:
        keys: the allowed keys.
        name: the option's key.
        value: the option's value.
        whose: describes the allowed keys in messages.
    """
    key = keys.get(name)
    if key is None:
        near = difflib.get_close_matches(str(name).replace("-", "_").lower(), keys, n=1)
        if near and near[0] != name:
            return [Problem(name, f"unknown key; did you mean {near[0]!r}?")]
        return [Problem(name, f"unknown key; {whose}: {', '.join(keys) or 'none'}")]
    if key.kind == "clearing" and isinstance(value, Mapping):
        below = [
            wrong
            for inner, what in value.items()
            if what is not None
            for wrong in _find_problems(_CLEARING_KEYS, inner, what, f"keys of {CLEARING}")
        ]
        return [Problem(f"{name}.{problem.key}", problem.message) for problem in below]
    if not _is_valid(key, value):
        return [Problem(name, f"expected {_describe_expected(key)}, got {_format_value(value)}")]
    return []


def _is_valid(key: Key, value: object) -> bool:
    if key.kind in ("flag", "clearing", "switch"):
        return isinstance(value, bool) or (key.kind == "switch" and value in ("auto", "on", "off"))
    if key.kind == "text":
        return isinstance(value, str) and value != "" and value.encode(errors="ignore").decode() == value
    if key.kind == "texts":
        return isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if key.kind == "share":
        return 0 < value < 1
    return isinstance(value, int) and value >= key.low


def _describe_expected(key: Key) -> str:
    match key.kind:
        case "flag" | "switch":
            return "true or false" if key.kind == "flag" else "auto, on or off"
        case "clearing":
            return "a mapping with its keys, true or false"
        case "text":
            return "a string that is not empty"
        case "texts":
            return "a list of strings"
        case "share":
            return "a number above 0 and below 1"
        case "integer":
            return f"an integer, at least {key.low}"


def _find_conflicts(strategy: str, options: Mapping[str, Any]) -> list[Problem]:
    """Return the mistakes in options that are valid one by one but not together."""
    keys = STRATEGIES[strategy].keys
    if not {"threshold", "target"} <= keys.keys():
        return []
    threshold, target = (options.get(name, keys[name].default) for name in ("threshold", "target"))
    if target < threshold:
        return []
    is_now = f"got {target}" if "target" in options else f"and is {target} unless set"
    return [Problem("target", f"must be less than threshold ({threshold}), {is_now}")]


def _format_value(value: object) -> str:
    """Return a short description of a value for a message.

    The items of a mapping are not shown. Of a list, only the first item that is neither a text nor a list is shown.
    """
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        odd = [item for item in value if not isinstance(item, str | list | tuple)]
        return f"a list with {_format_value(odd[0])} in it" if odd else "a list"
    if isinstance(value, bool):
        return str(value).lower()
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"


MODEL_STRATEGIES: Final = frozenset({"summary_buffer"})
"""Strategies that call a model."""
FREE_STRATEGIES: Final = tuple(name for name in STRATEGIES if name not in MODEL_STRATEGIES)
"""Strategies that call no model."""
_BUDGETED: Final = "token_window"
"""Strategy that is used in place of a strategy without a `budget` key if the request, the API key or the agent has a budget."""


class RequestSettings(msgspec.Struct, frozen=True):
    """The context settings of a request and of its API key. None means that a setting is missing."""

    strategy: str | None = None
    """The requested strategy."""
    budget: int | None = None
    """The requested budget, in tokens."""
    limit: int | None = None
    """The budget of the API key, in tokens."""
    recall: str | bool | None = None
    """The requested value of `recall`: `auto`, `on` or `off`."""
    clearing: Mapping[str, Any] | None = None
    """The requested value of `clear_tool_results`, which applies before the strategy."""
    memory: Literal["client", "server"] | None = None
    """Place where the calls of Anthropic's memory tool run; None: the agent's setting."""
    is_whole: bool = False
    """True: the prompt must have the whole conversation. If it does not fit, the request is rejected. `strategy` must be None."""

    def check(self, settings: ContextSettings, allowed: Collection[str]) -> None:
        """Raise an error if the request may not use the strategy or the budget that it sets.

        Args:
            settings: the agent's settings.
            allowed: strategies that a request may name. The default `FREE_STRATEGIES` also allows those that the application registered.

        Raises:
            InvalidRequest: the strategy is unknown or not allowed, or the budget exceeds that of the agent or the API key. Also if there is
                a budget and the strategy cannot keep it.
        """
        if self.budget is not None:
            check_whole(self.budget, "budget", 1, MOST)
        if self.recall is not None:
            parse({RECALL: self.recall}, where="")
        if self.clearing is not None:
            parse({"strategy": _BUDGETED, CLEARING: self.clearing}, where="")
        if self.strategy is not None:
            parse({"strategy": self.strategy}, where="")
            own = self.strategy not in BUILT_IN and tuple(allowed) == FREE_STRATEGIES
            if self.strategy not in allowed and self.strategy != settings.strategy and not own:
                message = f"strategy {self.strategy!r} is not allowed here; allowed: {', '.join(allowed) or 'none'}"
                raise InvalidRequest(message, param="strategy")
        for whose, limit in (("agent", get_budget(settings)), ("API key", self.limit)):
            if self.budget is not None and limit is not None and self.budget > limit:
                message = f"budget {self.budget:,} is more than the {limit:,} tokens of the {whose}: a request may only lower it"
                raise InvalidRequest(message, param="budget")
        strategy = self.strategy or settings.strategy
        asked = self.strategy is not None or self.budget is not None
        if asked and "budget" not in STRATEGIES[strategy].keys and self._get_smallest_budget(settings) is not None:
            message = f"strategy {strategy!r} has no budget, but at most {self._get_smallest_budget(settings):,} tokens are allowed; name another strategy"
            raise InvalidRequest(message, param="strategy" if self.strategy else "budget")

    def apply(self, settings: ContextSettings) -> ContextSettings:
        """Return the agent's settings with those of the request applied; the same object if nothing changes.

        If there is a budget and the strategy has no `budget` key, `token_window` replaces the strategy. This is no error, because an agent
        that takes over in the middle of a turn can no longer reject the request.
        """
        strategy, least = self.strategy or settings.strategy, self._get_smallest_budget(settings)
        if self.is_whole:
            strategy = "none"
        same = self.recall is None and self.clearing is None
        if strategy == settings.strategy and least == get_budget(settings) and same:
            return settings
        if least is not None and "budget" not in STRATEGIES[strategy].keys:
            strategy = _BUDGETED
        stays = STRATEGIES[strategy].keys if strategy == settings.strategy else (RECALL,)
        options: dict[str, Any] = {key: value for key, value in settings.options.items() if key in stays}
        options |= {} if self.recall is None else {RECALL: self.recall}
        if self.clearing is not None:
            options |= self.clearing if strategy == CLEARING else {CLEARING: self._merge_clearing(options)}
        return ContextSettings(strategy, options if least is None else {**options, "budget": least})

    def _merge_clearing(self, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the value of `clear_tool_results`. If the request only clears reasoning, tool results are cleared as the agent says."""
        assert self.clearing is not None, "the request clears something"
        if self.clearing.keys() != {"keep_thinking"}:
            return self.clearing
        own = options.get(CLEARING)
        keys: Mapping[str, Any] = own if isinstance(own, Mapping) else {} if own else {"keep": MOST}
        return {**keys, **self.clearing}

    def _get_smallest_budget(self, settings: ContextSettings) -> int | None:
        """Return the smallest of the budgets of request, API key and agent; None if there is no budget."""
        known = [limit for limit in (self.budget, self.limit, get_budget(settings)) if limit is not None]
        return min(known, default=None)


def format_settings(settings: ContextSettings) -> str:
    """Return settings in words: the strategy, its budget, and other numbers that were set. The strategy may be unknown.

    >>> format_settings(ContextSettings("head_tail", {"window_size": 20, "budget": 8000}))
    'strategy head_tail, budget 8,000, window_size 20'
    """
    budget = get_budget(settings) if settings.strategy in STRATEGIES else None
    numbers = {"budget": budget, **settings.options} if budget is not None else settings.options
    shown = [f"{name} {value:,}" for name, value in numbers.items() if type(value) in (int, float)]
    return ", ".join([f"strategy {settings.strategy}", *shown])


def get_budget(settings: ContextSettings) -> int | None:
    """Return the budget of settings in tokens, which may be the strategy's default; None if only the model limits the conversation."""
    key = STRATEGIES[settings.strategy].keys.get("budget")
    if key is None:
        return None
    budget: int | None = settings.options.get("budget", key.default)
    return budget
