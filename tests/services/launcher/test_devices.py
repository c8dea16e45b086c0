from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from services.launcher import devices, plan
from services.launcher.devices import Assignment, DeviceAssignmentError, VisibleDevices
from tests.services.launcher.serve_options import serve_options
from tests.services.launcher.test_plan import PLACES

FOUR = VisibleDevices(("0", "1", "2", "3"), "nvidia-smi -L")
SMI_LIST = """GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-11111111-aaaa)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-22222222-bbbb)
  MIG 3g.20gb     Device  0: (UUID: MIG-33333333-cccc)
  MIG 3g.20gb     Device  1: (UUID: MIG-44444444-dddd)
GPU 2: NVIDIA H100 80GB HBM3 (UUID: GPU-55555555-eeee)
"""


def _assign(device: str, num_ranks: int, found: VisibleDevices = FOUR, *, torch_has_cuda: bool = True) -> Assignment:
    return devices.assign(device, num_ranks, find_devices=lambda: found, torch_has_cuda=lambda: torch_has_cuda)


def _never() -> VisibleDevices:
    raise AssertionError("nobody needs to know")


def test_each_rank_gets_the_next_gpu() -> None:
    assert _assign("cuda", 2) == Assignment("cuda", ("0", "1"), by_slot=True)
    assert _assign("auto", 4).ids == ("0", "1", "2", "3")


def test_a_list_of_the_user_is_cut_up_in_its_order() -> None:
    found = devices.find_devices({"CUDA_VISIBLE_DEVICES": "5, 2,GPU-1234-ab"})
    assignment = _assign("auto", 2, found)
    assert assignment == Assignment("cuda", ("5", "2"), by_slot=False)
    assert assignment.environment(1) == (("CUDA_VISIBLE_DEVICES", "2"),)


def test_auto_is_the_cpu_without_a_gpu_or_a_torch_that_could_use_it() -> None:
    assert _assign("auto", 2, VisibleDevices((), "nvidia-smi -L")) == Assignment("cpu")
    assert devices.assign("auto", 2, find_devices=_never, torch_has_cuda=lambda: False) == Assignment("cpu")
    assert devices.assign("cpu", 2, find_devices=_never, torch_has_cuda=lambda: True) == Assignment("cpu")
    assert devices.assign("cuda", 0, find_devices=_never, torch_has_cuda=lambda: True) == Assignment("cuda")


@pytest.mark.parametrize("device", ["cuda", "auto"])
def test_too_few_gpus_are_an_error_that_names_ranks_devices_and_the_fix(device: str) -> None:
    with pytest.raises(DeviceAssignmentError) as caught:
        _assign(device, 5)
    assert str(caught.value) == (
        f"--device {device} gives each rank a GPU of its own: 5 ranks are to run on this node and 4 GPUs are visible "
        "(0, 1, 2, 3), says nvidia-smi -L; lower --data-parallel-size-local, or --max-data-parallel-size, to 4, use a "
        "machine with more, or give --device cpu"
    )


def test_too_few_in_the_users_own_list() -> None:
    with pytest.raises(DeviceAssignmentError, match=r"1 GPU is visible \(3\), says CUDA_VISIBLE_DEVICES; .* list more"):
        _assign("cuda", 2, devices.find_devices({"CUDA_VISIBLE_DEVICES": "3"}))
    with pytest.raises(DeviceAssignmentError, match="0 GPUs are visible, says CUDA_VISIBLE_DEVICES; list more in"):
        _assign("cuda", 1, devices.find_devices({"CUDA_VISIBLE_DEVICES": ""}))


@pytest.mark.parametrize(
    ("value", "ids"),
    [
        ("", ()),
        ("0", ("0",)),
        ("1,0", ("1", "0")),
        ("0,-1,2", ("0",)),  # as CUDA does
        ("NoDevFiles", ()),
        ("0,0,1", ("0", "1")),
        ("GPU-8932f937-d72c,MIG-GPU-1/2/3", ("GPU-8932f937-d72c", "MIG-GPU-1/2/3")),
    ],
)
def test_the_variables_list(value: str, ids: tuple[str, ...]) -> None:
    assert devices.listed_devices(value) == ids


def test_a_gpu_in_instances_counts_as_its_instances() -> None:
    assert devices.smi_devices(SMI_LIST) == ("0", "MIG-33333333-cccc", "MIG-44444444-dddd", "2")
    assert devices.smi_devices("No devices found.\n") == ()


def test_without_nvidia_smi_device_files_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("nvidia3", "nvidia7", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    assert devices.device_files(tmp_path) == ("0", "1")
    assert devices.device_files(tmp_path / "missing") == ()

    def missing(*arguments: Any, **options: Any) -> None:
        raise FileNotFoundError("nvidia-smi")

    monkeypatch.setattr(subprocess, "run", missing)
    assert devices.find_devices({}).source == "/dev/nvidia*"


def test_nvidia_smi_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, 0, SMI_LIST, ""))
    assert devices.find_devices({}).ids == ("0", "MIG-33333333-cccc", "MIG-44444444-dddd", "2")
    # Installed, but the driver does not answer.
    monkeypatch.setattr(subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, 9, "failed", ""))
    assert devices.find_devices({}).ids == ()


@pytest.mark.parametrize(
    ("line", "is_built"),
    [
        ("cuda: Optional[str] = '12.1'", True),
        ("cuda = '12.1'", True),
        ("cuda: Optional[str] = None", False),
        ("__version__ = '2.4.0+cpu'\ncuda = None\nhip = '6.0'", False),
    ],
)
def test_what_torch_is_built_for_is_read_from_its_version_file(line: str, is_built: bool) -> None:
    assert devices.built_for_cuda(f"debug = False\n{line}\n") is is_built


def test_the_engines_are_told_and_see_only_their_own() -> None:
    options = serve_options("-dp 3 --device auto")
    places = replace(PLACES, assignment=Assignment("cuda", ("4", "MIG-a", "0"), by_slot=True))
    engines = plan.plan_engines(options, places)
    parent = {"CUDA_VISIBLE_DEVICES": "4,MIG-a,0,9", "CUDA_DEVICE_ORDER": "FASTEST_FIRST"}
    environments = [plan.child_environment(engine, parent, own_variables=()) for engine in engines]
    assert [environment["CUDA_VISIBLE_DEVICES"] for environment in environments] == ["4", "MIG-a", "0"]
    assert {environment["CUDA_DEVICE_ORDER"] for environment in environments} == {"PCI_BUS_ID"}
    assert all("--device cuda" in " ".join(engine.arguments) for engine in engines)
    (gateway,) = plan.plan_gateways(options, places)
    assert plan.child_environment(gateway, parent, own_variables=())["CUDA_VISIBLE_DEVICES"] == "4,MIG-a,0,9"


def test_on_cpus_nothing_is_hidden() -> None:
    places = replace(PLACES, assignment=Assignment("cpu"))
    (engine,) = plan.plan_engines(serve_options(""), places)
    assert "CUDA_VISIBLE_DEVICES" not in plan.child_environment(engine, {}, own_variables=())
    assert "--device cpu" in " ".join(engine.arguments)
