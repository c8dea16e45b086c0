"""Errors of the engine, by whose fault they are."""

from __future__ import annotations


class EngineError(Exception):
    """Base of everything the engine raises on purpose."""


class InvalidRequestError(EngineError):
    """A request that can never run as it is; the caller has to change `field`."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message


class DuplicateRequestError(EngineError):
    """A live request has this id already."""


class QueueFullError(EngineError):
    """The waiting queue is at its limit; trying again later can help."""

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class CheckpointError(EngineError):
    """A checkpoint cannot be loaded; the message says why and what would."""


class CacheSizeError(EngineError):
    """The KV cache cannot be made large enough for one sequence."""


class DeviceError(EngineError):
    """The device that was asked for is not there."""


class GroupBrokenError(EngineError):
    """The ranks that exchange tokens are not connected any more, or this one is in no group.

    `own_fault` when the cause lies in this process.
    """

    def __init__(self, message: str, *, own_fault: bool = False) -> None:
        super().__init__(message)
        self.own_fault = own_fault
