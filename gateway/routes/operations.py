"""The list of endpoints: a line each, from which routes, open paths and /openapi.json are made."""

from __future__ import annotations

from gateway.anthropic import bodies as anthropic
from gateway.errors import InvalidRequest, NotSupported, ResponseNotFound, Unavailable
from gateway.openai import bodies
from gateway.openai.chat_request import ChatBody
from gateway.openai.completion_request import CompletionBody
from gateway.openai.embedding_request import EmbeddingsBody
from gateway.openai.embedding_response import EmbeddingList
from gateway.ports import TextEmbedder
from gateway.responses import bodies as turns
from gateway.responses.archive import ResponseArchive
from gateway.responses.store import ResponseStore
from gateway.routes import status as told
from gateway.routes import tokenization as spelled
from gateway.routes.chat import ChatCompletions
from gateway.routes.completions import Completions
from gateway.routes.deployment import DeploymentBody, DeploymentQuery, DeploymentStatus
from gateway.routes.embeddings import Embeddings
from gateway.routes.messages import Messages
from gateway.routes.models import Models
from gateway.routes.rendering import RenderBody, Rendered, Rendering
from gateway.routes.responses import Responses
from gateway.routes.serving import Serving
from gateway.routes.status import Status
from gateway.routes.tokenization import Tokenization
from gateway.schema.operation import BODY, GENERATION, MODEL, Operation

_METRICS_TYPE = "text/plain"
_TURNS = {"messages": [{"role": "user", "content": "What is gravity?"}]}


def operations(
    serving: Serving, embedder: TextEmbedder | None = None, archive: ResponseArchive | None = None
) -> list[Operation]:
    """All of them but /docs and /openapi.json, which tell of these. Without an `archive`, this gateway is alone."""
    settings = serving.settings
    archive = archive or ResponseArchive(ResponseStore(settings.response_store_bytes, settings.response_ttl_s))
    return [
        *_openai(serving),
        *_responses(Responses(serving, archive)),
        *_messages(Messages(serving)),
        *_embeddings(Embeddings(serving, embedder)),
        *_tokens(serving),
        *_rendering(Rendering(serving)),
        *_operating(serving),
        *_watching(serving),
    ]


def _responses(responses: Responses) -> list[Operation]:
    tag, kept = "Responses", (InvalidRequest, ResponseNotFound, Unavailable)
    return [
        Operation(
            "POST", "/responses", responses.create, "Answer, and keep the conversation",
            request=turns.ResponsesBody, example={"input": "What is gravity?", "max_output_tokens": 16},
            response=turns.ResponseBody, stream=turns.ResponseStream, names_events=True,
            errors=(*GENERATION, ResponseNotFound), tag=tag,
        ),
        Operation(
            "POST", "/responses/input_tokens", responses.count, "How many tokens a body has",
            request=turns.TurnBody, example={"input": "What is gravity?"},
            response=turns.InputTokens, errors=(*BODY, *MODEL, Unavailable), tag=tag,
        ),
        Operation(
            "GET", "/responses/{response_id}", responses.show, "A kept response",
            response=turns.ResponseBody, errors=kept, tag=tag,
        ),
        Operation(
            "DELETE", "/responses/{response_id}", responses.delete, "Forget a response",
            response=turns.DeletedResponse, errors=kept, tag=tag,
        ),
        Operation(
            "POST", "/responses/{response_id}/cancel", responses.cancel, "Refused: nothing runs in the background",
            response=turns.ResponseBody, errors=kept, tag=tag,
        ),
        Operation(
            "GET", "/responses/{response_id}/input_items", responses.input_items, "What led to a response",
            query=turns.PageQuery, response=turns.InputItems, errors=kept, tag=tag,
        ),
    ]  # fmt: skip


def _messages(messages: Messages) -> list[Operation]:
    tag = "Messages"
    return [
        Operation(
            "POST", "/messages", messages.create, "Answer in Anthropic's format",
            request=anthropic.MessagesBody, example={**_TURNS, "max_tokens": 16},
            response=anthropic.MessageObject, stream=anthropic.MessageStream, names_events=True,
            error_body=anthropic.AnthropicErrorBody, errors=GENERATION, tag=tag,
        ),
        Operation(
            "POST", "/messages/count_tokens", messages.count_tokens, "How many tokens a conversation has",
            request=anthropic.CountTokensBody, example=_TURNS, response=anthropic.TokenCount,
            error_body=anthropic.AnthropicErrorBody, errors=(*BODY, *MODEL), tag=tag,
        ),
    ]  # fmt: skip


