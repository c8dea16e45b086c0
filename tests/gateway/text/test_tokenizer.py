"""Tokenizers against independent constructions of the same checkpoint."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import regex  # type: ignore[import-untyped]
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from gateway.errors import TokenizerError
from gateway.tokenizer import Tokenizer
from tests.support.random_text import random_text
from tests.support.tokenizer_files import (
    SPECIALS,
    archive,
    byte_symbols,
    default_model_metadata,
    default_tokenizer,
    tiny_metadata,
    tiny_tokenizer,
)

REPOSITORY = Path(__file__).resolve().parents[3]

# GPT-2's words, with every numeric character on its own first: written as one pattern, with another regex engine.
_SINGLE_NUMBERS = r"\p{N}"
_GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def reference_encoder() -> Callable[[str], list[int]]:
    """Plain BPE over words that are cut in Python and handed over one by one."""
    metadata = default_model_metadata()
    vocab = {token: token_id for token_id, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    merges = [tuple(line.split(" ", 1)) for line in metadata["tokenizer.ggml.merges"]]
    bare = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges))
    symbols = byte_symbols()
    number, words = regex.compile(f"({_SINGLE_NUMBERS})"), regex.compile(_GPT2_WORDS)

    def encode(text: str) -> list[int]:
        pieces = [word for part in number.split(text) if part for word in words.findall(part)]
        spelled = ["".join(symbols[byte] for byte in piece.encode()) for piece in pieces]
        return [i for encoding in bare.encode_batch(spelled, add_special_tokens=False) for i in encoding.ids]

    return encode


@pytest.fixture(scope="module")
def reference() -> Callable[[str], list[int]]:
    return reference_encoder()


@pytest.mark.model
def test_no_difference_from_the_reference_on_5000_random_strings(reference: Callable[[str], list[int]]) -> None:
    tokenizer = default_tokenizer()
    source = random.Random(20261202)
    texts = [random_text(source) for _ in range(5000)]
    different = [text for text in texts if tokenizer.encode(text) != reference(text)]
    assert not different, f"{len(different)} differ, for example {different[0]!r}"


@pytest.mark.model
def test_no_difference_from_the_reference_on_the_repositorys_files(reference: Callable[[str], list[int]]) -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, check=True).stdout
    tokenizer = default_tokenizer()
    num_files = 0
    for name in listed.decode().split("\0"):
        path = REPOSITORY / name
        if not name or not path.is_file():
            continue
        try:
            text = path.read_bytes().decode()
        except UnicodeDecodeError:
            continue
        assert tokenizer.encode(text) == reference(text), name
        num_files += 1
    assert num_files > 50


@pytest.mark.model
def test_a_plain_gpt2_cut_would_differ() -> None:
    """The two examples that a fallback to GPT-2's pre-tokenizer gets wrong. Breakage 85."""
    tokenizer = default_tokenizer()
    assert tokenizer.encode("  12") == [256, 33, 34]
    assert tokenizer.encode("\n\n  42\n") == [39892, 36, 34, 198]


@pytest.mark.model
def test_facts_of_the_default_model() -> None:
    tokenizer = default_tokenizer()
    assert tokenizer.vocab_size == 49152
    assert tokenizer.eos_token_ids == {2}
    assert tokenizer.special_token_ids == set(range(17))
    assert tokenizer.add_prefix([5]) == [5], "no BOS"
    assert tokenizer.token_text(216) == " "
    assert tokenizer.token_bytes(1) == b"<|im_start|>"


@pytest.mark.model
def test_decoding_is_the_inverse_of_encoding() -> None:
    """For what the checkpoint can spell at all: 21 byte values, 0xF1 among them, have no token in it."""
    tokenizer = default_tokenizer()
    vocabulary = set(default_model_metadata()["tokenizer.ggml.tokens"])
    unspelled = {byte for byte, symbol in enumerate(byte_symbols()) if symbol not in vocabulary}
    assert len(unspelled) == 21
    source = random.Random(7)
    texts = [text for text in (random_text(source) for _ in range(1000)) if not unspelled.intersection(text.encode())]
    assert len(texts) > 500
    for text in texts:
        for parse_special in (False, True):
            ids = tokenizer.encode(text, parse_special=parse_special)
            assert tokenizer.decode(ids, skip_special=False) == text


