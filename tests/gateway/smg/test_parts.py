"""The pure parts: tokenizer files, loads, and messages that smg could not read."""

from __future__ import annotations

import io
import json
import random
import zipfile

import pytest
import tokenizers
from muster import v1 as wire

from engine.model.tokenizer_files import read_tokenizer_archive
from gateway.errors import InvalidRequest
from gateway.generation_request import ChoiceDelta, FinishReason, PromptReport, TokenLogprob
from gateway.ranks import RankLoad
from gateway.smg.answer import MAX_MESSAGE_BYTES, Answer
from gateway.smg.loads import Throughput, to_rows
from gateway.smg.tokenizer_files import SmgArchive, to_smg_archive
from gateway.tokenizer import Tokenizer
from tests.support.default_model import default_model_path
from tests.support.random_text import random_text
from tests.support.tokenizer_files import archive, tiny_metadata

MODEL = wire.ModelInfo(architecture="llama", vocab_size=300, num_blocks=100, block_size=16, max_num_seqs=8)


def unpacked(made: SmgArchive) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(made.data)) as files:
        return {name: files.read(name) for name in files.namelist()}


@pytest.mark.model
def test_a_gguf_tokenizer_written_down_is_the_same_tokenizer() -> None:
    source = read_tokenizer_archive(default_model_path())
    ours = Tokenizer.from_archive(source)
    files = unpacked(to_smg_archive(source, MODEL))
    theirs = tokenizers.Tokenizer.from_str(files["tokenizer.json"].decode())
    randomness = random.Random(11)
    for text in [*(random_text(randomness) for _ in range(300)), "<|im_start|>user\nHi<|im_end|>"]:
        wanted = ours.encode(text, parse_special=True, add_special=True)
        assert theirs.encode(text, add_special_tokens=True).ids == wanted
        ids = ours.encode(text)
        assert theirs.decode(ids, skip_special_tokens=False) == ours.decode(ids, skip_special=False)
    config = json.loads(files["tokenizer_config.json"])
    assert config["chat_template"] == ours.template_source
    assert config["eos_token"] == "<|im_end|>"


def test_bos_is_put_in_front_by_the_written_tokenizer() -> None:
    source = archive({"gguf_tokenizer.json": tiny_metadata(ggml__add_bos_token=True)})
    files = unpacked(to_smg_archive(source, MODEL))
    theirs = tokenizers.Tokenizer.from_str(files["tokenizer.json"].decode())
    assert theirs.encode("hi").ids[0] == 1
    assert theirs.encode("hi", add_special_tokens=False).ids[0] != 1


def test_hugging_face_files_stay_as_they_are_and_the_template_is_where_all_look() -> None:
    source = archive(
        {"tokenizer.json": "{}", "tokenizer_config.json": {"eos_token": "x"}, "chat_template.jinja": "{{ messages }}"}
    )
    first, second = (to_smg_archive(source, MODEL) for _ in range(2))
    assert first == second
    files = unpacked(first)
    assert files["tokenizer.json"] == b"{}"
    assert json.loads(files["tokenizer_config.json"]) == {"eos_token": "x", "chat_template": "{{ messages }}"}
    assert json.loads(files["config.json"])["model_type"] == "llama"


def test_throughput_is_measured_between_looks_that_are_a_second_apart() -> None:
    throughput = Throughput()

    def rate(total: int, now_s: float, incarnation: int = 1) -> float:
        return throughput.rate(RankLoad(rank=0, incarnation=incarnation, generated_tokens_total=total), now_s)

    assert rate(1000, 10.0) == 0.0
    assert rate(1010, 10.5) == 0.0  # too soon
    assert rate(1200, 12.0) == 100.0
    assert rate(1201, 12.1) == 100.0
    assert rate(5, 20.0, incarnation=2) == 0.0  # another process counts from zero
    assert rate(15, 22.0, incarnation=2) == 5.0


def test_a_rank_that_tells_nothing_is_no_row_and_not_idle() -> None:
    load = RankLoad(rank=5, incarnation=1, waiting=1, running=2, kv_usage=0.5, waiting_tokens=30)
    (row,) = to_rows([4, 5], {5: load}, MODEL, Throughput(), 0.0)
    assert (row.dp_rank, row.num_total_reqs, row.num_used_tokens, row.max_total_num_tokens) == (1, 3, 800, 1600)
    assert (row.utilization, row.num_waiting_uncached_tokens) == (0.25, 30)


def test_a_message_that_smg_cannot_read_is_refused_with_the_way_out() -> None:
    answer = Answer(1, streamed=False)
    top = tuple((token_id, -1.0) for token_id in range(20))
    logprobs = (TokenLogprob(7, -1.0, 1, top),) * (MAX_MESSAGE_BYTES // 100)
    answer.take(PromptReport(1, 0))
    with pytest.raises(InvalidRequest, match="ask for fewer logprobs, or stream") as caught:
        answer.take(ChoiceDelta(0, token_ids=(7,), logprobs=logprobs, finish_reason=FinishReason.LENGTH))
    assert caught.value.param == "sampling_params.logprobs"
