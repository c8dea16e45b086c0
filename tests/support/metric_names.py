"""Which series a PromQL expression reads, and which a gateway has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import promql_parser
from prometheus_client.parser import text_string_to_metric_families

# Prometheus adds these to what it scrapes, and makes `up` itself.
SCRAPED = {"job", "instance"}


@dataclass
class Series:
    """The labels of every metric of a scrape, with the values seen."""

    labels: dict[str, dict[str, set[str]]] = field(default_factory=dict)

    @classmethod
    def of(cls, text: str) -> Series:
        found = cls()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels = found.labels.setdefault(sample.name, {})
                for name, value in sample.labels.items():
                    labels.setdefault(name, set()).add(value)
        return found

    def complaints(self, expression: str) -> list[str]:
        """What of the expression this scrape does not have."""
        return [*self._selected(expression), *self._grouped(expression)]

    def _selected(self, expression: str) -> Iterator[str]:
        for selector in selectors(promql_parser.parse(expression)):
            known = self.labels.get(selector.name)
            if selector.name == "up":
                continue
            if known is None:
                yield f"no metric {selector.name}"
                continue
            for matcher in selector.matchers.matchers:
                if matcher.name not in known and matcher.name not in SCRAPED:
                    yield f"{selector.name} has no label {matcher.name}"
                elif matcher.name == "state" and not any(re.fullmatch(matcher.value, each) for each in known["state"]):
                    yield f"{selector.name} is never in state {matcher.value}"

    def _grouped(self, expression: str) -> Iterator[str]:
        """Labels that are grouped or joined by exist on every metric below."""
        for node in nodes(promql_parser.parse(expression)):
            modifier = getattr(node, "modifier", None)
            grouped = getattr(modifier, "labels", None) or getattr(getattr(modifier, "matching", None), "labels", None)
            for label in set(grouped or ()) - SCRAPED:
                for selector in selectors(node):
                    if label not in self.labels.get(selector.name, {}):
                        yield f"{selector.name} has no label {label} to group by"


def nodes(node: Any) -> Iterator[Any]:
    """A node and everything below it."""
    yield node
    below = [getattr(node, name, None) for name in ("lhs", "rhs", "expr", "param", "vector_selector")]
    for child in [*below, *getattr(node, "args", [])]:
        if child is not None and not isinstance(child, (str, int, float)):
            yield from nodes(child)


def selectors(node: Any) -> Iterator[Any]:
    return (each for each in nodes(node) if isinstance(each, promql_parser.VectorSelector))
