"""A cluster that is not there is said at once."""

from __future__ import annotations

import socket

import pytest

from services.ray.address import check_address
from services.ray.installed import RayBackendError


def test_where_somebody_listens_ray_may_try() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        check_address(f"127.0.0.1:{server.getsockname()[1]}", "--ray-address")


def test_where_nobody_listens_is_refused_with_the_way_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    with pytest.raises(RayBackendError, match=rf"^RAY_ADDRESS {address}: .*refused.*ray start --address HEAD:6379"):
        check_address(address, "RAY_ADDRESS")


@pytest.mark.parametrize("address", ["h:99999", "no-such-host.invalid:6379"])
def test_what_cannot_be_an_address_is_refused(address: str) -> None:
    with pytest.raises(RayBackendError, match=f"^--ray-address {address}: no Ray cluster can be joined there"):
        check_address(address, "--ray-address")


def test_a_ray_client_url_is_refused_from_the_environment_too() -> None:
    with pytest.raises(RayBackendError, match=r"^RAY_ADDRESS ray://h:10001: .*no Ray Client URL"):
        check_address("ray://h:10001", "RAY_ADDRESS")


@pytest.mark.parametrize("address", ["auto", "local"])
def test_rays_own_words_are_rays(address: str) -> None:
    check_address(address, "RAY_ADDRESS")
