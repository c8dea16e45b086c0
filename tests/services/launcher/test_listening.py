from __future__ import annotations

import socket

import pytest

from services.launcher.listening import ReservedPort, address_towards, check_free, listen_http
from services.rpc.listening import AddressInUseError, ListenError


def test_http_listens_at_once_on_a_free_port() -> None:
    http = listen_http("127.0.0.1", 0)
    try:
        with socket.create_connection(("127.0.0.1", http.port), timeout=5):
            pass
        assert len(http.fds) == 1
    finally:
        http.close()


def test_a_taken_http_port_names_the_flags() -> None:
    http = listen_http("127.0.0.1", 0)
    try:
        with pytest.raises(AddressInUseError, match=rf"{http.port}.*--host/--port"):
            listen_http("127.0.0.1", http.port)
    finally:
        http.close()


def test_a_reserved_port_is_shared_on_purpose_only() -> None:
    reserved = ReservedPort("127.0.0.1", 0, flags="--host/--grpc-port")
    try:
        with pytest.raises(AddressInUseError, match="--other"):
            check_free("127.0.0.1", reserved.port, flags="--other")
        with socket.socket() as shared:
            shared.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            shared.bind(("127.0.0.1", reserved.port))
            shared.listen(1)
            with socket.create_connection(("127.0.0.1", reserved.port), timeout=5):
                connection, _ = shared.accept()
                connection.close()
    finally:
        reserved.close()


def test_a_port_that_somebody_shares_already_is_refused() -> None:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))
        other.listen(1)
        with pytest.raises(AddressInUseError, match="--grpc-port"):
            ReservedPort("127.0.0.1", other.getsockname()[1], flags="--grpc-port")


def test_an_address_of_another_host_names_the_flags() -> None:
    with pytest.raises(ListenError, match="--here"):
        check_free("192.0.2.1", 0, flags="--here")


def test_the_way_to_a_local_head_is_local() -> None:
    assert address_towards("127.0.0.1", 29550) == "127.0.0.1"
