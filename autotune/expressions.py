"""The small language of `when`, `args_when`, `forbid.if` and `{...}` in arguments.

    num_steps > 0 and attention_backend in ['triton', 'fa3'] and not cuda_graph
    [1.0, 1.83, 2.43][num_steps]          num_steps + 1          128 if big else 64

Comparison, `and`/`or`/`not`/`in`, `+ - * / // %` on numbers, `a if c else b`, an index into a
list that is written out, names of parameters, and literals. Text is parsed by Python's own
parser into a tree of which only these nodes are accepted; it is never executed.

A parameter that does not apply (its `when` is false) has no value: every comparison with it is
false, `!=` and `not in` included; alone it counts as false; arithmetic with it has no value
either. Comparing the order of things that have none (text and number, null) is false as well.
"""

from __future__ import annotations

import ast
import keyword
import operator
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Final, TypeAlias, cast

from autotune.errors import InputError
from autotune.records import Value

LONGEST_TEXT = 1000
MOST_NODES = 200
DEEPEST = 40
LARGEST_NUMBER = 10**15
LITERAL_NAMES: Final = {"true": True, "false": False, "null": None}


class ExpressionError(InputError):
    """The text is not an expression of this language, or has no value for these values."""


class Inactive:
    """The type of `INACTIVE`."""

    def __repr__(self) -> str:
        return "INACTIVE"


INACTIVE: Final = Inactive()
"""What a parameter that does not apply evaluates to."""

Result: TypeAlias = Value | Inactive | list["Result"]
Evaluator: TypeAlias = Callable[[Mapping[str, Value]], Result]

