"""Which GPU each local rank gets. The launcher holds no CUDA context and imports no torch: it only counts."""

from __future__ import annotations

import importlib.util
import re
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

VISIBLE_VARIABLE = "CUDA_VISIBLE_DEVICES"
# CUDA numbers the fastest GPU 0 unless told otherwise; nvidia-smi numbers them by their slots.
ORDER_VARIABLE = "CUDA_DEVICE_ORDER"
_SMI_TIMEOUT_S = 30.0


class DeviceAssignmentError(Exception):
    """The ranks of this node cannot get a GPU each. The message names ranks, devices and the fix."""


@dataclass(frozen=True, slots=True)
class VisibleDevices:
    """What this node's engines may use, as CUDA_VISIBLE_DEVICES spells it, and where that is known from."""

    ids: tuple[str, ...]
    source: str  # for messages
    from_variable: bool = False


@dataclass(frozen=True, slots=True)
class Assignment:
    """`device` is what the engines are told; `ids` has an entry per local rank, or is empty on CPUs."""

    device: str
    ids: tuple[str, ...] = ()
    by_slot: bool = False  # whether the ids count slots

    def environment(self, index: int) -> tuple[tuple[str, str], ...]:
        """Variables of the local rank with that index."""
        if not self.ids:
            return ()
        order = ((ORDER_VARIABLE, "PCI_BUS_ID"),) if self.by_slot else ()
        return ((VISIBLE_VARIABLE, self.ids[index]), *order)


def assign(
    device: str,
    num_local_ranks: int,
    *,
    find_devices: Callable[[], VisibleDevices],
    torch_has_cuda: Callable[[], bool],
) -> Assignment:
    """One GPU per rank, in order. Raises DeviceAssignmentError.

    `device` is cpu, cuda, or auto: cuda where torch is built for it and a GPU is visible. On auto with too few GPUs
    nobody is silently put on the CPU, where it would be a hundred times slower than the others.
    """
    if device == "cpu" or num_local_ranks == 0 or (device == "auto" and not torch_has_cuda()):
        return Assignment("cpu" if device == "auto" else device)
    devices = find_devices()
    if device == "auto" and not devices.ids:
        return Assignment("cpu")
    if len(devices.ids) < num_local_ranks:
        raise DeviceAssignmentError(_too_few(device, num_local_ranks, devices))
    return Assignment("cuda", devices.ids[:num_local_ranks], by_slot=not devices.from_variable)


def _too_few(device: str, num_local_ranks: int, devices: VisibleDevices) -> str:
    found = f"{len(devices.ids)} GPUs are" if len(devices.ids) != 1 else "1 GPU is"
    listed = f" ({', '.join(devices.ids)})" if devices.ids else ""
    fewer = (
        f"lower --data-parallel-size-local, or --max-data-parallel-size, to {len(devices.ids)}, " if devices.ids else ""
    )
    more = f"list more in {VISIBLE_VARIABLE}" if devices.from_variable else "use a machine with more"
    return (
        f"--device {device} gives each rank a GPU of its own: {num_local_ranks} ranks are to run on this node and "
        f"{found} visible{listed}, says {devices.source}; {fewer}{more}, or give --device cpu"
    )


def find_devices(environment: Mapping[str, str]) -> VisibleDevices:
    """The GPUs that children of a process with this environment may use."""
    listed = environment.get(VISIBLE_VARIABLE)
    if listed is not None:
        return VisibleDevices(listed_devices(listed), VISIBLE_VARIABLE, from_variable=True)
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=_SMI_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return VisibleDevices(device_files(Path("/dev")), "/dev/nvidia*")
    return VisibleDevices(smi_devices(done.stdout) if done.returncode == 0 else (), "nvidia-smi -L")


def listed_devices(value: str) -> tuple[str, ...]:
    """The entries of CUDA_VISIBLE_DEVICES. As CUDA does, an entry that is no device ends the list."""
    ids: list[str] = []
    for part in value.split(","):
        entry = part.strip()
        if not re.fullmatch(r"\d+|(GPU|MIG)-[\w/-]+", entry):
            break
        if entry not in ids:
            ids.append(entry)
    return tuple(ids)


def smi_devices(text: str) -> tuple[str, ...]:
    """What `nvidia-smi -L` lists. A GPU that is cut into MIG instances counts as those: CUDA can use nothing else."""
    ids: list[str] = []
    whole = ""  # the last line's GPU, until an instance of it follows
    for line in text.splitlines():
        if gpu := re.match(r"GPU (\d+):", line):
            ids.append(gpu[1])
            whole = gpu[1]
        elif instance := re.search(r"^\s+MIG .*UUID: (MIG-[\w/-]+)", line):
            if ids and ids[-1] == whole:
                ids.pop()
            whole = ""
            ids.append(instance[1])
    return tuple(ids)


def device_files(directory: Path) -> tuple[str, ...]:
    """GPUs by their device files; where containers have no nvidia-smi, they have these."""
    try:
        names = [path.name for path in directory.iterdir()]
    except OSError:
        return ()
    count = sum(1 for name in names if re.fullmatch(r"nvidia\d+", name))
    # In a container the files keep the host's numbers, while CUDA counts from 0.
    return tuple(str(index) for index in range(count))


def torch_is_built_for_cuda() -> bool:
    """Whether the installed torch could use a GPU, read from its version file: importing it takes seconds."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return False
    try:
        text = (Path(spec.origin).parent / "version.py").read_text()
    except OSError:
        return False
    return built_for_cuda(text)


def built_for_cuda(version_file: str) -> bool:
    return re.search(r"^cuda\b[^=]*=\s*['\"]\d", version_file, re.MULTILINE) is not None
