"""schemathesis over our own /openapi.json, against a running deployment of two ranks."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cluster.conftest import Launch

pytestmark = pytest.mark.cluster

_SECONDS = 30
# What is left out: the schema cannot say all that is refused (ids beyond the vocabulary, fields that exclude each
# other), and any content type is read as JSON on purpose.
_CHECKS = (
    *("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_headers_conformance"),
    *("response_schema_conformance", "ignored_auth", "unsupported_method", "allow_header_conformance"),
)


def closed(document: dict[str, Any]) -> dict[str, Any]:
    """The document with answers that may have no field beyond the declared ones."""
    components = document["components"]["schemas"]
    for path in document["paths"].values():
        for operation in path.values():
            _close(operation["responses"], components, set())
    return document


def _close(part: object, components: dict[str, Any], seen: set[str]) -> None:
    for name in set(re.findall(r"#/components/schemas/(\w+)", json.dumps(part))) - seen:
        components[name]["additionalProperties"] = False
        _close(components[name], components, seen | {name})


def test_no_status_and_no_answer_that_the_document_does_not_tell_of(launch: Launch, tmp_path: Path) -> None:
    cluster = launch("-dp", "2", "--max-model-len", "64", "--api-key", "key", "--request-timeout", "10")
    cluster.wait_until_ready()
    document = tmp_path / "openapi.json"
    document.write_text(json.dumps(closed(httpx.get(f"{cluster.url}/openapi.json").json())))
    command = [sys.executable, "-m", "schemathesis.cli", "run", str(document), "--url", cluster.url]
    command += ["-H", "Authorization: Bearer key", "--checks", ",".join(_CHECKS), "--phases", "coverage,fuzzing"]
    command += ["--max-time", str(_SECONDS), "--max-examples", "60", "--request-timeout", "30", "--seed", "2"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert re.search(r"\d{3,} generated", done.stdout), done.stdout[-2000:]
    metrics = httpx.get(f"{cluster.url}/metrics", headers={"x-api-key": "key"}).text
    assert not re.search(r'http_requests_total\{method="POST",[^}]*status="5', metrics)
    for route in ("chat/completions", "completions", "tokenize", "detokenize"):
        answered = re.search(rf'http_requests_total\{{method="POST",route="/v1/{route}",status="200"\}} (\d+)', metrics)
        assert answered, f"no generated request of {route} was good"
    assert cluster.stop() == 0