_ARITHMETIC: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_ORDER: Mapping[type[ast.cmpop], Callable[[float | str, float | str], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_LEAVES = (ast.Name, ast.Constant)
_NODES = (
    *_LEAVES, ast.BoolOp, ast.UnaryOp, ast.BinOp, ast.Compare, ast.IfExp, ast.List, ast.Tuple,
    ast.Subscript,
)  # fmt: skip
_OPERATORS = (
    *_ARITHMETIC, *_ORDER, ast.Eq, ast.NotEq, ast.In, ast.NotIn, ast.And, ast.Or, ast.Not,
    ast.USub, ast.UAdd,
)  # fmt: skip


def is_parameter_name(name: str) -> bool:
    """Whether expressions can refer to a parameter of this name."""
    literal = name.lower() in LITERAL_NAMES or name == "None"
    return name.isascii() and name.isidentifier() and not keyword.iskeyword(name) and not literal


def names(text: str) -> frozenset[str]:
    """The parameters that an expression refers to; raises ExpressionError if it is not one."""
    found = {node.id for node in ast.walk(_parse(text)) if isinstance(node, ast.Name)}
    return frozenset(found - LITERAL_NAMES.keys())


def literals(text: str) -> frozenset[int | float]:
    """The numbers written in an expression: where its value may change."""
    values = (node.value for node in ast.walk(_parse(text)) if isinstance(node, ast.Constant))
    return frozenset(value for value in values if isinstance(value, int | float))


def evaluate(text: str, values: Mapping[str, Value]) -> Result:
    """The expression's value; a name that `values` lacks is a parameter that does not apply."""
    return _compiled(text)(values)


def holds(text: str, values: Mapping[str, Value]) -> bool:
    """Whether the expression is true."""
    return _truth(evaluate(text, values))


@lru_cache(maxsize=4096)
def _parse(text: str) -> ast.expr:
    if len(text) > LONGEST_TEXT:
        raise ExpressionError(f"an expression has at most {LONGEST_TEXT} characters")
    if "\\" in text:
        raise ExpressionError("an expression has no backslashes")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # Python's hints at odd spellings are errors here
            tree = ast.parse(" ".join(text.split()), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else "cannot be parsed"
        raise ExpressionError(f"`{_short(text)}` is not an expression: {reason}") from None
    _accept(tree, text)
    return tree


def _accept(tree: ast.expr, text: str) -> None:
    pending: list[tuple[ast.AST, int]] = [(tree, 1)]
    count = 0
    while pending:
        node, depth = pending.pop()
        count += 1
        if count > MOST_NODES or depth > DEEPEST:
            raise ExpressionError(f"`{_short(text)}` is too long or nested too deeply")
        _accept_node(node, text)
        children = [] if isinstance(node, _LEAVES) else ast.iter_child_nodes(node)
        pending += [(child, depth + 1) for child in children if not isinstance(child, ast.Load)]


def _accept_node(node: ast.AST, text: str) -> None:
    if not isinstance(node, _NODES + _OPERATORS):
        what = _DESCRIBED.get(type(node), type(node).__name__.lower())
        raise ExpressionError(
            f"`{_short(text)}` uses {what}; an expression has comparisons, and/or/not/in, "
            "arithmetic, lists, names of parameters and literals"
        )
    if isinstance(node, ast.Subscript) and not isinstance(node.value, ast.List | ast.Tuple):
        raise ExpressionError(f"`{_short(text)}`: only a list that is written out has an index")
    if isinstance(node, ast.Constant):
        _accept_literal(node.value, text)


_DESCRIBED: Mapping[type[ast.AST], str] = {
    ast.Call: "a call",
    ast.Attribute: "an attribute (a dot)",
    ast.Pow: "a power",
    ast.Lambda: "a lambda",
    ast.JoinedStr: "a formatted string",
    ast.Dict: "a mapping",
    ast.Is: "`is` (write ==)",
    ast.IsNot: "`is not` (write !=)",
    ast.BitAnd: "`&` (write and)",
    ast.BitOr: "`|` (write or)",
}


def _accept_literal(value: object, text: str) -> None:
    if not (value is None or isinstance(value, bool | int | float | str)):
        raise ExpressionError(f"`{_short(text)}` holds a literal that is no text or number")
    if isinstance(value, int | float) and not abs(value) <= LARGEST_NUMBER:
        raise ExpressionError(f"`{_short(text)}` holds a number that is too large")


@lru_cache(maxsize=4096)
def _compiled(text: str) -> Evaluator:
    """The expression as nested functions: a search asks for its value very often."""
    return _compile(_parse(text), text)


def _compile(node: ast.AST, text: str) -> Evaluator:
    match node:
        case ast.Constant(value=value):
            literal = cast(Value, value)  # _accept_literal saw it
            return lambda values: literal
        case ast.Name(id=name) if name in LITERAL_NAMES:
            return lambda values: LITERAL_NAMES[name]
        case ast.Name(id=name):
            return lambda values: values.get(name, INACTIVE)
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            items = [_compile(element, text) for element in elements]
            return lambda values: [item(values) for item in items]
        case ast.UnaryOp(op=ast.Not(), operand=negated):
            inner = _compile(negated, text)
            return lambda values: not _truth(inner(values))
        case ast.UnaryOp(op=op, operand=operand):
            sign, number = -1 if isinstance(op, ast.USub) else 1, _compile(operand, text)
            return lambda values: _calculated(operator.mul, sign, number(values), text)
        case ast.BoolOp() | ast.BinOp() | ast.IfExp() | ast.Subscript() | ast.Compare():
            return _compile_operation(node, text)
    raise ExpressionError(f"`{_short(text)}` cannot be evaluated")


def _compile_operation(
    node: ast.BoolOp | ast.BinOp | ast.IfExp | ast.Subscript | ast.Compare, text: str
) -> Evaluator:
    parts = [_compile(child, text) for child in ast.iter_child_nodes(node) if _is_operand(child)]
    match node:
        case ast.BoolOp(op=ast.And()):
            return lambda values: all(_truth(part(values)) for part in parts)
        case ast.BoolOp():
            return lambda values: any(_truth(part(values)) for part in parts)
        case ast.BinOp(op=op):
            apply, (first, second) = _ARITHMETIC[type(op)], parts
            return lambda values: _calculated(apply, first(values), second(values), text)
        case ast.IfExp():
            test, body, otherwise = parts
            return lambda values: (body if _truth(test(values)) else otherwise)(values)
        case ast.Subscript():
            listed, index = parts
            return lambda values: _item(listed(values), index(values), text)
        case ast.Compare(ops=[op]):
            left, right = parts
            return lambda values: _compared(op, left(values), right(values))
        case ast.Compare(ops=ops):
            return lambda values: _all_compared(ops, [part(values) for part in parts])


def _is_operand(node: ast.AST) -> bool:
    return isinstance(node, _NODES)


def _truth(value: Result) -> bool:
    return not isinstance(value, Inactive) and bool(value)


def _calculated(
    apply: Callable[[float, float], float], left: Result, right: Result, text: str
) -> Result:
    if isinstance(left, Inactive) or isinstance(right, Inactive):
        return INACTIVE
    if not (_is_number(left) and _is_number(right)):
        wrong = right if _is_number(left) else left
        raise ExpressionError(f"`{_short(text)}`: arithmetic needs numbers, not {wrong!r}")
    try:
        result = apply(left, right)  # type: ignore[arg-type]  # both are numbers
    except ZeroDivisionError:
        raise ExpressionError(f"`{_short(text)}` divides by zero") from None
    if not abs(result) <= LARGEST_NUMBER:
        raise ExpressionError(f"`{_short(text)}` gets too large")
    return result


def _item(items: Result, index: Result, text: str) -> Result:
    if isinstance(index, Inactive):
        return INACTIVE
    assert isinstance(items, list)
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < len(items):
        raise ExpressionError(
            f"`{_short(text)}`: {index!r} is no index of a list of {len(items)} (from 0)"
        )
    return items[index]


def _all_compared(ops: Sequence[ast.cmpop], sides: Sequence[Result]) -> bool:
    return all(_compared(op, sides[i], sides[i + 1]) for i, op in enumerate(ops))


def _compared(op: ast.cmpop, left: Result, right: Result) -> bool:
    if isinstance(left, Inactive) or isinstance(right, Inactive):
        return False
    if isinstance(op, ast.Eq | ast.NotEq):
        return _equal(left, right) == isinstance(op, ast.Eq)
    if isinstance(op, ast.In | ast.NotIn):
        return _contains(right, left) == isinstance(op, ast.In)
    if (_is_number(left) and _is_number(right)) or (
        isinstance(left, str) and isinstance(right, str)
    ):
        return _ORDER[type(op)](left, right)  # type: ignore[arg-type]  # checked just above
    return False


def _equal(left: Result, right: Result) -> bool:
    if isinstance(left, bool) != isinstance(right, bool):
        return False  # true is not 1
    return left == right


def _contains(container: Result, item: Result) -> bool:
    if isinstance(container, list):
        return any(_equal(item, member) for member in container)
    return isinstance(container, str) and isinstance(item, str) and item in container


def _is_number(value: Result) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 80 else text[:77] + "..."
