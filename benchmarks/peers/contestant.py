"""A server in a race."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Contestant:
    """How one server is run. `{port}` in `command` becomes a free port, a different one at each place.

    `family` groups settings of one product; of a peer's settings the best one counts. `is_default` marks what a user
    gets without flags. `says`: precision and threads, for the reader of the table. `limit_s`: most time for one point;
    after a point that it ended, larger ones are not tried. `inherits_python_path`: it runs from this checkout.
    """

    key: str
    label: str
    family: str
    command: tuple[str, ...]
    says: str
    environment: Mapping[str, str] = field(default_factory=dict)
    is_default: bool = False
    start_limit_s: float = 900.0
    limit_s: float | None = None
    inherits_python_path: bool = False
