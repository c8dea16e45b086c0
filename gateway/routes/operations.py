"""The list of endpoints: a line each, from which routes, open paths and /openapi.json are made."""

from __future__ import annotations

from gateway.errors import InvalidRequest
from gateway.openai import bodies
from gateway.openai.chat_request import ChatBody
from gateway.openai.completion_request import CompletionBody
from gateway.ports import TextEmbedder
from gateway.responses.archive import ResponseArchive
from gateway.routes import status as told
from gateway.routes import tokenization as spelled
from gateway.routes.chat import ChatCompletions
from gateway.routes.completions import Completions
from gateway.routes.deployment import DeploymentBody, DeploymentQuery, DeploymentStatus
from gateway.routes.embeddings import Embeddings
from gateway.routes.messages import Messages
from gateway.routes.models import Models
from gateway.routes.rendering import Rendering
from gateway.routes.responses import Responses
from gateway.routes.serving import Serving
from gateway.routes.status import Status
from gateway.routes.tokenization import Tokenization
from gateway.schema.operation import BODY, GENERATION, MODEL, Operation

_METRICS_TYPE = "text/plain"


def operations(serving: Serving) -> list[Operation]:
    """All of them but /docs and /openapi.json, which tell of these."""
    return [*_openai(serving), *_tokens(serving), *_operating(serving), *_watching(serving)]


def further_operations(serving: Serving, embedder: TextEmbedder | None, archive: ResponseArchive) -> list[Operation]:
    """Those whose bodies are not in /openapi.json yet; docs/api.md has their fields."""
    responses, messages, rendering = Responses(serving, archive), Messages(serving), Rendering(serving)
    embeddings = Embeddings(serving, embedder)
    return [
        Operation("POST", "/embeddings", embeddings.create, "Vectors of texts"),
        Operation("POST", "/responses", responses.create, "Answer, and keep the conversation"),
        Operation("POST", "/responses/input_tokens", responses.count, "How many tokens a body has"),
        Operation("GET", "/responses/{response_id}", responses.show, "A kept response"),
        Operation("DELETE", "/responses/{response_id}", responses.delete, "Forget a response"),
        Operation(
            "POST", "/responses/{response_id}/cancel", responses.cancel, "Refused: nothing runs in the background"
        ),
        Operation("GET", "/responses/{response_id}/input_items", responses.input_items, "What led to a response"),
        Operation("POST", "/messages", messages.create, "Answer in Anthropic's format"),
        Operation("POST", "/messages/count_tokens", messages.count_tokens, "How many tokens a conversation has"),
        Operation("POST", "/chat/completions/render", rendering.render, "A conversation as the model sees it"),
        Operation("POST", "/chat/completions/input_tokens", rendering.count, "How many tokens a conversation has"),
        Operation("POST", "/apply-template", rendering.render, "A conversation as the model sees it"),
    ]


def _openai(serving: Serving) -> list[Operation]:
    models = Models(serving)
    return [
        Operation(
            "POST", "/chat/completions", ChatCompletions(serving).create, "Answer a conversation",
            request=ChatBody, response=bodies.ChatCompletion, stream=bodies.ChatCompletionChunk, errors=GENERATION,
        ),
        Operation(
            "POST", "/completions", Completions(serving).create, "Continue prompts",
            request=CompletionBody, response=bodies.Completion, stream=bodies.CompletionChunk, errors=GENERATION,
        ),
        Operation("GET", "/models", models.index, "What is served", response=bodies.ModelList, errors=MODEL),
        Operation("GET", "/models/{model_id}", models.show, "One model", response=bodies.ModelCard, errors=MODEL),
    ]  # fmt: skip


def _tokens(serving: Serving) -> list[Operation]:
    tokens, errors = Tokenization(serving), (*BODY, *MODEL)
    return [
        Operation(
            "POST", "/tokenize", tokens.tokenize, "Text or messages to token ids",
            request=spelled.TokenizeBody, response=spelled.Tokens, errors=errors, tag="Tokens",
        ),
        Operation(
            "POST", "/detokenize", tokens.detokenize, "Token ids to text",
            request=spelled.DetokenizeBody, response=spelled.Text, errors=errors, tag="Tokens",
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
