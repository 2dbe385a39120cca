"""The labels of a PromQL expression's results, by its syntax tree, and what is wrong with it on the way."""

from collections.abc import Mapping
from typing import Any

import promql_parser as promql

Labels = frozenset[str]
NONE: Labels = frozenset()


def labels_of(text: str, series: Mapping[str, Labels]) -> Labels:
    """Labels that the results of an expression may have.

    Raises:
        AssertionError: It names a series or a label that there is not.
        ValueError: It is not PromQL.
    """
    return _labels(promql.parse(text), series)


def _labels(node: Any, series: Mapping[str, Labels]) -> Labels:
    match node:
        case promql.VectorSelector():
            return _selected(node, series)
        case promql.MatrixSelector():
            return _selected(node.vector_selector, series)
        case promql.AggregateExpr():
            return _aggregated(node, series)
        case promql.BinaryExpr():
            return _joined(node, series)
        case promql.Call():
            return _called(node, series)
        case promql.ParenExpr() | promql.SubqueryExpr() | promql.UnaryExpr():
            return _labels(node.expr, series)
        case promql.NumberLiteral() | promql.StringLiteral():
            return NONE
    raise AssertionError(f"{node.prettify()}: a kind of expression that no test knows")


def _selected(node: Any, series: Mapping[str, Labels]) -> Labels:
    assert node.name in series, f"{node.name}: no such series"
    for matcher in node.matchers.matchers:
        assert matcher.name in series[node.name], f"{node.name} has no label {matcher.name}"
    return series[node.name]


def _aggregated(node: Any, series: Mapping[str, Labels]) -> Labels:
    inside = _labels(node.expr, series)
    if node.modifier is None:
        kept = NONE
    else:
        named = frozenset(node.modifier.labels)
        assert node.modifier.type == promql.AggModifierType.By, (
            f"{node.prettify()}: name what is kept, with by"
        )
        assert named <= inside, f"{node.prettify()}: no label {', '.join(sorted(named - inside))}"
        kept = named
    return inside if str(node.op) in ("topk", "bottomk") else kept


def _called(node: Any, series: Mapping[str, Labels]) -> Labels:
    found = NONE.union(*(_labels(argument, series) for argument in node.args))
    if node.func.name == "histogram_quantile":
        assert "le" in found, f"{node.prettify()}: a quantile without le"
        return found - {"le"}
    return found | {node.args[1].val} if node.func.name == "label_replace" else found


def _joined(node: Any, series: Mapping[str, Labels]) -> Labels:
    left, right = _labels(node.lhs, series), _labels(node.rhs, series)
    if _scalar(node.lhs) or _scalar(node.rhs):
        return left | right
    operator, how = str(node.op), node.modifier
    if how is not None and how.matching is not None:
        on = frozenset(how.matching.labels)
        assert on <= left & right, f"{node.prettify()}: not on both sides: {', '.join(sorted(on))}"
        taken = frozenset(how.group_labels or ())
        assert taken <= right, f"{node.prettify()}: the right side has no {', '.join(sorted(taken - right))}"
        return left | taken
    if operator in ("or", "and", "unless"):
        return left | right if operator == "or" else left
    assert left == right, f"{node.prettify()}: {sorted(left)} never meets {sorted(right)}"
    return left


def _scalar(node: Any) -> bool:
    while isinstance(node, promql.ParenExpr):
        node = node.expr
    if isinstance(node, promql.BinaryExpr):
        return _scalar(node.lhs) and _scalar(node.rhs)
    return isinstance(node, promql.NumberLiteral)
