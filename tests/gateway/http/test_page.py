"""The page's files and headers, and GET /deployment; what the page does is in tests/browser."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from importlib.resources import files

import httpx
import pytest

from tests.support.rest_api import RestApi
from tests.support.scripted_deployment import sample


def asset_paths(index: str) -> list[str]:
    return re.findall(r'(?:href|src)="(page/[^"]+)"', index)


async def test_the_page_and_its_files(client: httpx.AsyncClient) -> None:
    index = await client.get("/")
    assert index.status_code == 200
    assert index.headers["content-type"] == "text/html; charset=utf-8"
    assert "{{" not in index.text
    paths = asset_paths(index.text)
    assert len(paths) >= 7
    for path in paths:
        asset = await client.get(f"/{path}")
        assert asset.status_code == 200
        assert "immutable" in asset.headers["cache-control"]
        assert asset.headers["x-content-type-options"] == "nosniff"
        kinds = {"js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8", "svg": "image/svg+xml"}
        assert asset.headers["content-type"] == kinds[path.rpartition(".")[2]]


async def test_every_module_that_is_imported_is_there(client: httpx.AsyncClient) -> None:
    folder = asset_paths((await client.get("/")).text)[0].split("/")[1]
    seen: set[str] = set()
    left = {"app.js"}
    while left - seen:
        name = (left - seen).pop()
        seen.add(name)
        source = await client.get(f"/page/{folder}/{name}")
        assert source.status_code == 200, name
        if not name.startswith("vendor/"):
            left |= set(re.findall(r'(?:from|import\() ?"\./([\w./]+)"', source.text))
    assert {"chat.js", "deployment.js", "vendor/marked.esm.js", "vendor/uPlot.esm.js"} <= seen


async def test_the_policy_leaves_no_way_in(client: httpx.AsyncClient) -> None:
    index = await client.get("/")
    policy = dict(part.strip().partition(" ")[::2] for part in index.headers["content-security-policy"].split(";"))
    assert "unsafe" not in index.headers["content-security-policy"]
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert index.headers["referrer-policy"] == "no-referrer"
    assert index.headers["x-frame-options"] == "DENY"
    assert not re.search(r"<script(?![^>]*\ssrc=)|\sstyle=|\son\w+=|<style", index.text)


async def test_what_a_browser_has_is_not_sent_again(client: httpx.AsyncClient) -> None:
    index = await client.get("/")
    for path in ("/", f"/{asset_paths(index.text)[1]}"):
        first = await client.get(path)
        again = await client.get(path, headers={"if-none-match": first.headers["etag"]})
        assert again.status_code == 304
        assert again.content == b""
        plain = await client.get(path, headers={"accept-encoding": "identity"})
        assert first.headers["content-encoding"] == "gzip"
        assert "content-encoding" not in plain.headers
        assert plain.content == first.content


async def test_only_its_files_are_served(client: httpx.AsyncClient) -> None:
    folder = asset_paths((await client.get("/")).text)[0].split("/")[1]
    for path in (f"/page/{folder}/../index.html", f"/page/{folder}/index.html", f"/page/{folder}/", "/page/old/app.js"):
        assert (await client.get(path)).status_code == 404, path
    for path in (f"/page/{folder}/%2e%2e/docs.html", f"/page/{folder}/..%2fdocs.html", f"/page/{folder}/vendor"):
        assert (await client.get(path)).status_code == 404, path


async def test_the_page_is_open_and_its_data_are_not(api: RestApi) -> None:
    api.settings = replace(api.settings, api_keys=("k",))
    async with api.client() as client:
        index = await client.get("/")
        assert index.status_code == 200
        for path in asset_paths(index.text):
            assert (await client.get(f"/{path}")).status_code == 200
        assert (await client.get("/deployment")).status_code == 401
        assert (await client.get("/page/../deployment")).status_code in (401, 404)
        assert (await client.get("/deployment", headers={"x-api-key": "k"})).status_code == 200


async def test_without_the_page(api: RestApi) -> None:
    api.settings = replace(api.settings, page=False, api_keys=("k",))
    async with api.client() as client:
        assert (await client.get("/")).status_code == 401
        assert (await client.get("/page/x/app.js")).status_code == 401
        assert (await client.get("/", headers={"x-api-key": "k"})).status_code == 404
        assert (await client.get("/deployment", headers={"x-api-key": "k"})).status_code == 200


async def test_below_a_prefix(api: RestApi) -> None:
    api.settings = replace(api.settings, root_path='/llm"<')
    async with api.client() as client:
        index = (await client.get("/")).text
        assert '<base href="/llm&quot;&lt;/">' in index
    api.settings = replace(api.settings, root_path="/llm", api_keys=("k",))
    async with api.client() as client:
        index = (await client.get("/llm/")).text
        assert '<base href="/llm/">' in index
        assert (await client.get(f"/llm/{asset_paths(index)[0]}")).status_code == 200


async def test_the_deployment(api: RestApi, client: httpx.AsyncClient) -> None:
    body = (await client.get("/deployment")).json()
    assert (body["num_ready"], body["num_ranks"], body["status"]) == (2, 2, "ready")
    assert body["model"]["name"] == "tiny"
    assert [rank["rank"] for rank in body["ranks"]] == [0, 1]
    assert body["history"]["at"] == [1000.0, 1001.0, 1002.0, 1003.0, 1004.0]
    assert body["history"]["total"]["generated_tokens_per_s"] == [5.0, 15.0, 25.0, 35.0, 45.0]
    assert body["history"]["ranks"]["0"]["generated_tokens_per_s"] == [0.0, 10.0, 20.0, 30.0, 40.0]


async def test_only_news_of_the_deployment(api: RestApi, client: httpx.AsyncClient) -> None:
    api.deployment.history.append(sample(1005.0, {0: 1.0}))
    history = (await client.get("/deployment", params={"history_after": 1003})).json()["history"]
    assert history["at"] == [1004.0, 1005.0]
    assert history["ranks"]["1"]["running"] == [1, None]


@pytest.mark.parametrize("text", ["soon", "", "nan", "inf", "1e999"])
async def test_a_time_that_is_none(client: httpx.AsyncClient, text: str) -> None:
    response = await client.get("/deployment", params={"history_after": text})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "history_after"


async def test_a_deployment_that_loads_has_no_model(api: RestApi) -> None:
    api.cluster.ready = api.cluster.loaded = False
    async with api.client() as client:
        body = (await client.get("/deployment")).json()
    assert (body["model"], body["status"]) == (None, "loading")


def test_vendored_files_are_the_published_ones() -> None:
    folder = files("gateway.web").joinpath("page/vendor")
    table = folder.joinpath("README.md").read_text()
    listed = dict(re.findall(r"^\| `([^`]+)` .*\| ([0-9a-f]{64}) \|$", table, re.MULTILINE))
    found = {entry.name for entry in folder.iterdir() if entry.name.endswith((".js", ".css"))}
    assert set(listed) == found
    for name, digest in listed.items():
        assert hashlib.sha256(folder.joinpath(name).read_bytes()).hexdigest() == digest
    for licence in set(re.findall(r"`([\w.]+\.LICENSE)`", table)):
        assert folder.joinpath(licence).is_file()
