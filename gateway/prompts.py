"""Prompts to token ids, off the event loop when they are large, and checked against the context."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

from gateway.errors import ContextLengthExceeded, InvalidRequest
from gateway.openai.chat_request import Conversation
from gateway.openai.completion_request import CompletionRequest, Prompt
from gateway.openai.completion_response import PromptText
from gateway.openai.options import GenerationOptions, Truncation
from gateway.tokenizer import Tokenizer

T = TypeVar("T")

# Some milliseconds of work; a hop to a thread costs a tenth of one.
_LARGE = 20_000
# Tokenizing takes more than a hundred bytes of memory per token, so of these there is one at a time.
_HUGE = 1 << 20
_HUGE_WORK = ThreadPoolExecutor(1, thread_name_prefix="huge-text")


async def off_loop(size: int, work: Callable[[], T]) -> T:
    """Runs `work` in a thread when `size` characters or bytes are many, so that health checks and streams go on."""
    if size > _HUGE:
        return await asyncio.get_running_loop().run_in_executor(_HUGE_WORK, work)
    return await asyncio.to_thread(work) if size > _LARGE else work()


async def encode_prompts(request: CompletionRequest, tokenizer: Tokenizer, max_model_len: int) -> list[PromptText]:
    """Raises InvalidRequest for a prompt of no tokens and ContextLengthExceeded for one that leaves no room."""
    for text in request.prompts:
        if isinstance(text, str) and request.options.truncation is None:
            check_size(text, tokenizer, max_model_len, "prompt")
    size = sum(len(prompt) for prompt in request.prompts)
    prompts = await off_loop(size, lambda: [_encode_prompt(p, request, tokenizer) for p in request.prompts])
    for prompt in prompts:
        check_context(prompt.token_ids, max_model_len, "prompt", room=0 if request.max_tokens == 0 else 1)
    return prompts


async def encode_conversation(
    conversation: Conversation,
    tokenizer: Tokenizer,
    max_model_len: int,
    truncation: Truncation | None,
    *,
    num_bytes: int,
    param: str = "messages",
    room: int = 1,
) -> tuple[int, ...]:
    """Raises InvalidRequest when the template refuses and ContextLengthExceeded when no `room` is left; `param` is the
    client's field that the conversation came in, in a body of `num_bytes`: templates get more than contents."""
    texts = [str(message.get("content")) for message in conversation.messages]
    size = max(num_bytes, sum(map(len, texts)))
    if truncation is None:
        check_size(max(texts, key=len), tokenizer, max_model_len, param)
    token_ids = await off_loop(
        size,
        lambda: tokenizer.encode_chat(
            conversation.messages,
            add_generation_prompt=conversation.add_generation_prompt,
            continue_final_message=conversation.continue_final_message,
            variables=conversation.variables,
            add_special=conversation.add_special,
        ),
    )
    kept = _truncated(tuple(token_ids), truncation)
    check_context(kept, max_model_len, param, room=room)
    return kept


def check_context(token_ids: tuple[int, ...], max_model_len: int, param: str, *, room: int) -> None:
    if not token_ids:
        raise InvalidRequest(param, f"'{param}' is empty: there is no token to start from. Send some text.")
    if len(token_ids) + room > max_model_len:
        raise ContextLengthExceeded(len(token_ids), max_model_len, param=param)


async def spell_bad_words(options: GenerationOptions, tokenizer: Tokenizer) -> GenerationOptions:
    """The options with their bad words as token ids; once per request, however many prompts it has."""
    if not options.bad_words:
        return options
    size = sum(map(len, options.bad_words))
    bad_words = await off_loop(size, lambda: _bad_word_ids(options.bad_words, tokenizer))
    return replace(options, sampling=replace(options.sampling, bad_words=bad_words))


def _bad_word_ids(words: Iterable[str], tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """The ways a word is spelled in ids: at a text's beginning and after a space."""
    spelled = (tokenizer.encode(text) for word in words for text in (word, f" {word.lstrip()}"))
    return tuple(dict.fromkeys(tuple(ids) for ids in spelled if ids))


def check_size(text: str, tokenizer: Tokenizer, max_model_len: int, param: str) -> None:
    """Refuses what cannot fit before minutes are spent on tokenizing it."""
    fewest = tokenizer.fewest_tokens(text)
    if fewest > max_model_len:
        raise ContextLengthExceeded(fewest, max_model_len, param=param, at_least=True)


def _encode_prompt(prompt: Prompt, request: CompletionRequest, tokenizer: Tokenizer) -> PromptText:
    truncation = request.options.truncation
    if not isinstance(prompt, str):
        kept = _truncated(prompt, truncation)
        return PromptText(tokenizer.decode(kept, skip_special=False), kept)
    bare = tokenizer.encode(prompt, parse_special=request.parse_special)
    full = tokenizer.add_prefix(bare) if request.add_special else bare
    kept = _truncated(tuple(full), truncation)
    if len(kept) < len(full):
        return PromptText(tokenizer.decode(kept, skip_special=False), kept)
    return PromptText(prompt, kept, num_added=len(full) - len(bare))


def _truncated(token_ids: tuple[int, ...], truncation: Truncation | None) -> tuple[int, ...]:
    return token_ids if truncation is None else truncation.apply(token_ids)