@pytest.mark.model
def test_decoding_equals_the_library_on_random_ids() -> None:
    """Also for ids that are no valid UTF-8: both put U+FFFD in the same places."""
    metadata = default_model_metadata()
    vocab = {token: token_id for token_id, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    merges = [tuple(line.split(" ", 1)) for line in metadata["tokenizer.ggml.merges"]]
    library = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges))
    library.decoder = decoders.ByteLevel()
    tokenizer = default_tokenizer()
    source = random.Random(11)
    for _ in range(2000):
        ids = [source.randrange(17, 49152) for _ in range(source.randrange(1, 20))]
        assert tokenizer.decode(ids) == library.decode(ids)


def test_special_tokens_are_parsed_only_on_demand() -> None:
    tokenizer = tiny_tokenizer()
    assert tokenizer.encode("a<|im_end|>b", parse_special=True) == [3 + ord("a"), 2, 3 + ord("b")]
    plain = tokenizer.encode("a<|im_end|>b")
    assert not tokenizer.special_token_ids.intersection(plain)
    assert tokenizer.decode(plain) == "a<|im_end|>b"


def test_special_tokens_are_skipped_on_demand() -> None:
    tokenizer = tiny_tokenizer()
    ids = tokenizer.encode("<|im_start|>hello<|im_end|>", parse_special=True)
    assert tokenizer.decode(ids) == "hello"
    assert tokenizer.decode(ids, skip_special=False) == "<|im_start|>hello<|im_end|>"


def test_merges_apply() -> None:
    tokenizer = tiny_tokenizer()
    assert [tokenizer.token_text(i) for i in tokenizer.encode("hello world")] == ["hello", " w", "o", "r", "l", "d"]


def test_every_byte_has_its_token() -> None:
    tokenizer = tiny_tokenizer()
    assert [tokenizer.token_bytes(3 + byte) for byte in range(256)] == [bytes([byte]) for byte in range(256)]


def test_ids_beyond_the_vocabulary_have_no_text() -> None:
    tokenizer = tiny_tokenizer()
    assert tokenizer.decode([tokenizer.vocab_size, -1, 3 + ord("x")]) == "x"


def test_bos_is_put_in_front_once() -> None:
    tokenizer = Tokenizer.from_archive(archive({"gguf_tokenizer.json": tiny_metadata(ggml__add_bos_token=True)}))
    assert tokenizer.encode("a", add_special=True) == [1, 3 + ord("a")]
    assert tokenizer.encode("<|im_start|>a", parse_special=True, add_special=True) == [1, 3 + ord("a")]
    assert tokenizer.encode("", add_special=True) == [1]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"ggml__pre": "no-such-family"}, "no-such-family"),
        ({"ggml__pre": "default"}, "tokenizer.ggml.pre"),
        ({"ggml__pre": None}, "tokenizer.ggml.pre"),
        ({"ggml__model": "llama"}, "tokenizer.ggml.model"),
        ({"ggml__tokens": [1]}, "tokenizer.ggml.tokens"),
        ({"ggml__merges": ["he"]}, "tokenizer.ggml.merges"),
        ({"ggml__merges": ["zz zz"]}, "tokenizer.ggml.merges"),
        ({"ggml__token_type": [1]}, "tokenizer.ggml.token_type"),
        ({"ggml__eos_token_id": 10**6}, "tokenizer.ggml.eos_token_id"),
        ({"chat_template": "{% for %}"}, "chat template"),
    ],
)
def test_bad_metadata_is_an_error_that_names_the_key(change: dict[str, object], named: str) -> None:
    with pytest.raises(TokenizerError, match=named):
        Tokenizer.from_archive(archive({"gguf_tokenizer.json": tiny_metadata(**change)}))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"PK\x03\x04 torn",
        archive({}),
        archive({"gguf_tokenizer.json": b"\xff"}),
        archive({"gguf_tokenizer.json": "[1]"}),
        archive({"tokenizer.json": "{}"}),
        archive({f"file{i}": "" for i in range(100)}),
    ],
    ids=["empty", "torn", "no files", "not UTF-8", "no object", "no model", "too many files"],
)
def test_a_broken_archive_is_an_error(data: bytes) -> None:
    with pytest.raises(TokenizerError):
        Tokenizer.from_archive(data)


def test_an_archive_that_unpacks_to_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.tokenizer_archive._MAX_FILE_SIZE", 1000)
    with pytest.raises(TokenizerError, match="unpacks to more"):
        Tokenizer.from_archive(archive({"gguf_tokenizer.json": "x" * 2000}))


