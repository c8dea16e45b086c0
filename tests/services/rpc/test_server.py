"""Listening, sharing ports, stopping, large messages. Clients that ping are in tests/benchmarks/test_silence.py."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_channelz.v1 import channelz_pb2, channelz_pb2_grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from muster import v1 as wire

from services.rpc.channels import dial
from services.rpc.listening import MAX_UNIX_PATH_BYTES
from services.rpc.server import AddressInUseError, ListenError, RpcServer
from tests.services.rpc.serving import Placeholder, serving, unwritten_servicer


@contextlib.asynccontextmanager
async def bare_server(*, reuse_port: bool = False) -> AsyncIterator[RpcServer]:
    server = RpcServer(reuse_port=reuse_port)
    try:
        yield server
    finally:
        await server.stop(0)


async def answers(target: str) -> bool:
    async with dial(target) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        response = await stub.Check(health_pb2.HealthCheckRequest(), timeout=5, wait_for_ready=True)
        return bool(response.status == health_pb2.HealthCheckResponse.NOT_SERVING)


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


async def test_one_server_on_a_socket_and_on_tcp(tmp_path: Path) -> None:
    async with bare_server() as server:
        unix = server.listen_unix(tmp_path / "s.sock")
        port = server.listen_tcp("127.0.0.1", 0, flags="--port")
        named = server.listen_tcp("localhost", 0, flags="--port")
        assert port not in (0, named)
        await server.start()
        for target in (unix, f"127.0.0.1:{port}", f"localhost:{named}", f"dns:///localhost:{named}"):
            assert await answers(target), target


@pytest.mark.skipif(not has_ipv6(), reason="this host has no IPv6")
@pytest.mark.parametrize("host", ["::1", "[::1]"])
async def test_ipv6(host: str) -> None:
    async with bare_server() as server:
        port = server.listen_tcp(host, 0, flags="--port")
        await server.start()
        assert await answers(f"[::1]:{port}")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0"])
async def test_a_port_in_use_is_an_error_that_names_the_flags(host: str) -> None:
    async with bare_server() as first, bare_server() as second:
        port = first.listen_tcp("127.0.0.1", 0, flags="--port")
        await first.start()
        with pytest.raises(AddressInUseError) as caught:
            second.listen_tcp(host, port, flags="--host/--port")
    assert (caught.value.host, caught.value.port, caught.value.flags) == (host, port, "--host/--port")
    assert f"{host}:{port} is in use" in str(caught.value)
    assert "--host/--port" in str(caught.value)


async def test_a_port_may_be_shared_on_purpose() -> None:
    async with bare_server(reuse_port=True) as first, bare_server(reuse_port=True) as second:
        port = first.listen_tcp("127.0.0.1", 0, flags="--port")
        await first.start()
        assert second.listen_tcp("127.0.0.1", port, flags="--port") == port
        await second.start()
        async with bare_server() as stranger:
            with pytest.raises(AddressInUseError):
                stranger.listen_tcp("127.0.0.1", port, flags="--port")


@pytest.mark.parametrize(
    ("host", "port", "words"),
    [
        ("no-such-host.invalid", 0, "cannot resolve 'no-such-host.invalid' given by --host/--port"),
        ("192.0.2.1", 0, "cannot listen on 192.0.2.1:0"),
        ("127.0.0.1", 65536, "--host/--port takes 0 to 65535"),
        ("127.0.0.1", -1, "--host/--port takes 0 to 65535"),
    ],
)
async def test_an_address_that_cannot_be_bound_says_why(host: str, port: int, words: str) -> None:
    async with bare_server() as server:
        with pytest.raises(ListenError) as caught:
            server.listen_tcp(host, port, flags="--host/--port")
    assert words in str(caught.value)
    assert not isinstance(caught.value, AddressInUseError)


async def test_a_socket_path_that_is_too_long_tells_its_length(tmp_path: Path) -> None:
    path = tmp_path / ("x" * MAX_UNIX_PATH_BYTES)
    async with bare_server() as server:
        with pytest.raises(ListenError, match=f"has {len(str(path))} bytes; at most {MAX_UNIX_PATH_BYTES}"):
            server.listen_unix(path)


async def test_the_socket_of_a_dead_process_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    async with bare_server() as server:
        target = server.listen_unix(path)
        await server.start()
        assert await answers(target)


async def test_the_socket_of_a_living_process_is_left_alone(tmp_path: Path) -> None:
    async with bare_server() as first, bare_server() as second:
        target = first.listen_unix(tmp_path / "s.sock")
        await first.start()
        with pytest.raises(ListenError, match="another process listens"):
            second.listen_unix(tmp_path / "s.sock")
        assert await answers(target)


async def test_a_file_that_is_no_socket_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    path.write_text("precious")
    async with bare_server() as server:
        with pytest.raises(ListenError, match="not a socket"):
            server.listen_unix(path)
        with pytest.raises(ListenError, match="does not exist"):
            server.listen_unix(tmp_path / "missing" / "s.sock")
    assert path.read_text() == "precious"


async def test_channelz_answers() -> None:
    async with serving(unwritten_servicer()) as served:
        stub = channelz_pb2_grpc.ChannelzStub(served.channel)
        servers = await stub.GetServers(channelz_pb2.GetServersRequest(start_server_id=0))
        assert servers.server


class Slow(Placeholder):
    def __init__(self, silence_s: float) -> None:
        self.entered = asyncio.Event()
        self._silence_s = silence_s

    async def WatchRoster(self, request: Any, context: Any) -> AsyncIterator[wire.WatchRosterResponse]:
        self.entered.set()
        await asyncio.sleep(self._silence_s)
        yield wire.WatchRosterResponse()


async def test_stop_lets_running_calls_finish_and_refuses_new_ones() -> None:
    servicer = Slow(0.2)
    async with serving(servicer) as served:
        call = served.stub.WatchRoster(wire.WatchRosterRequest())
        reading = asyncio.ensure_future(call.read())
        await servicer.entered.wait()
        await served.server.stop(10)
        assert await reading == wire.WatchRosterResponse()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await served.stub.GetDeployment(wire.GetDeploymentRequest(), timeout=5)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


class Greedy(Placeholder):
    """Says how much it was sent, in a message of the wanted size."""

    async def GetDeployment(self, request: Any, context: Any) -> wire.GetDeploymentResponse:
        return wire.GetDeploymentResponse(product_version="x" * (5 << 20))

    async def Register(self, request_iterator: Any, context: Any) -> AsyncIterator[wire.RegisterResponse]:
        async for request in request_iterator:
            yield wire.RegisterResponse(welcome=wire.Welcome(rank=len(request.hello.product_version)))


async def test_a_message_that_is_too_large_is_refused_with_both_sizes() -> None:
    async with serving(Greedy()) as served:
        call: Any = served.stub.Register()
        await call.write(wire.RegisterRequest(hello=wire.Hello(product_version="x" * (60 << 20))))
        assert (await call.read()).welcome.rank == 60 << 20
        await call.write(wire.RegisterRequest(hello=wire.Hello(product_version="x" * (65 << 20))))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert re.search(r"larger than max \(\d+ vs. 67108864\)", caught.value.details() or "")


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
async def test_compression_is_the_clients_choice(compression: grpc.Compression) -> None:
    def channel(target: str) -> grpc.aio.Channel:
        large = [("grpc.max_receive_message_length", 8 << 20)]
        return grpc.aio.insecure_channel(target, compression=compression, options=large)

    async with serving(Greedy(), make_channel=channel) as served:
        answer = await served.stub.GetDeployment(wire.GetDeploymentRequest(), timeout=10)
        assert len(answer.product_version) == 5 << 20


async def test_a_crowd_of_calls_ends_nobodys() -> None:
    """gRPC's own limit is some thousand calls that the event loop has not taken yet; it ends others at random."""
    own_connection = (("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0))
    async with bare_server() as server:
        port = server.listen_tcp("127.0.0.1", 0, flags="--port")
        await server.start()
        with contextlib.ExitStack() as crowd:
            channels = [
                crowd.enter_context(grpc.insecure_channel(f"127.0.0.1:{port}", options=own_connection))
                for _ in range(5)
            ]
            for channel in channels:
                await asyncio.to_thread(grpc.channel_ready_future(channel).result, 10)
            checks = [health_pb2_grpc.HealthStub(channel).Check for channel in channels]
            # The loop takes no call while this goes on.
            calls = [check.future(health_pb2.HealthCheckRequest()) for _ in range(1000) for check in checks]
            codes = await asyncio.to_thread(lambda: {call.code() for call in calls})
    assert codes == {grpc.StatusCode.OK}
