"""POST /v1/completions: bodies, streams, echo and scoring."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.support.rest_api import Json, RestApi, events_of
from tests.support.scripted_generator import MAX_MODEL_LEN, answer_text
from tests.support.tokenizer_files import tiny_tokenizer


def ids_of(text: str) -> list[int]:
    return tiny_tokenizer().encode(text)


async def complete(client: httpx.AsyncClient, **fields: Any) -> Json:
    response = await client.post("/v1/completions", json={"model": "tiny", "max_tokens": 100, **fields})
    assert response.status_code == 200, response.text
    body = response.json()
    assert isinstance(body, dict)
    return body


async def stream(client: httpx.AsyncClient, **fields: Any) -> list[Json]:
    body = {"model": "tiny", "max_tokens": 100, "stream": True, **fields}
    response = await client.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    return events_of(response.content)


async def test_a_completion(client: httpx.AsyncClient) -> None:
    body = await complete(client, prompt="hi")
    assert body["id"].startswith("cmpl-")
    assert body["object"] == "text_completion"
    assert body["choices"] == [
        {
            "text": answer_text(ids_of("hi"), 0),
            "index": 0,
            "finish_reason": "stop",
            "logprobs": None,
            "stop_reason": None,
        }
    ]
    assert body["usage"]["prompt_tokens"] == 2


async def test_the_default_is_16_tokens(client: httpx.AsyncClient, api: RestApi) -> None:
    """Breakage 48."""
    await client.post("/v1/completions", json={"prompt": "hi"})
    assert api.generator.requests[0].max_tokens == 16


async def test_bad_words_are_spelled_once_for_all_prompts(client: httpx.AsyncClient, api: RestApi) -> None:
    await complete(client, prompt=["hi", "ho", "he"], bad_words=["x"])
    first, *others = [request.sampling.bad_words for request in api.generator.requests]
    assert first == (tuple(ids_of("x")), tuple(ids_of(" x")))
    assert len(others) == 2
    assert all(words is first for words in others)


async def test_a_stream_ends_with_a_chunk_without_text(client: httpx.AsyncClient) -> None:
    """Breakage 2."""
    *chunks, finish = await stream(client, prompt="hi")
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == answer_text(ids_of("hi"), 0)
    assert all(chunk["choices"][0]["text"] for chunk in chunks)
    assert {chunk["choices"][0]["finish_reason"] for chunk in chunks} == {None}
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}
    assert finish["choices"] == [{"index": 0, "text": "", "logprobs": None, "finish_reason": "stop"}]


@pytest.mark.parametrize(
    ("prompt", "token_ids"),
    [
        ("hi", [ids_of("hi")]),
        (["hi", "ho"], [ids_of("hi"), ids_of("ho")]),
        (ids_of("hi"), [ids_of("hi")]),
        ([ids_of("hi"), ids_of("ho")], [ids_of("hi"), ids_of("ho")]),
        (["hi", ids_of("ho")], [ids_of("hi"), ids_of("ho")]),
    ],
    ids=["text", "texts", "ids", "lists of ids", "mixed"],
)
async def test_prompts_in_all_forms(client: httpx.AsyncClient, prompt: object, token_ids: list[list[int]]) -> None:
    """Choice j of prompt i has index i × n + j, streamed or not. Breakage 21."""
    texts = [answer_text(ids, choice) for ids in token_ids for choice in range(2)]
    body = await complete(client, prompt=prompt, n=2)
    assert [choice["index"] for choice in body["choices"]] == list(range(len(texts)))
    assert [choice["text"] for choice in body["choices"]] == texts
    assert body["usage"]["prompt_tokens"] == sum(map(len, token_ids))

    *chunks, last = await stream(client, prompt=prompt, n=2, stream_options={"include_usage": True})
    streamed = [""] * len(texts)
    finished = []
    for chunk in chunks:
        (choice,) = chunk["choices"]
        streamed[choice["index"]] += choice["text"]
        finished += [choice["index"]] if choice["finish_reason"] else []
    assert streamed == texts
    assert sorted(finished) == list(range(len(texts)))
    assert last["usage"] == body["usage"]


async def test_many_prompts_are_all_answered(client: httpx.AsyncClient, api: RestApi) -> None:
    prompts = [f"prompt {number}" for number in range(200)]
    body = await complete(client, prompt=prompts)
    assert [choice["text"] for choice in body["choices"]] == [answer_text(ids_of(prompt), 0) for prompt in prompts]
    assert api.generator.num_open == 0


async def test_special_tokens_are_parsed_in_raw_prompts_unless_told_not_to(
    client: httpx.AsyncClient, api: RestApi
) -> None:
    await complete(client, prompt="<|im_start|>")
    await complete(client, prompt="<|im_start|>", parse_special=False)
    assert api.generator.requests[0].prompt_token_ids == (1,)
    assert api.generator.requests[1].prompt_token_ids == tuple(ids_of("<|im_start|>"))


async def test_echo(client: httpx.AsyncClient) -> None:
    text = "hi 🙂" + answer_text(ids_of("hi 🙂"), 0)
    assert (await complete(client, prompt="hi 🙂", echo=True))["choices"][0]["text"] == text
    chunks = await stream(client, prompt="hi 🙂", echo=True)
    assert chunks[0]["choices"][0]["text"] == "hi 🙂"
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == text


async def test_echo_of_ids(client: httpx.AsyncClient) -> None:
    body = await complete(client, prompt=[1, *ids_of("hi"), 2], echo=True)
    assert body["choices"][0]["text"].startswith("<|im_start|>hi<|im_end|>hello")


async def test_a_prompt_is_scored(client: httpx.AsyncClient, api: RestApi) -> None:
    """What evaluation tools do: echo, no new tokens, logprobs of the prompt. Breakage 42."""
    body = await complete(client, prompt="h🙂!", echo=True, max_tokens=0, logprobs=1)
    (choice,) = body["choices"]
    assert api.generator.requests[0].max_tokens == 0
    assert choice["text"] == "h🙂!"
    assert choice["finish_reason"] == "length"
    logprobs = choice["logprobs"]
    assert logprobs["tokens"] == ["h", *["\ufffd"] * 4, "!"]
    assert logprobs["token_logprobs"] == [None, *[-0.5] * 5]
    assert logprobs["text_offset"] == [0, 1, 1, 1, 1, 2]
    assert logprobs["top_logprobs"][0] is None
    assert logprobs["top_logprobs"][5] == {"!": -0.5}
    assert body["usage"]["completion_tokens"] == 0


async def test_a_prompt_that_fills_the_context_can_be_scored(client: httpx.AsyncClient) -> None:
    prompt = ids_of("x" * MAX_MODEL_LEN)
    body = await complete(client, prompt=prompt, echo=True, max_tokens=0, logprobs=0)
    assert len(body["choices"][0]["logprobs"]["tokens"]) == MAX_MODEL_LEN


async def test_the_legacy_logprobs(client: httpx.AsyncClient) -> None:
    """Breakages 43, 44."""
    body = await complete(client, prompt="hi", echo=True, logprobs=2)
    (choice,) = body["choices"]
    logprobs = choice["logprobs"]
    lengths = {len(column) for column in logprobs.values()}
    assert lengths == {body["usage"]["prompt_tokens"] + body["usage"]["completion_tokens"]}
    text, offsets = choice["text"], logprobs["text_offset"]
    for token, offset, following in zip(logprobs["tokens"], offsets, offsets[1:], strict=False):
        if "\ufffd" not in token and not token.startswith("<|"):
            assert text[offset:following] == token
    assert logprobs["top_logprobs"][2] == {"h": -0.5, "i": -1.5}

    chunks = await stream(client, prompt="hi", echo=True, logprobs=2)
    streamed: dict[str, list[object]] = {key: [] for key in logprobs}
    for chunk in chunks:
        for key, column in (chunk["choices"][0]["logprobs"] or {}).items():
            streamed[key] += column
    assert streamed == logprobs


async def test_zero_logprobs_show_the_chosen_token(client: httpx.AsyncClient) -> None:
    logprobs = (await complete(client, prompt="hi", logprobs=0))["choices"][0]["logprobs"]
    assert logprobs["top_logprobs"][0] == {"h": -0.5}
    assert logprobs["text_offset"][:3] == [0, 1, 2]


async def test_tokens_as_ids(client: httpx.AsyncClient) -> None:
    body = await complete(client, prompt="hi", logprobs=0, return_tokens_as_token_ids=True)
    assert body["choices"][0]["logprobs"]["tokens"][0] == f"token_id:{3 + ord('h')}"


async def test_token_ids_on_request(client: httpx.AsyncClient) -> None:
    body = await complete(client, prompt=["hi", "ho"], max_tokens=2, return_token_ids=True)
    assert [choice["prompt_token_ids"] for choice in body["choices"]] == [ids_of("hi"), ids_of("ho")]
    assert body["choices"][0]["token_ids"] == [3 + ord("h"), 3 + ord("e")]
    chunks = await stream(client, prompt="hi", max_tokens=2, return_token_ids=True)
    assert chunks[0]["choices"][0]["prompt_token_ids"] == ids_of("hi")
    assert [i for chunk in chunks for i in chunk["choices"][0]["token_ids"]] == body["choices"][0]["token_ids"]


async def test_prompt_logprobs_without_echo(client: httpx.AsyncClient) -> None:
    (choice,) = (await complete(client, prompt="hi", prompt_logprobs=2))["choices"]
    assert choice["prompt_logprobs"][0] is None
    assert choice["prompt_logprobs"][1][str(3 + ord("i"))] == {"logprob": -0.5, "rank": 1, "decoded_token": "i"}
    assert choice["logprobs"] is None
