"""Check PromQL queries against the series of a server's ``/metrics``."""

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import promql_parser as promql
from prometheus_client.parser import text_string_to_metric_families

#: Labels that Prometheus adds to scraped series.
TARGET_LABELS = frozenset({"job", "instance"})
_OF_COUNTERS = frozenset({"rate", "increase", "irate"})


@dataclass(frozen=True)
class Series:
    """All series of one sample name.

    Attributes:
        counts: whether it is monotonic: part of a counter or a histogram.
    """

    counts: bool
    labels: list[dict[str, str]]


def exposed(text: str) -> dict[str, Series]:
    """Return the series of an exposition by sample name."""
    found: dict[str, Series] = defaultdict(lambda: Series(True, []))
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name not in found:
                found[sample.name] = Series(family.type in {"counter", "histogram"}, [])
            found[sample.name].labels.append(sample.labels)
    return dict(found)


def problems(query: str, series: dict[str, Series]) -> list[str]:
    """Return the faults of a query; empty if it parses and all its selectors match."""
    try:
        expression = promql.parse(query)
    except ValueError as error:
        return [str(error)]
    return [problem for node in _nodes(expression) for problem in _of_node(node, series)]


def selectors(query: str) -> Iterator[Any]:
    """Return every selector of a query that parses."""
    return (node for node in _nodes(promql.parse(query)) if isinstance(node, promql.VectorSelector))


def _nodes(expression: Any) -> list[Any]:
    found: list[Any] = []
    promql.walk(expression, found.append)
    return found


def _of_node(node: Any, series: dict[str, Series]) -> Iterator[str]:
    match node:
        case promql.VectorSelector():
            yield from _of_selector(node, series)
        case promql.AggregateExpr(modifier=modifier) if modifier:
            yield from _of_labels(modifier.labels, node, series)
        case promql.Call(func=func) if func.name in _OF_COUNTERS:
            for name in _names(node):
                if name in series and not series[name].counts:
                    yield f"{func.name} of {name}, which is no counter"
        case promql.Call(func=func) if func.name == "histogram_quantile":
            if not all(name.endswith("_bucket") for name in _names(node)) or "le" not in _grouped(node):
                yield f"{func.name} needs buckets by le: {node.prettify()}"


def _of_selector(selector: Any, series: dict[str, Series]) -> Iterator[str]:
    if selector.name not in series:
        yield f"there is no {selector.name}"
        return
    wanted = [matcher for matcher in selector.matchers.matchers if matcher.name not in TARGET_LABELS]
    if not any(all(_matches(matcher, labels) for matcher in wanted) for labels in series[selector.name].labels):
        yield f"no series is {selector.prettify()}"


def _matches(matcher: Any, labels: dict[str, str]) -> bool:
    if matcher.name not in labels:
        return False
    found = labels[matcher.name]
    match matcher.op:
        case promql.MatchOp.Equal:
            return bool(found == matcher.value)
        case promql.MatchOp.NotEqual:
            return bool(found != matcher.value)
        case promql.MatchOp.Re:
            return re.fullmatch(matcher.value, found) is not None
        case _:
            return re.fullmatch(matcher.value, found) is None


def _of_labels(labels: list[str], node: Any, series: dict[str, Series]) -> Iterator[str]:
    for name in _names(node):
        has = TARGET_LABELS.union(*series[name].labels) if name in series else set(labels)
        for label in set(labels) - has:
            yield f"{name} has no label {label}"


def _names(node: Any) -> list[str]:
    return [inner.name for inner in _nodes(node) if isinstance(inner, promql.VectorSelector)]


def _grouped(node: Any) -> set[str]:
    groups = [inner.modifier.labels for inner in _nodes(node) if isinstance(inner, promql.AggregateExpr)]
    return {label for labels in groups for label in labels}
