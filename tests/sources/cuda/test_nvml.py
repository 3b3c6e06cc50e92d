# ruff: noqa: N802, N818 - the driver's own names
from __future__ import annotations

import os
import sys
import types

import pytest

from gpumem_magic.sources.cuda import nvml

GIB = 1 << 30
UUID = "GPU-aaaa-1"


class NVMLError(Exception):
    pass


class NVMLErrorNotSupported(NVMLError):
    pass


class FakeNvml(types.ModuleType):
    """A driver with two devices; tests make single functions fail."""

    def __init__(self):
        super().__init__("pynvml")
        self.NVMLError = NVMLError
        self.NVMLError_NotSupported = NVMLErrorNotSupported
        self.NVML_ERROR_NOT_FOUND = 6
        self.nvmlMemory_v2 = 2
        self.calls = []
        self.uuids = [UUID, "GPU-bbbb-2"]
        self.names = ["Tesla T4", "Tesla T4"]
        self.compute = [(os.getpid(), 1 * GIB), (77, 2 * GIB)]
        self.graphics = []
        self.v1 = types.SimpleNamespace(total=16 * GIB, used=4 * GIB)
        self.v2 = types.SimpleNamespace(total=16 * GIB, used=3 * GIB)
        self.mig = False

    def nvmlInit(self):
        self.calls.append("init")

    def nvmlShutdown(self):
        self.calls.append("shutdown")

    def nvmlDeviceGetCount(self):
        return len(self.uuids)

    def nvmlDeviceGetHandleByIndex(self, index):
        if index >= len(self.uuids):
            raise NVMLError("Invalid Argument")
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid):
        self.calls.append(uuid)
        if uuid not in self.uuids:
            raise NVMLError("Not Found")
        return self.uuids.index(uuid)

    def nvmlDeviceGetUUID(self, handle):
        return self.uuids[handle]

    def nvmlDeviceGetName(self, handle):
        return self.names[handle]

    def nvmlDeviceGetCudaComputeCapability(self, handle):
        return (7, 5)

    def nvmlDeviceIsMigDeviceHandle(self, handle):
        return self.uuids[handle].startswith("MIG-")

    def nvmlDeviceGetMigMode(self, handle):
        return [int(self.mig), int(self.mig)]

    def nvmlDeviceGetMemoryInfo(self, handle, version=None):
        return self.v2 if version == 2 else self.v1

    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        return [types.SimpleNamespace(pid=p, usedGpuMemory=u) for p, u in self.compute]

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle):
        return [types.SimpleNamespace(pid=p, usedGpuMemory=u) for p, u in self.graphics]

    def nvmlSystemGetProcessName(self, pid):
        return f"process-{pid}".encode()

    def refuse(self, function, error=NVMLErrorNotSupported):
        def fail(*args, **kwargs):
            raise error("Not Supported")

        setattr(self, function, fail)


@pytest.fixture
def driver(monkeypatch):
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    return fake


def test_a_device_as_the_driver_sees_it(driver):
    use = nvml.read_device(UUID)
    assert (use.name, use.capability) == ("Tesla T4", (7, 5))
    assert (use.total, use.used, use.this_process) == (16 * GIB, 3 * GIB, 1 * GIB)
    assert use.processes[1] == nvml.Process(77, "process-77", 2 * GIB)
    assert use.unknown == {}
    assert driver.calls.count("init") == driver.calls.count("shutdown") == 1


def test_a_device_by_index_bare_uuid_or_the_beginning_of_one(driver):
    assert nvml.read_device(1).used == 3 * GIB
    assert nvml.read_device("aaaa-1").used == 3 * GIB
    assert nvml.read_device("GPU-bb").used == 3 * GIB


def test_a_device_that_the_driver_does_not_know(driver):
    use = nvml.read_device("GPU-cccc")
    assert use.used is None
    assert "GPU-cccc" in use.unknown["used"]
    assert set(use.unknown) == {"name", "capability", "total", "used", "processes", "this_process"}
    assert "GPU" in nvml.read_device("GPU-").unknown["used"]  # the beginning of two
    assert nvml.read_device(9).used is None


def test_a_connection_is_opened_once_and_handles_are_remembered(driver):
    connection = nvml.Driver()
    connection.read_device(UUID)
    connection.read_device(UUID)
    assert driver.calls == ["init", UUID]
    connection.close()
    connection.close()
    assert driver.calls == ["init", UUID, "shutdown"]
    connection.read_device(UUID)
    assert driver.calls[3:] == ["init", UUID]


def test_without_the_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    use = nvml.read_device(0)
    assert use.used is None
    assert "nvidia-ml-py is not installed" in use.unknown["used"]


def test_without_a_driver(driver):
    driver.refuse("nvmlInit", NVMLError)
    use = nvml.read_device(0)
    assert use.unknown["this_process"] == "the NVIDIA driver does not answer (Not Supported)"
    assert "shutdown" not in driver.calls


def test_old_libraries_and_drivers_know_only_the_first_version(driver):
    del driver.nvmlMemory_v2
    assert nvml.read_device(0).used == 4 * GIB


def test_unified_memory_has_no_numbers_of_its_own(driver):
    driver.refuse("nvmlDeviceGetMemoryInfo")
    use = nvml.read_device(0)
    assert use.used is None
    assert "shares the host's memory" in use.unknown["used"]
    assert use.this_process == 1 * GIB


def test_a_device_in_parts_is_not_ours_alone(driver):
    driver.mig = True
    use = nvml.read_device(UUID)
    assert (use.used, use.total) == (None, None)
    assert "MIG" in use.unknown["used"]


def test_a_part_of_a_device_is_read_by_its_own_uuid(driver):
    driver.mig = True
    driver.uuids[1] = "MIG-bbbb-2"
    assert nvml.read_device("bbbb-2").used == 3 * GIB


def test_in_a_container_processes_have_other_ids(driver):
    driver.compute = [(999_999, 2 * GIB)]
    use = nvml.read_device(0)
    assert use.this_process is None
    assert "container" in use.unknown["this_process"]
    assert use.used == 3 * GIB


def test_windows_and_wsl_hide_what_a_process_uses(driver):
    driver.compute = [(os.getpid(), None)]
    use = nvml.read_device(0)
    assert use.this_process is None
    assert "WSL" in use.unknown["this_process"]


def test_a_driver_that_lists_no_processes(driver):
    driver.refuse("nvmlDeviceGetComputeRunningProcesses")
    use = nvml.read_device(0)
    assert use.processes == ()
    assert use.unknown["this_process"] == use.unknown["processes"]


def test_numbers_that_are_not_there(driver):
    driver.v2 = types.SimpleNamespace(total=16 * GIB, used=None)
    use = nvml.read_device(0)
    assert (use.total, use.used) == (16 * GIB, None)
    assert use.unknown == {"used": "the driver answers N/A"}


@pytest.mark.parametrize(
    ("visible", "index", "found"),
    [
        (None, 1, 1),
        ("1,0", 0, 1),
        ("GPU-bbbb-2, GPU-aaaa-1", 1, UUID),
        ("MIG-x", 0, "MIG-x"),
        ("0", 3, None),
        ("", 0, None),
        ("-1", 0, "-1"),
    ],
)
def test_which_device_it_is_before_cuda_runs(driver, monkeypatch, visible, index, found):
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert nvml.Driver().resolve_visible(index) == found


def test_unlike_devices_are_numbered_otherwise_by_cuda(driver, monkeypatch):
    driver.names[1] = "Tesla V100"
    assert nvml.Driver().resolve_visible(0) is None
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert nvml.Driver().resolve_visible(0) == 0
