"""Create tools from functions. The schema comes from the signature and its annotations, the description from the docstring."""

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
_SUPPORTED_KINDS: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_CACHED_METHODS: Final = 256
"""Maximum number of methods whose signatures are cached."""
_limiter: anyio.lowlevel.RunVar[anyio.CapacityLimiter] = anyio.lowlevel.RunVar("holdfast_tool_threads")


_LIMIT_KEYWORDS: Final = ("minLength", "maxLength", "maxItems", "minimum", "maximum")


def shorten_schema(tool: Tool, *hidden: str) -> Tool:
    """Return a tool with a shorter schema, to save tokens. Calls are still checked against the full signature.

    The shorter schema leaves out the limits of numbers and lengths, the type null of optional parameters,
    `additionalProperties`, and the parameters in `hidden`.

    Args:
        tool: a tool that `tool_from` created.
        hidden: names of optional parameters that the model does not see.
    """
    properties = {}
    for name, given in tool.parameters["properties"].items():
        schema = next((one for one in given.get("anyOf", ()) if one != {"type": "null"}), given)
        if name not in hidden:
            properties[name] = {key: value for key, value in schema.items() if key not in _LIMIT_KEYWORDS}
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
    """Create a tool that calls `function`.

    An async function runs in the event loop, any other function in a thread. Parameters with a default are optional. A
    parameter annotated with `ToolContext` receives the context of the call, and is hidden from the model. The description of each other
    parameter comes from the section `Args:` of the docstring, or from a string in the parameter's `Annotated`.

    Args:
        function: a callable whose parameters all have a type annotation. msgspec must be able to read these types from JSON.
        name: name of the tool; default: the function's name.
        description: description for the model; default: the first paragraph of the docstring.
        timeout: time limit of a call in seconds; default: `ToolLimits.timeout`. A function in a thread cannot be stopped, so it
            continues after the limit.
        max_result: maximum bytes of a result; default: `ToolLimits.result`.

    Raises:
        InvalidRequest: no tool can be created from the function; the message says why.
    """
    if not callable(function):
        raise InvalidRequest(f"a tool must be a function or a Tool, not {type(function).__name__}", param="tools")
    name = getattr(function, "__name__", None) if name is None else name
    if name is None or name == "<lambda>":
        raise InvalidRequest("a tool needs a name: use tool_from(function, name=…)", param="tools")
    text = inspect.getdoc(function) or ""
    if isinstance(function, MethodType) and inspect.isfunction(function.__func__):
        read = _read_method(function.__func__, name, text)
    else:
        read = _read_signature(function, name, text)
    return Tool(
        name=name,
        call=partial(_call_function, function, read.arguments, read.context),
        description=read.description if description is None else description,
        parameters=read.parameters,
        timeout=timeout,
        max_result=max_result,
        reads_state=read.context is not None,
    )


def make_toolset(given: Iterable[Callable[..., Any] | Tool], limits: ToolLimits | None = None) -> Toolset:
    """Create a toolset from functions and tools.

    Raises:
        InvalidRequest: no tool can be created from a function, or two tools have the same name.
    """
    if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
        raise InvalidRequest(f"tools must be a list of functions, not {type(given).__name__}", param="tools")
    return Toolset.create((one if isinstance(one, Tool) else tool_from(one) for one in given), limits)


