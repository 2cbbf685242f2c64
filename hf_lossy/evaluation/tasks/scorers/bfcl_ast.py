"""Function calls compared as syntax trees, by the rules of the Berkeley Function-Calling Leaderboard.

Where the package ``bfcl-eval`` is installed its own checker decides. It brings dozens of API clients and pins numpy, so the
rules for Python calls are also written out here: :func:`mismatch`.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import math
import operator
import re
from collections.abc import Callable, Sequence
from typing import Any

from ....errors import LossyError
from ..base import Score
from .code import UNPARSABLE, parse

Call = dict[str, dict[str, Any]]
"""One call: the function's name, and its arguments by name."""
Truth = dict[str, dict[str, list[Any]]]
"""One right call: for each argument the values that are right; ``""`` among them says that it may be left out."""

HUGE = 10**100
"""Numbers from here on are nobody's argument; they are not computed with."""
_TYPES: dict[str, type] = {
    "string": str,
    "integer": int,
    "float": float,
    "boolean": bool,
    "array": list,
    "tuple": list,
    "dict": dict,
    "any": str,
}
_OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def score_calls(functions: Sequence[dict[str, Any]], truth: Sequence[Truth], text: str, category: str = "") -> Score:
    """Compare the calls in a text with the right ones.

    Args:
        functions: the descriptions of the functions that could be called.
        truth: the right calls; several may come in any order.
        text: what the model wrote: a Python list of calls, one call, or the same as JSON.
        category: the item's id or category, which ``bfcl-eval`` looks at.
    """
    calls = calls_in(text)
    if calls is None:
        return Score.unparsed("no call")
    wrong = (official if installed() else mismatch)(functions, calls, truth, category)
    return Score(wrong is None, True, wrong or "")


def installed() -> bool:
    """Whether ``bfcl-eval`` is there to decide."""
    return importlib.util.find_spec("bfcl_eval") is not None


def official(
    functions: Sequence[dict[str, Any]], calls: list[Call], truth: Sequence[Truth], category: str
) -> str | None:
    """What is wrong by the checker of ``bfcl-eval``, or None."""
    try:
        language = importlib.import_module("bfcl_eval.constants.enums").Language.PYTHON
        checker = importlib.import_module("bfcl_eval.eval_checker.ast_eval.ast_checker").ast_checker
    except ImportError as error:
        raise LossyError(f"bfcl-eval is installed but can't be imported ({error}): repair it, or remove it") from error
    # one of its models, which decides about dots in names only: this one keeps them
    arguments = (list(functions), calls, list(truth), language, category, "gorilla-openfunctions-v2")
    try:
        verdict = checker(*arguments)
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        TypeError,
    ) as error:  # it trips over arguments of unexpected shapes
        return f"{type(error).__name__}: {error}"
    return None if verdict["valid"] else str(verdict["error"])


def gold_calls(functions: Sequence[dict[str, Any]], truth: Sequence[Truth]) -> str:
    """The right calls as text, each argument that can't be left out with its first right value."""
    required = {function["name"]: function["parameters"].get("required", ()) for function in functions}
    texts = []
    for call in truth:
        name, allowed = next(iter(call.items()))
        given = {n: options for n, options in allowed.items() if "" not in options or n in required[name]}
        texts.append(f"{name}({', '.join(f'{n}={_first(options)!r}' for n, options in given.items())})")
    return f"[{', '.join(texts)}]"


def _first(options: Sequence[Any]) -> Any:
    """The first right value that is one; those of a dictionary's keys are lists of right ones again."""
    return _value_of(next((option for option in options if option != ""), ""))


def _value_of(value: Any) -> Any:
    if isinstance(value, list):
        return [_value_of(one) for one in value]
    return {k: _first(right) for k, right in value.items() if "" not in right} if isinstance(value, dict) else value


# --- reading -----------------------------------------------------------------------------------------------------------


def calls_in(text: str) -> list[Call] | None:
    """The calls that a text consists of, or None. A code block, or what lies between tags, counts before the rest."""
    tagged = re.findall(r"<tool_call>(.*?)(?:</tool_call>|\Z)", text, re.DOTALL)
    blocks = re.findall(r"```[ \t]*\w*[ \t]*\r?\n(.*?)(?:```|\Z)", text, re.DOTALL)
    candidates = ["\n".join(blocks)] if blocks else []
    if tagged:
        candidates = [f"[{', '.join(one.strip() for one in tagged)}]"]
    candidates.append(text)
    opened, closed = text.find("["), text.rfind("]")
    if 0 <= opened < closed:
        candidates.append(text[opened : closed + 1])
    for candidate in candidates:
        for read in (_json_calls, _python_calls):
            calls = read(candidate.strip().strip("`'").strip())
            if calls:
                return calls
    return None


def _json_calls(text: str) -> list[Call] | None:
    value = _json(text)
    calls = []
    for one in value if isinstance(value, list) else [value]:
        if not isinstance(one, dict):
            return None
        one = one["function"] if isinstance(one.get("function"), dict) else one
        name = one.get("name", one.get("function"))
        arguments = one.get("arguments", one.get("parameters"))
        if isinstance(arguments, str):
            arguments = _json(arguments)
        if not isinstance(name, str) and len(one) == 1:  # {name: arguments}
            name, arguments = next(iter(one.items()))
        if not isinstance(name, str) or not isinstance(arguments, dict):
            return None
        calls.append({name: arguments})
    return calls


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # no JSON, a number of thousands of digits; too deep
        return None


