"""The dashboard, the alert rules and the page about them, as values."""

from __future__ import annotations

import json
import re
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "deploy" / "prometheus" / "alerts.yml"
DASHBOARD = ROOT / "deploy" / "grafana" / "muster.json"
PAGE = ROOT / "docs" / "monitoring.md"


def alerts() -> dict[str, str]:
    """The expression of each alert."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule["expr"] for group in groups for rule in group["rules"]}


def runbooks() -> dict[str, str]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule["annotations"]["runbook_url"] for group in groups for rule in group["rules"]}


def panels() -> dict[str, list[str]]:
    """The expressions of each panel, with Grafana's variables replaced."""
    found: dict[str, list[str]] = {}
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        targets = panel.get("targets", [])
        found[panel["title"]] = [
            target["expr"].replace("$__rate_interval", "5m").replace("$job", "muster") for target in targets
        ]
    return found


# Of mixtures of experts alone: a dense deployment has their names and no samples, and the dashboard leaves them out.
OF_GROUPS = {"muster:group_steps_total", "muster:dummy_steps_total", "muster:exchanged_bytes_total"}


def documented_metrics() -> dict[str, set[str]]:
    """The labels of each metric in the table of docs/monitoring.md."""
    row = r"^\| `(muster:\w+)` \| (?:gauge|counter|histogram) \|([^|]*)\|"
    rows = re.findall(row, PAGE.read_text(), re.MULTILINE)
    return {name: set(re.findall(r"`(\w+)`", labels)) for name, labels in rows}