def hugging_face_archive(**config: object) -> bytes:
    """The tiny tokenizer as `tokenizer.json`."""
    tokens = tiny_metadata()["tokenizer.ggml.tokens"]
    merges = tiny_metadata()["tokenizer.ggml.merges"]
    assert isinstance(tokens, list)
    assert isinstance(merges, list)
    vocab = {token: token_id for token_id, token in enumerate(tokens)}
    library = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[tuple(m.split(" ")) for m in merges]))
    digits = pre_tokenizers.Digits(individual_digits=True)
    library.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in tokens[:3]])
    return archive({"tokenizer.json": library.to_str(), "tokenizer_config.json": config})


def test_a_hugging_face_directory_gives_the_same_tokenizer() -> None:
    template = tiny_metadata()["tokenizer.chat_template"]
    hugging_face = Tokenizer.from_archive(
        hugging_face_archive(
            eos_token={"content": "<|im_end|>"}, chat_template=[{"name": "default", "template": template}]
        )
    )
    gguf = tiny_tokenizer()
    assert hugging_face.eos_token_ids == gguf.eos_token_ids
    assert hugging_face.special_token_ids == gguf.special_token_ids
    source = random.Random(3)
    for _ in range(300):
        text = random_text(source)
        for parse_special in (False, True):
            ids = gguf.encode(text, parse_special=parse_special)
            assert hugging_face.encode(text, parse_special=parse_special) == ids
            assert hugging_face.decode(ids) == gguf.decode(ids)
        messages = [{"role": "user", "content": text}]
        assert hugging_face.encode_chat(messages) == gguf.encode_chat(messages)


def test_sentence_piece_spaces() -> None:
    """Metaspace with "first" has a space in front of the text only, never behind a special token."""
    vocab = {token: i for i, token in enumerate(["<unk>", "<s>", "</s>", "▁", "h", "i", "<0xE2>", "<0x82>", "<0xAC>"])}
    library = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True))
    library.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    library.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    library.add_special_tokens(["<s>", "</s>"])
    template = "{% for m in messages %}{{ m.content + '</s>' }}{% endfor %}"
    files = {"tokenizer.json": library.to_str(), "chat_template.jinja": template}
    tokenizer = Tokenizer.from_archive(archive({**files, "generation_config.json": {"eos_token_id": [2]}}))
    assert tokenizer.eos_token_ids == {2}
    assert tokenizer.encode("hi") == [3, 4, 5]
    assert tokenizer.encode_chat([{"role": "a", "content": "hi"}, {"role": "b", "content": "hi€"}]) == [
        *(3, 4, 5, 2),
        *(4, 5, 6, 7, 8, 2),
    ]
    assert tokenizer.decode([3, 4, 5]) == "hi"
    assert tokenizer.decode([3, 4, 5], begins_text=False) == " hi"
    assert tokenizer.decode([6, 7, 8]) == "€"


# How each family cuts text, written down from the checkpoints' own tokenizer.json files.
_FAMILY_WORDS = {
    "gpt-2": _GPT2_WORDS,
    "llama-bpe": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
    "qwen2": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
}


@pytest.mark.parametrize("family", _FAMILY_WORDS)
def test_other_families_cut_text_as_their_checkpoints_do(family: str) -> None:
    """Without merges every byte is a token, so cuts show only in a vocabulary that merges across them."""
    merges = ["1 2", "12 3", "Ġ Ġ", "' s", "Ċ Ċ", ". Ċ", "Ġ a"]
    symbols = byte_symbols()
    tokens = [*SPECIALS, *symbols, *(merge.replace(" ", "") for merge in merges)]
    kinds = [3] * 3 + [1] * (len(tokens) - 3)
    changes = {"ggml__pre": family, "ggml__tokens": tokens, "ggml__merges": merges, "ggml__token_type": kinds}
    tokenizer = Tokenizer.from_archive(archive({"gguf_tokenizer.json": tiny_metadata(**changes)}))
    vocab = {token: token_id for token_id, token in enumerate(tokens)}
    bare = tokenizers.Tokenizer(
        models.BPE(vocab=vocab, merges=[(left, right) for left, right in map(str.split, merges)])
    )
    words = regex.compile(_FAMILY_WORDS[family])
    source = random.Random(5)
    for _ in range(1000):
        text = "".join(
            source.choice(["1", "2", "3", "123", " ", "  ", "'s", "'S", "\n", ".", "a", "é", "日"]) for _ in range(12)
        )
        spelled = ["".join(symbols[byte] for byte in word.encode()) for word in words.findall(text)]
        expected = [i for encoding in bare.encode_batch(spelled, add_special_tokens=False) for i in encoding.ids]
        assert tokenizer.encode(text) == expected, text
