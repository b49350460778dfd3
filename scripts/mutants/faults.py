"""Faults of a file: each changes one expression or statement inside a function.

Some code gets no faults, because no test should depend on it or a change would be no fault: annotations, docstrings, decorators,
`assert`, the arguments of a `raise` (the `raise` itself gets one), the fixed text of an f-string, `__repr__` and `__str__`, logger
calls, and code outside of functions, such as tables.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any, Final, NamedTuple

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef

COMPARISONS: Final[dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
"""Each comparison is shifted by one and inverted."""
ARITHMETIC: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
SILENT: Final = ("__repr__", "__str__")
LOGGERS: Final = ("log", "_log", "logger", "_logger")
SHOWN: Final = 160
"""Most characters of a displayed line."""
SEEN: Final = "_mutants_seen"
NO_CODE: Final = ("annotation", "returns", "decorator_list", "type_params", "format_spec", "ctx")
"""Fields of nodes that do not affect behaviour."""


class FunctionKey(NamedTuple):
    """Identity of a function that is not nested in another one, as in its code object."""

    file: str
    line: int
    name: str


class Place(NamedTuple):
    """Position of a node: a field of its parent, and the index if the field is a list."""

    parent: ast.AST
    field: str
    at: int | None

    def replace(self, node: ast.AST) -> Any:
        """Put another node in this position; return the previous one."""
        if self.at is None:
            old = getattr(self.parent, self.field)
            setattr(self.parent, self.field, node)
            return old
        nodes = getattr(self.parent, self.field)
        old, nodes[self.at] = nodes[self.at], node
        return old


class Fault(NamedTuple):
    """A change of one node."""

    key: FunctionKey
    line: int
    kind: str
    place: Place
    node: ast.AST
    statement: ast.stmt
    """The statement that contains the node, or that is removed."""
    reached: int
    """Line of the statement that a test must run to reach the fault."""


class Replacement(NamedTuple):
    """Replacement of a function's code or of a parameter's default."""

    code: CodeType | None
    default: tuple[str, Any] | None


class Source:
    """A source file and its faults."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tree = ast.parse(path.read_text(encoding="utf-8"))
        self._codes = _compile_functions(self._tree, path)
        found = _find_functions(self._tree, str(path))
        self.faults = [fault for key, node in found for fault in _find_faults(key, node)]

    def instrument(self) -> dict[FunctionKey, CodeType]:
        """Return the functions with each statement preceded by a call of the builtin `SEEN` with its line."""
        tree = ast.parse(self.path.read_text(encoding="utf-8"))
        for _, function in _find_functions(tree, str(self.path)):
            for node in [*ast.walk(function)]:
                for field in ("body", "orelse", "finalbody"):
                    if isinstance(statements := getattr(node, field, None), list):
                        reports = (_make_line_report(str(self.path), one) for one in statements)
                        setattr(node, field, [one for pair in zip(reports, statements, strict=True) for one in pair])
        return _compile_functions(tree, self.path)

    def compile_fault(self, fault: Fault) -> Replacement | None:
        """Return the function with the fault, or None if its code would be the same or could not replace the original."""
        if fault.kind == "default":
            assert isinstance(fault.node, ast.Constant)
            return Replacement(None, (_name_parameter(fault.place), fault.node.value))
        old = fault.place.replace(fault.node)
        try:
            code = _compile_functions(self._tree, self.path)[fault.key]
        except SyntaxError:  # `break` where only `continue` is allowed
            return None
        finally:
            fault.place.replace(old)
        before = self._codes[fault.key]
        return Replacement(code, None) if code != before and code.co_freevars == before.co_freevars else None

    def format_diff(self, fault: Fault) -> str:
        """Format the lines that differ, without and with the fault."""
        before = ast.unparse(fault.statement).splitlines()
        old = fault.place.replace(fault.node)
        try:
            after = ast.unparse(fault.node if old is fault.statement else fault.statement).splitlines()
        finally:
            fault.place.replace(old)
        if old is fault.statement:
            return f"- {_shorten(' '.join(before), 0)}\n+ {_shorten(after[0], 0)}"
        one, other = next(pair for pair in zip(before, after, strict=False) if pair[0] != pair[1])
        same = next(at for at, pair in enumerate(zip(one, f"{other} ", strict=False)) if pair[0] != pair[1])
        return f"- {_shorten(one, same)}\n+ {_shorten(other, same)}"


