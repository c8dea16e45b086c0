"""Log records of ours alone."""

from __future__ import annotations

import logging

import pytest

_OURS = {"engine", "gateway", "services"}


def own_records(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """For assertions on how many records there are, or on which comes first.

    grpc.aio has one poller for all event loops of a process. An event that comes after an earlier test's loop was
    closed is logged by asyncio, as an error, in whichever test runs then.
    """
    return [record for record in caplog.records if record.name.split(".")[0] in _OURS]
