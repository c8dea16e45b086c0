"""Responses that are stored: continued, looked at, deleted, and their input items."""

from __future__ import annotations

from dataclasses import replace

import httpx

from tests.gateway.http.responding import (
    CLOCK,
    PATH,
    TWO_CALLS,
    WEATHER,
    ask,
    named_events,
    prompt_of,
)
from tests.support.rest_api import RestApi
from tests.support.saying import api_saying


async def test_instructions_come_first_and_are_not_kept(client: httpx.AsyncClient, api: RestApi) -> None:
    first = await ask(client, input="hi", instructions="Be brief.")
    assert first["instructions"] == "Be brief."
    assert api.generator.requests[0].prompt_token_ids == prompt_of(("system", "Be brief."), ("user", "hi"))
    await ask(client, input="more", previous_response_id=first["id"])
    said = first["output"][0]["content"][0]["text"]
    assert api.generator.requests[1].prompt_token_ids == prompt_of(
        ("user", "hi"), ("assistant", said), ("user", "more")
    )


async def test_a_chain_of_responses(client: httpx.AsyncClient, api: RestApi) -> None:
    turns: list[tuple[str, str]] = []
    previous = None
    for number in range(4):
        body = await ask(client, input=f"turn {number}", previous_response_id=previous)
        turns.append(("user", f"turn {number}"))
        assert api.generator.requests[-1].prompt_token_ids == prompt_of(*turns)
        assert body["previous_response_id"] == previous
        turns.append(("assistant", body["output"][0]["content"][0]["text"]))
        previous = body["id"]
    branch = await ask(client, input="again", previous_response_id=previous)
    assert branch["id"] != previous


async def test_a_streamed_response_can_be_continued_at_once(api: RestApi) -> None:
    async with api.client() as client:
        response = await client.post(PATH, json={"input": "hi", "stream": True})
        final = named_events(response.content)[-1]["response"]
        await ask(client, input="more", previous_response_id=final["id"])
        assert (await client.get(f"{PATH}/{final['id']}")).json() == final


async def test_results_of_calls_go_back() -> None:
    """By the id of the response, by the items themselves, and by references: the model sees the same."""
    api = api_saying(TWO_CALLS)
    async with api.client() as client:
        first = await ask(client, input="hi", tools=[WEATHER, CLOCK])
        calls = [item for item in first["output"] if item["type"] == "function_call"]
        results = [
            {"type": "function_call_output", "call_id": calls[0]["call_id"], "output": "sunny"},
            {
                "type": "function_call_output",
                "call_id": calls[1]["call_id"],
                "output": [{"type": "input_text", "text": "noon"}],
            },
        ]
        await ask(client, input=results, previous_response_id=first["id"], tools=[WEATHER, CLOCK])
        said = [{"role": "user", "content": "hi"}]
        thought = {"type": "reasoning", "id": "rs_1", "summary": []}
        await ask(client, input=[*said, thought, *first["output"], *results], tools=[WEATHER, CLOCK])
        references = [{"type": "item_reference", "id": item["id"]} for item in first["output"]]
        await ask(client, input=[*said, *references, *results], tools=[WEATHER, CLOCK])
    prompts = [request.prompt_token_ids for request in api.generator.requests]
    assert prompts[1] == prompts[2] == prompts[3]
    assert len(prompts[1]) > len(prompts[0])


async def test_a_finished_response_is_there_until_it_is_deleted(client: httpx.AsyncClient) -> None:
    body = await ask(client, input="hi", metadata={"a": "b"}, store=True)
    url = f"{PATH}/{body['id']}"
    assert (await client.get(url)).json() == body
    cancelled = await client.post(f"{url}/cancel")
    assert cancelled.status_code == 400
    streamed = await client.get(url, params={"stream": "true"})
    assert streamed.json()["error"]["param"] == "stream"
    gone = await client.delete(url)
    assert gone.json() == {"id": body["id"], "object": "response", "deleted": True}
    for response in (
        await client.get(url),
        await client.delete(url),
        await client.get(f"{url}/input_items"),
        await client.post(f"{url}/cancel"),
    ):
        assert response.status_code == 404
        assert response.json()["error"]["code"] == "response_not_found"


async def test_what_is_not_stored_cannot_be_continued(client: httpx.AsyncClient, api: RestApi) -> None:
    body = await ask(client, input="hi", store=False)
    assert body["store"] is False
    response = await client.post(PATH, json={"input": "more", "previous_response_id": body["id"]})
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["code"], error["param"]) == ("previous_response_not_found", "previous_response_id")
    assert len(api.generator.requests) == 1


async def test_without_a_store_nothing_is_kept(api: RestApi) -> None:
    api.settings = replace(api.settings, response_store_bytes=0)
    async with api.client() as client:
        body = await ask(client, input="hi", store=True)
        assert body["store"] is False
        assert (await client.get(f"{PATH}/{body['id']}")).status_code == 404


async def test_input_items_by_pages(client: httpx.AsyncClient) -> None:
    first = await ask(client, input=[{"role": "user", "content": f"{number}"} for number in range(3)])
    second = await ask(client, input="last", previous_response_id=first["id"])
    url = f"{PATH}/{second['id']}/input_items"
    everything = (await client.get(url, params={"order": "asc"})).json()
    assert [item["role"] for item in everything["data"]] == ["user"] * 3 + ["assistant", "user"]
    ids = [item["id"] for item in everything["data"]]
    assert len(set(ids)) == 5
    assert everything["has_more"] is False
    assert (everything["first_id"], everything["last_id"]) == (ids[0], ids[-1])
    newest = (await client.get(url, params={"limit": "2"})).json()
    assert [item["id"] for item in newest["data"]] == ids[:-3:-1]
    assert newest["has_more"] is True
    rest = (await client.get(url, params={"after": newest["last_id"], "limit": "100"})).json()
    assert [item["id"] for item in rest["data"]] == ids[-3::-1]
    for wrong in ({"limit": "0"}, {"limit": "x"}, {"limit": "101"}, {"order": "up"}, {"after": "msg_x"}):
        response = await client.get(url, params=wrong)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == next(iter(wrong))