def _python_calls(text: str) -> list[Call] | None:
    try:
        body = parse(text).body
    except UNPARSABLE:
        return None
    nodes: list[ast.expr] = []
    for statement in body:  # a list of calls, or one call a line
        if not isinstance(statement, ast.Expr):
            return None
        value = statement.value
        nodes += value.elts if isinstance(value, ast.List | ast.Tuple) else [value]
    calls = [_call(node) for node in nodes]
    return [call for call in calls if call] if all(calls) else None


def _call(node: ast.expr) -> Call | None:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name | ast.Attribute):
        return None
    # arguments without a name are left out, as in bfcl-eval: a required one is then missing
    return {ast.unparse(node.func): {k.arg: _value(k.value) for k in node.keywords if k.arg}}


def _value(node: ast.expr) -> Any:
    """A literal's value; a name, a call and whatever else is no literal as text."""
    if isinstance(node, ast.Constant):
        return "..." if node.value is Ellipsis else node.value
    if isinstance(node, ast.List):
        return [_value(one) for one in node.elts]
    if isinstance(node, ast.Tuple):
        return tuple(_value(one) for one in node.elts)
    if isinstance(node, ast.Dict) and all(isinstance(key, ast.Constant) for key in node.keys):
        return {_value(k): _value(v) for k, v in zip(node.keys, node.values, strict=True) if k is not None}
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _value(node.operand)
        return -inner if isinstance(inner, int | float) else ast.unparse(node)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = _value(node.left), _value(node.right)
        usual = all(isinstance(one, int | float) and abs(one) < HUGE for one in (left, right))
        if usual and (right or not isinstance(node.op, ast.Div)):
            return _OPERATORS[type(node.op)](left, right)
    if isinstance(node, ast.Call) and node.keywords:
        return _call(node) or ast.unparse(node)
    return ast.unparse(node)


# --- comparing ---------------------------------------------------------------------------------------------------------


def mismatch(
    functions: Sequence[dict[str, Any]], calls: Sequence[Call], truth: Sequence[Truth], category: str = ""
) -> str | None:
    """What is wrong with the calls, or None: as many as there should be, each matching another right one, in any order."""
    if len(calls) != len(truth):
        return f"{len(calls)} calls, {len(truth)} expected"
    described = {function["name"]: function for function in functions}
    left = list(calls)
    for right in truth:
        name, allowed = next(iter(right.items()))
        reasons = [_wrong_call(described[name]["parameters"], call, name, allowed) for call in left]
        if None not in reasons:
            return f"no match for {name}: {'; '.join(map(str, reasons))}"
        del left[reasons.index(None)]
    return None


def _wrong_call(parameters: dict[str, Any], call: Call, name: str, allowed: dict[str, list[Any]]) -> str | None:
    called, arguments = next(iter(call.items()))
    if called != name:
        return f"{called} called instead"
    for required in parameters.get("required", ()):
        if required not in arguments:
            return f"{required} is missing"
    for argument, value in arguments.items():
        if argument not in parameters["properties"] or argument not in allowed:
            return f"{argument} is not expected"
        if reason := _wrong_value(parameters["properties"][argument], value, allowed[argument]):
            return f"{argument} {reason}"
    for argument, options in allowed.items():
        if argument not in arguments and "" not in options:
            return f"{argument} is missing"
    return None


def _wrong_value(described: dict[str, Any], value: Any, options: list[Any]) -> str | None:
    expected: type[Any] = _TYPES[described["type"]]
    nested = _TYPES[described["items"]["type"]] if described["type"] in ("array", "tuple") else None
    if described["type"] == "tuple" and isinstance(value, tuple):
        value = list(value)  # the answers went through JSON, which has no tuples
    if described["type"] == "float" and type(value) is int:
        value = float(value) if abs(value) < HUGE else math.inf
    answered = _type_of(options)
    if type(value) is expected:
        if nested is not None and not any(_nested_fits(value, option, nested) for option in options):
            return f"= {value!r} holds values that are not of type {nested.__name__}"
    elif type(value) is not answered:
        return f"= {value!r} is not of type {described['type']}"
    # answers of another type than described stand for variables, which are compared as they are
    right = _fits(value, options, nested) if answered in (None, expected) else value in options
    return None if right else f"= {value!r}, expected one of {options}"


def _type_of(options: Sequence[Any]) -> type | None:
    return next((type(option) for option in options if option != ""), None)


def _nested_fits(value: list[Any], option: Any, nested: type) -> bool:
    """Whether all elements have the described type, or that of the answer's elements."""
    return not isinstance(option, list) or all(type(one) in (nested, _type_of(option)) for one in value)


def _fits(value: Any, options: list[Any], nested: type | None) -> bool:
    if isinstance(value, dict):
        return any(_dict_fits(value, option) for option in options if option != "")
    if isinstance(value, list):
        same = _dict_fits if nested is dict else _same
        lists = [list(option) for option in options if isinstance(option, list | str)]  # "" allows the empty list
        return any(len(value) == len(one) and all(map(same, value, one)) for one in lists)
    return any(_same(value, option) for option in options)


def _dict_fits(value: Any, option: Any) -> bool:
    """Every key's value among its right ones, no key too many, none missing that has to be there."""
    if not isinstance(value, dict) or not isinstance(option, dict):
        return False
    return all(k in option and any(_same(v, one) for one in option[k]) for k, v in value.items()) and all(
        k in value or "" in right for k, right in option.items()
    )


def _same(value: Any, right: Any) -> bool:
    return bool(_plain(value) == _plain(right))


def _plain(value: Any) -> Any:
    """A string without case, spaces and the marks that dates and names are written with or without."""
    return re.sub(r"[ ,./\-_*^]", "", value).lower().replace("'", '"') if isinstance(value, str) else value
