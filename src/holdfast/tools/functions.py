"""A tool from a plain function: described by its docstring, its signature and its annotations, its arguments checked by them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, partial
from types import MethodType
from typing import Annotated, Any, Final, NamedTuple, get_args, get_origin, get_type_hints

import anyio.lowlevel
import anyio.to_thread
import msgspec
from msgspec import UNSET, UnsetType

from holdfast.errors import InvalidRequest
from holdfast.limits import TOOL_THREADS
from holdfast.tools.context import ToolContext
from holdfast.tools.tool import Tool, ToolLimits, Toolset

_SECTION: Final = re.compile(r"(Args|Arguments|Parameters):\s*$")
_ARGUMENT: Final = re.compile(r"(\s+)\*{0,2}(\w+)\s*(?:\([^)]*\))?:\s*(.*)$")
_PLAIN: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_METHODS: Final = 256
"""Methods of which is remembered what their signatures say."""
_limiter: anyio.lowlevel.RunVar[anyio.CapacityLimiter] = anyio.lowlevel.RunVar("holdfast_tool_threads")


_LIMITS: Final = ("minLength", "maxLength", "maxItems", "minimum", "maximum")


def shorten_schema(tool: Tool, *untold: str) -> Tool:
    """Return a tool whose schema costs fewer tokens: what a call must keep is checked when it is made, told or not.

    Left out are limits of numbers and lengths, that what is optional may be null, too, and parameters that are not told.

    Args:
        tool: made by `tool_from`.
        untold: parameters that a call may have, and that are not worth their tokens.
    """
    properties = {}
    for name, given in tool.parameters["properties"].items():
        told = next((one for one in given.get("anyOf", ()) if one != {"type": "null"}), given)
        if name not in untold:
            properties[name] = {key: value for key, value in told.items() if key not in _LIMITS}
    parameters = {key: value for key, value in tool.parameters.items() if key != "additionalProperties"}
    return msgspec.structs.replace(tool, parameters={**parameters, "properties": properties})


def tool_from(
    function: Callable[..., Any],
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float | None = None,
    max_result: int | None = None,
) -> Tool:
    """A tool that calls `function`: an async one in the event loop, a plain one in a thread.

    A parameter with a default is optional; one that is annotated with `ToolContext` gets the session, and the model does not
    see it. The model is told the first paragraph of the docstring, and of each parameter what the section `Args:` says, or a
    text in its `Annotated`.

    Args:
        function: with an annotation for each parameter, of a type that msgspec reads from JSON.
        name: None: the function's own.
        description: None: the docstring's first paragraph.
        timeout: seconds that a call may take; None: as `ToolLimits` says. A thread cannot be stopped: it is left behind.
        max_result: bytes of a result; None: as `ToolLimits` says.

    Raises:
        InvalidRequest: it is no function that a tool can be made from; says why.
    """
    if not callable(function):
        raise InvalidRequest(f"a tool is a function or a Tool, not {type(function).__name__}", param="tools")
    name = getattr(function, "__name__", None) if name is None else name
    if name is None or name == "<lambda>":
        raise InvalidRequest("a tool needs a name: tool_from(function, name=…) gives it one", param="tools")
    text = inspect.getdoc(function) or ""
    if isinstance(function, MethodType) and inspect.isfunction(function.__func__):
        read = _read_method(function.__func__, name, text)
    else:
        read = _read(function, name, text)
    return Tool(
        name=name,
        call=partial(_called, function, read.arguments, read.context),
        description=read.description if description is None else description,
        parameters=read.parameters,
        timeout=timeout,
        max_result=max_result,
        reads_state=read.context is not None,
    )


def toolset(given: Iterable[Callable[..., Any] | Tool], limits: ToolLimits | None = None) -> Toolset:
    """The tools of functions, and those that are tools already. Raises `InvalidRequest`, as `tool_from` does."""
    if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
        raise InvalidRequest(f"tools must be a list of functions, not {type(given).__name__}", param="tools")
    return Toolset.made((one if isinstance(one, Tool) else tool_from(one) for one in given), limits)


async def _called(
    function: Callable[..., Any],
    arguments: type[msgspec.Struct],
    takes_context: str | None,
    context: ToolContext,
    given: Mapping[str, Any],
) -> Any:
    try:
        made = msgspec.convert(given, arguments)
    except msgspec.ValidationError as exc:
        raise InvalidRequest(f"wrong arguments: {exc}") from exc
    named = {field: value for field in arguments.__struct_fields__ if (value := getattr(made, field)) is not UNSET}
    if takes_context is not None:
        named[takes_context] = context
    if inspect.iscoroutinefunction(_annotated(function)):
        return await function(**named)
    returned = await anyio.to_thread.run_sync(partial(function, **named), abandon_on_cancel=True, limiter=_threads())
    return await returned if inspect.isawaitable(returned) else returned


def _threads() -> anyio.CapacityLimiter:
    """Threads of their own, so that tools that hang keep nobody else waiting."""
    try:
        return _limiter.get()
    except LookupError:
        _limiter.set(limiter := anyio.CapacityLimiter(TOOL_THREADS))
        return limiter


# -- the signature ---------------------------------------------------------------


class _Read(NamedTuple):
    """What a function says of itself."""

    context: str | None
    """The parameter that takes the session."""
    arguments: type[msgspec.Struct]
    parameters: Mapping[str, Any]
    """The JSON Schema of `arguments`."""
    description: str


def _read(function: Callable[..., Any], name: str, text: str) -> _Read:
    """Read a function with that docstring as the tool `name`. Raises `InvalidRequest`."""
    context, fields = _parameters(function, name, _told(text))
    arguments = _struct(name, fields)
    return _Read(context, arguments, _schema(arguments, name, fields), _first_paragraph(text))


@lru_cache(_METHODS)
def _read_method(function: Callable[..., Any], name: str, text: str) -> _Read:
    """The same of a method, whosever it is: each Holdfast that is opened makes tools of the same ones."""
    return _read(MethodType(function, object()), name, text)


class _Field(msgspec.Struct, frozen=True):
    name: str
    annotation: Any
    default: Any
    """`inspect.Parameter.empty` where there is none."""
    description: str

    @property
    def defined(self) -> tuple[Any, ...]:
        """As `msgspec.defstruct` wants it: what the model leaves out is left to the function."""
        told = msgspec.Meta(description=self.description) if self.description else None
        kind = Annotated[self.annotation, told] if told else self.annotation
        return (self.name, kind) if self.default is inspect.Parameter.empty else (self.name, kind | UnsetType, UNSET)


def _parameters(function: Callable[..., Any], name: str, told: Mapping[str, str]) -> tuple[str | None, list[_Field]]:
    """The parameter that takes the session, if there is one, and those that the model fills in."""
    context, fields = None, []
    try:
        parameters = inspect.signature(function).parameters.values()
        hints = get_type_hints(_annotated(function), include_extras=True)
    except (NameError, TypeError, ValueError) as exc:
        raise InvalidRequest(f"tool {name!r}: its signature cannot be read: {exc}", param="tools") from exc
    for parameter in parameters:
        place = f"tool {name!r}, parameter {parameter.name!r}"
        if parameter.kind not in _PLAIN:
            raise InvalidRequest(f"{place}: the model gives arguments by name, one by one", param="tools")
        if parameter.name not in hints:
            raise InvalidRequest(f"{place}: it has no annotation, which says what the model may give", param="tools")
        hint = hints[parameter.name]
        if hint is ToolContext:
            context = parameter.name
            continue
        description = told.get(parameter.name) or _in_annotation(hint)
        fields.append(_Field(parameter.name, hint, parameter.default, description))
    return context, fields


def _annotated(function: Callable[..., Any]) -> Callable[..., Any]:
    """What has the annotations of a function, of a partial one, or of an object that can be called."""
    if isinstance(function, partial):
        return _annotated(function.func)
    return function if inspect.isroutine(function) else type(function).__call__


def _struct(name: str, fields: list[_Field]) -> type[msgspec.Struct]:
    try:
        return msgspec.defstruct(
            "Arguments", [field.defined for field in fields], kw_only=True, forbid_unknown_fields=True, module=__name__
        )
    except (TypeError, ValueError) as exc:
        raise InvalidRequest(
            f"tool {name!r}: no arguments can be made from its parameters: {exc}", param="tools"
        ) from exc


def _schema(arguments: type[msgspec.Struct], name: str, fields: list[_Field]) -> dict[str, Any]:
    """JSON Schema of the arguments, in one object; other types that they refer to stand in its `$defs`."""
    try:
        (top,), parts = msgspec.json.schema_components([arguments], ref_template="#/$defs/{name}")
    except (TypeError, RecursionError) as exc:
        raise InvalidRequest(
            f"tool {name!r}: a parameter is of a type that JSON cannot say: {exc}", param="tools"
        ) from exc
    schema = {key: value for key, value in parts.pop(top["$ref"].rpartition("/")[2]).items() if key != "title"}
    for field in fields:
        if (default := _plain_default(field.default)) is not UNSET:
            schema["properties"][field.name]["default"] = default
    return schema | ({"$defs": parts} if parts else {})


def _plain_default(default: Any) -> Any:
    """A default as the model may be told it; UNSET where there is none, or JSON cannot say it."""
    if default is inspect.Parameter.empty or default is None:
        return UNSET
    try:
        return msgspec.json.decode(msgspec.json.encode(default))
    except (TypeError, ValueError, OverflowError, RecursionError):
        return UNSET


# -- the docstring ---------------------------------------------------------------


def _first_paragraph(text: str) -> str:
    return " ".join(text.split("\n\n", 1)[0].split())


def _told(text: str) -> dict[str, str]:
    """What the section `Args:` of a docstring says, by parameter."""
    told: dict[str, str] = {}
    inside, margin, name = False, "", ""
    for line in text.splitlines():
        if not inside or (line.strip() and not line[0].isspace()):
            inside, margin, name = bool(_SECTION.match(line)), "", ""
            continue
        found = _ARGUMENT.match(line)
        if found and (not margin or found[1] == margin):
            margin, name = found[1], found[2]
            told[name] = found[3].strip()
        elif name:
            told[name] = f"{told[name]} {line.strip()}".strip()
    return told


def _in_annotation(hint: Any) -> str:
    """A plain text in `Annotated[…]`."""
    if get_origin(hint) is not Annotated:
        return ""
    return next((said for said in get_args(hint)[1:] if isinstance(said, str)), "")
