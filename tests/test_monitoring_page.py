"""Dashboard, alerts and docs/monitoring.md fit each other; tests/cluster/test_page.py holds them to /metrics."""

from __future__ import annotations

import json
import re
import shutil
import subprocess

import pytest
import yaml

from tests.support.metric_names import Series
from tests.support.watching_files import (
    DASHBOARD,
    OF_GROUPS,
    PAGE,
    ROOT,
    RULES,
    alerts,
    documented_metrics,
    panels,
    runbooks,
)


def test_every_alert_has_its_paragraph_and_every_paragraph_an_alert() -> None:
    assert re.findall(r"^### (Muster\w+)$", PAGE.read_text(), re.MULTILINE) == list(alerts())
    assert runbooks() == {name: f"docs/monitoring.md#{name.lower()}" for name in alerts()}


def test_every_alert_has_a_test() -> None:
    tests = yaml.safe_load((RULES.parent / "alerts_test.yml").read_text())["tests"]
    healthy, *rest = tests
    assert {each["alertname"] for each in healthy["alert_rule_test"]} == set(alerts())
    assert [each["name"] for each in rest] == list(alerts())


def test_every_metric_is_on_the_dashboard() -> None:
    expressions = " ".join(expression for panel in panels().values() for expression in panel)
    names = {re.sub("_(bucket|sum|count)$", "", name) for name in re.findall(r"muster:\w+", expressions)}
    assert names == set(documented_metrics()) - OF_GROUPS


def test_panels_have_numbers_of_their_own_and_do_not_overlap() -> None:
    found = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in found}) == len(found)
    cells = [
        (panel["gridPos"]["x"] + x, panel["gridPos"]["y"] + y)
        for panel in found
        for x in range(panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert all(0 <= x < 24 for x, _ in cells)
    assert all(panel["description"] for panel in found if panel["type"] != "row")


def test_a_wrong_name_or_label_is_found() -> None:
    series = Series.of('# TYPE muster:rank_state gauge\nmuster:rank_state{dp_rank="0",state="ready"} 1\n')
    assert series.complaints('max by (job, dp_rank) (muster:rank_state{state="ready"}) == 1') == []
    assert series.complaints("sum(rate(muster:nothing_total[5m]))") == ["no metric muster:nothing_total"]
    assert series.complaints('muster:rank_state{rank="0"}') == ["muster:rank_state has no label rank"]
    assert series.complaints('muster:rank_state{state="dead"}') == ["muster:rank_state is never in state dead"]
    assert series.complaints("sum by (host) (muster:rank_state)") == ["muster:rank_state has no label host to group by"]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool: apt-get install prometheus")
def test_promtool_agrees() -> None:
    for command in (
        ("check", "rules", "deploy/prometheus/alerts.yml"),
        ("check", "config", "deploy/prometheus/prometheus.yml"),
        ("test", "rules", "deploy/prometheus/alerts_test.yml"),
    ):
        done = subprocess.run(["promtool", *command], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
