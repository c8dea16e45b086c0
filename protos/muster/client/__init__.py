"""A thin client of a Muster deployment, blocking and asynchronous; needs grpcio, protobuf and google.rpc's messages.

from muster.client import Client

with Client("127.0.0.1:8001", head="127.0.0.1:29550") as client:
    print(client.chat("What is gravity?", max_tokens=100).text)
"""

from muster.client.answers import Answer, AnswerChoice, Generated
from muster.client.asynchronous import AsyncClient, AsyncEngine, AsyncStream, AsyncTextStream
from muster.client.blocking import Client, Engine, Stream, TextStream
from muster.client.connection import Tls, service_config
from muster.client.errors import (
    AlreadyExistsError,
    CallCancelledError,
    DeadlineExceededError,
    FailedPreconditionError,
    FieldViolation,
    InvalidRequestError,
    MusterError,
    NotFoundError,
    OverloadedError,
    PermissionDeniedError,
    ServerError,
    TruncatedError,
    UnauthenticatedError,
    UnavailableError,
    UnimplementedError,
)
from muster.client.options import Message, Options, TokenOptions

__all__ = [
    "AlreadyExistsError",
    "Answer",
    "AnswerChoice",
    "AsyncClient",
    "AsyncEngine",
    "AsyncStream",
    "AsyncTextStream",
    "CallCancelledError",
    "Client",
    "DeadlineExceededError",
    "Engine",
    "FailedPreconditionError",
    "FieldViolation",
    "Generated",
    "InvalidRequestError",
    "Message",
    "MusterError",
    "NotFoundError",
    "Options",
    "OverloadedError",
    "PermissionDeniedError",
    "ServerError",
    "Stream",
    "TextStream",
    "Tls",
    "TokenOptions",
    "TruncatedError",
    "UnauthenticatedError",
    "UnavailableError",
    "UnimplementedError",
    "service_config",
]