def _embeddings(embeddings: Embeddings) -> list[Operation]:
    return [
        Operation(
            "POST", "/embeddings", embeddings.create, "Vectors of texts",
            request=EmbeddingsBody, example={"input": ["The sky is blue.", "Grass is green."]},
            response=EmbeddingList, errors=(*GENERATION, NotSupported),
        )
    ]  # fmt: skip


def _rendering(rendering: Rendering) -> list[Operation]:
    errors, tag = (*BODY, *MODEL), "Tokens"
    return [
        Operation(
            "POST", "/chat/completions/render", rendering.render, "A conversation as the model sees it",
            request=RenderBody, example=_TURNS, response=Rendered, errors=errors, tag=tag,
        ),
        Operation(
            "POST", "/chat/completions/input_tokens", rendering.count, "How many tokens a conversation has",
            request=RenderBody, example=_TURNS, response=turns.InputTokens, errors=errors, tag=tag,
        ),
        Operation(
            "POST", "/apply-template", rendering.render, "As /v1/chat/completions/render",
            request=RenderBody, example=_TURNS, response=Rendered, errors=errors, tag=tag,
        ),
    ]  # fmt: skip


def _openai(serving: Serving) -> list[Operation]:
    models = Models(serving)
    return [
        Operation(
            "POST", "/chat/completions", ChatCompletions(serving).create, "Answer a conversation",
            request=ChatBody, example={**_TURNS, "max_tokens": 16},
            response=bodies.ChatCompletion, stream=bodies.ChatCompletionChunk, errors=GENERATION,
        ),
        Operation(
            "POST", "/completions", Completions(serving).create, "Continue prompts",
            request=CompletionBody, example={"prompt": "The sky is", "max_tokens": 16},
            response=bodies.Completion, stream=bodies.CompletionChunk, errors=GENERATION,
        ),
        Operation("GET", "/models", models.index, "What is served", response=bodies.ModelList, errors=MODEL),
        Operation("GET", "/models/{model_id}", models.show, "One model", response=bodies.ModelCard, errors=MODEL),
    ]  # fmt: skip


def _tokens(serving: Serving) -> list[Operation]:
    tokens, errors = Tokenization(serving), (*BODY, *MODEL)
    return [
        Operation(
            "POST", "/tokenize", tokens.tokenize, "Text or messages to token ids",
            request=spelled.TokenizeBody, example={"prompt": "The sky is blue."},
            response=spelled.Tokens, errors=errors, tag="Tokens",
        ),
        Operation(
            "POST", "/detokenize", tokens.detokenize, "Token ids to text",
            request=spelled.DetokenizeBody, example={"tokens": [20, 21]},
            response=spelled.Text, errors=errors, tag="Tokens",
        ),
    ]  # fmt: skip


def _operating(serving: Serving) -> list[Operation]:
    status, tag = Status(serving), "Operation"
    return [
        Operation(
            "GET", "/health", status.health, "Can requests be served now?",
            response=told.HealthBody, unavailable=told.HealthBody, versioned=False, is_open=True, tag=tag,
        ),
        Operation(
            "GET", "/livez", status.live, "Does the process run?",
            response=told.LiveBody, versioned=False, is_open=True, tag=tag,
        ),
        Operation(
            "GET", "/readyz", status.ready, "As health, with how far each rank is",
            response=told.ReadyBody, unavailable=told.ReadyBody, versioned=False, is_open=True, tag=tag,
        ),
        Operation(
            "GET", "/version", status.version, "Which Muster", response=told.VersionBody, versioned=False, tag=tag
        ),
        Operation("GET", "/load", status.load, "Load per rank", response=told.LoadBody, versioned=False, tag=tag),
        Operation(
            "GET", "/metrics", status.metrics, "For Prometheus", content=_METRICS_TYPE,
            versioned=False, is_open=serving.settings.open_metrics, tag=tag,
        ),
    ]  # fmt: skip


def _watching(serving: Serving) -> list[Operation]:
    if serving.deployment is None:
        return []
    return [
        Operation(
            "GET", "/deployment", DeploymentStatus(serving, serving.deployment).show, "Ranks, load, the last minutes",
            response=DeploymentBody, query=DeploymentQuery, errors=(InvalidRequest,),
            versioned=False, tag="Operation",
        ),
    ]  # fmt: skip