def _shorten(line: str, at: int) -> str:
    """Return the part of a long line around a position."""
    first = max(at - SHOWN // 2, 0)
    return line.strip() if len(line) <= SHOWN else f"… {line[first : first + SHOWN].strip()} …"


def _make_line_report(file: str, statement: ast.stmt) -> ast.stmt:
    call = ast.Call(ast.Name(SEEN, ast.Load()), [ast.Constant(file), ast.Constant(statement.lineno)], [])
    return ast.fix_missing_locations(ast.copy_location(ast.Expr(call), statement))


def _compile_functions(tree: ast.Module, path: Path) -> dict[FunctionKey, CodeType]:
    code = compile(tree, str(path), "exec", dont_inherit=True)
    return {FunctionKey(one.co_filename, one.co_firstlineno, one.co_name): one for one in _find_codes(code)}


def _find_codes(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of functions that are not nested in other functions."""
    for one in code.co_consts:
        if isinstance(one, CodeType):
            if one.co_flags & 0x2:  # CO_NEWLOCALS: a function; the body of a class has none
                yield one
            else:
                yield from _find_codes(one)


def _find_functions(node: ast.AST, file: str) -> Iterator[tuple[FunctionKey, FunctionNode]]:
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, FunctionNode):
            yield from _find_functions(child, file)
        elif child.name not in SILENT:
            line = min([child.lineno, *(one.lineno for one in child.decorator_list)])
            yield FunctionKey(file, line, child.name), child


def _name_parameter(place: Place) -> str:
    arguments, index = place.parent, place.at
    assert isinstance(arguments, ast.arguments)
    assert index is not None
    if place.field == "kw_defaults":
        return arguments.kwonlyargs[index].arg
    positional = [*arguments.posonlyargs, *arguments.args]
    return positional[len(positional) - len(arguments.defaults) + index].arg


def _find_faults(key: FunctionKey, function: FunctionNode) -> Iterator[Fault]:
    says_nothing = all(isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant) for one in function.body)
    for field in () if says_nothing else ("defaults", "kw_defaults"):
        for index, node in enumerate(getattr(function.args, field)):
            for _, other in _mutate_expression(node):
                place = Place(function.args, field, index)
                if isinstance(node, ast.Constant):  # other defaults are evaluated when the function is created
                    yield Fault(key, node.lineno, "default", place, other, function, function.body[0].lineno)
    for index, statement in enumerate(function.body):
        yield from _find_faults_within(key, statement, Place(function, "body", index), statement)


def _find_faults_within(key: FunctionKey, node: ast.AST, place: Place, statement: ast.stmt) -> Iterator[Fault]:
    """Yield the faults of a node and of the nodes in it."""
    if _is_left_out(node):
        return
    if isinstance(node, ast.stmt):
        statement = node
    line = getattr(node, "lineno", statement.lineno)
    for kind, other in [*_mutate_statement(node), *_mutate_expression(node)]:
        yield Fault(key, line, kind, place, ast.copy_location(other, statement), statement, statement.lineno)
    for kind, field, index, operator in _mutate_operators(node):
        yield Fault(key, line, kind, Place(node, field, index), operator, statement, statement.lineno)
    if isinstance(node, ast.Raise):
        return
    for field, value in ast.iter_fields(node):
        if field in NO_CODE:
            continue
        for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(child, ast.AST) and not (isinstance(node, ast.JoinedStr) and isinstance(child, ast.Constant)):
                yield from _find_faults_within(key, child, Place(node, field, index), statement)


def _is_left_out(node: ast.AST) -> bool:
    match node:
        case ast.Assert() | ast.Expr(value=ast.Constant()):
            return True
        case ast.Call(func=ast.Name(id="cast")) | ast.FunctionDef(name="__repr__" | "__str__"):
            return True
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name)))):
            return name in LOGGERS
        case ast.BinOp(op=ast.BitOr(), right=ast.Name(id=name)):
            return name[:1].isupper()  # a union of types
    return False


def _mutate_statement(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Yield replacements for a statement."""
    match node:
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.AugAssign() | ast.Delete() | ast.Raise():
            yield "removed", ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript(), *_]):
            yield "removed", ast.Pass()
        case ast.Return(value=ast.expr() as value) if not (
            isinstance(value, ast.Constant) and value.value in {None, False}
        ):
            yield "returned", ast.Return(ast.copy_location(ast.Constant(None), value))
        case ast.Break():
            yield "loop", ast.Continue()
        case ast.Continue():
            yield "loop", ast.Break()


def _mutate_expression(node: ast.AST | None) -> Iterator[tuple[str, ast.AST]]:
    """Yield replacements for an expression."""
    match node:
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            yield "sign", node.operand
        case ast.Constant(value=bool() as value):
            yield "constant", ast.Constant(not value)
        case ast.Constant(value=int() | float() as number):
            yield "constant", ast.Constant(number + 1)
        case ast.Constant(value=str() as text):
            yield "constant", ast.Constant(text + "~")
        case ast.Constant(value=bytes() as octets):
            yield "constant", ast.Constant(octets + b"~")


def _mutate_operators(node: ast.AST) -> Iterator[tuple[str, str, int | None, ast.AST]]:
    """Yield replacements for fields of a node: other operators and negated conditions."""
    match node:
        case ast.Compare():
            for index, operator in enumerate(node.ops):
                yield from (("compare", "ops", index, other()) for other in COMPARISONS[type(operator)])
        case ast.BoolOp():
            yield "boolean", "op", None, ast.Or() if isinstance(node.op, ast.And) else ast.And()
        case ast.BinOp() | ast.AugAssign() if type(node.op) in ARITHMETIC and not _joins_texts(node):
            yield "arithmetic", "op", None, ARITHMETIC[type(node.op)]()
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test) if _is_simple_condition(test):
            yield "condition", "test", None, _negate(test)
        case ast.comprehension(ifs=tests):
            yield from (
                ("condition", "ifs", at, _negate(test)) for at, test in enumerate(tests) if _is_simple_condition(test)
            )


def _joins_texts(node: ast.BinOp | ast.AugAssign) -> bool:
    """Return True if the node joins texts or lists: another operator would be an error that needs no test of its own."""
    sides = [node.left, node.right] if isinstance(node, ast.BinOp) else [node.value]
    return any(
        isinstance(side, ast.JoinedStr | ast.List | ast.Tuple)
        or (isinstance(side, ast.Constant) and isinstance(side.value, str))
        for side in sides
    )


def _is_simple_condition(test: ast.expr) -> bool:
    """Return True if no other fault negates the condition."""
    return not isinstance(test, ast.Compare | ast.BoolOp | ast.UnaryOp | ast.Constant)


def _negate(test: ast.expr) -> ast.expr:
    return ast.copy_location(ast.UnaryOp(ast.copy_location(ast.Not(), test), test), test)