async def _call_function(
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
    if inspect.iscoroutinefunction(_get_annotated(function)):
        return await function(**named)
    returned = await anyio.to_thread.run_sync(
        partial(function, **named), abandon_on_cancel=True, limiter=_get_limiter()
    )
    return await returned if inspect.isawaitable(returned) else returned


def _get_limiter() -> anyio.CapacityLimiter:
    """Return the limiter of tool threads. Nothing else uses it, so hanging tools block only other tools."""
    try:
        return _limiter.get()
    except LookupError:
        _limiter.set(limiter := anyio.CapacityLimiter(TOOL_THREADS))
        return limiter


# -- the signature ---------------------------------------------------------------


class _Signature(NamedTuple):
    """The properties of a tool that come from the signature and docstring of its function."""

    context: str | None
    """Name of the parameter that receives the context of the call; None: the function has none."""
    arguments: type[msgspec.Struct]
    parameters: Mapping[str, Any]
    """JSON Schema of `arguments`."""
    description: str


def _read_signature(function: Callable[..., Any], name: str, text: str) -> _Signature:
    """Read signature and docstring of a function. Raise `InvalidRequest` if no tool can be created from it."""
    context, fields = _read_parameters(function, name, _parse_args_section(text))
    arguments = _make_struct(name, fields)
    return _Signature(context, arguments, _make_schema(arguments, name, fields), _get_first_paragraph(text))


@lru_cache(_CACHED_METHODS)
def _read_method(function: Callable[..., Any], name: str, text: str) -> _Signature:
    """Read signature and docstring of a method. The result is cached, because each Holdfast creates tools from the same methods."""
    return _read_signature(MethodType(function, object()), name, text)


class _Field(msgspec.Struct, frozen=True):
    name: str
    annotation: Any
    default: Any
    """Default value of the parameter; `inspect.Parameter.empty`: the parameter has none."""
    description: str

    @property
    def definition(self) -> tuple[Any, ...]:
        """The field in the form of `msgspec.defstruct`. An argument that the model omits is UNSET, and is not passed to the function."""
        meta = msgspec.Meta(description=self.description) if self.description else None
        kind = Annotated[self.annotation, meta] if meta else self.annotation
        return (self.name, kind) if self.default is inspect.Parameter.empty else (self.name, kind | UnsetType, UNSET)


def _read_parameters(
    function: Callable[..., Any], name: str, texts: Mapping[str, str]
) -> tuple[str | None, list[_Field]]:
    """Return the name of the parameter that receives the context, or None, and the parameters that the model sees."""
    context, fields = None, []
    try:
        parameters = inspect.signature(function).parameters.values()
        hints = get_type_hints(_get_annotated(function), include_extras=True)
    except (NameError, TypeError, ValueError) as exc:
        raise InvalidRequest(f"tool {name!r}: its signature cannot be read: {exc}", param="tools") from exc
    for parameter in parameters:
        place = f"tool {name!r}, parameter {parameter.name!r}"
        if parameter.kind not in _SUPPORTED_KINDS:
            raise InvalidRequest(
                f"{place}: *args, **kwargs and positional-only parameters are not supported", param="tools"
            )
        if parameter.name not in hints:
            raise InvalidRequest(f"{place}: add a type annotation, which tells the model what to pass", param="tools")
        hint = hints[parameter.name]
        if hint is ToolContext:
            context = parameter.name
            continue
        description = texts.get(parameter.name) or _get_annotation_text(hint)
        fields.append(_Field(parameter.name, hint, parameter.default, description))
    return context, fields


def _get_annotated(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that has the annotations: `function` itself, the function inside a `partial`, or an object's `__call__`."""
    if isinstance(function, partial):
        return _get_annotated(function.func)
    return function if inspect.isroutine(function) else type(function).__call__


def _make_struct(name: str, fields: list[_Field]) -> type[msgspec.Struct]:
    try:
        return msgspec.defstruct(
            "Arguments",
            [field.definition for field in fields],
            kw_only=True,
            forbid_unknown_fields=True,
            module=__name__,
        )
    except (TypeError, ValueError) as exc:
        raise InvalidRequest(f"tool {name!r}: its parameters are not supported: {exc}", param="tools") from exc


def _make_schema(arguments: type[msgspec.Struct], name: str, fields: list[_Field]) -> dict[str, Any]:
    """Return the JSON Schema of the arguments. Types that it refers to are in its `$defs`."""
    try:
        (top,), parts = msgspec.json.schema_components([arguments], ref_template="#/$defs/{name}")
    except (TypeError, RecursionError) as exc:
        raise InvalidRequest(
            f"tool {name!r}: the type of a parameter cannot be expressed in JSON: {exc}", param="tools"
        ) from exc
    schema = {key: value for key, value in parts.pop(top["$ref"].rpartition("/")[2]).items() if key != "title"}
    for field in fields:
        if (default := _encode_default(field.default)) is not UNSET:
            schema["properties"][field.name]["default"] = default
    return schema | ({"$defs": parts} if parts else {})


def _encode_default(default: Any) -> Any:
    """Return a parameter's default value as JSON data. Return UNSET if there is no default, or if the default is None or not JSON."""
    if default is inspect.Parameter.empty or default is None:
        return UNSET
    try:
        return msgspec.json.decode(msgspec.json.encode(default))
    except (TypeError, ValueError, OverflowError, RecursionError):
        return UNSET


# -- the docstring ---------------------------------------------------------------


def _get_first_paragraph(text: str) -> str:
    return " ".join(text.split("\n\n", 1)[0].split())


def _parse_args_section(text: str) -> dict[str, str]:
    """Return the texts in the section `Args:` of a docstring, by parameter name."""
    texts: dict[str, str] = {}
    inside, margin, name = False, "", ""
    for line in text.splitlines():
        if not inside or (line.strip() and not line[0].isspace()):
            inside, margin, name = bool(_SECTION.match(line)), "", ""
            continue
        found = _ARGUMENT.match(line)
        if found and (not margin or found[1] == margin):
            margin, name = found[1], found[2]
            texts[name] = found[3].strip()
        elif name:
            texts[name] = f"{texts[name]} {line.strip()}".strip()
    return texts


def _get_annotation_text(hint: Any) -> str:
    """Return the first string in the metadata of `Annotated[…]`, or an empty string if there is none."""
    if get_origin(hint) is not Annotated:
        return ""
    return next((text for text in get_args(hint)[1:] if isinstance(text, str)), "")
