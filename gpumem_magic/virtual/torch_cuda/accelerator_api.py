"""What torch.accelerator answers while the virtual GPU is on: the same as torch.cuda."""

from __future__ import annotations

from typing import Any, NoReturn, Protocol

import torch


class CudaFunctions(Protocol):
    """What is asked of the functions below torch.cuda."""

    def _cuda_setDevice(self, index: int) -> None: ...  # noqa: N802 - torch's names, here and below
    def _cuda_exchangeDevice(self, index: int) -> int: ...  # noqa: N802
    def _cuda_synchronize(self) -> None: ...
    def _cuda_emptyCache(self) -> None: ...  # noqa: N802
    def _cuda_memoryStats(self, device: int) -> dict[str, Any]: ...  # noqa: N802
    def _cuda_resetAccumulatedMemoryStats(self, device: int) -> None: ...  # noqa: N802
    def _cuda_resetPeakMemoryStats(self, device: int) -> None: ...  # noqa: N802
    def memory(self) -> tuple[int, int]:
        """Free and total bytes."""


class AcceleratorApi:
    """The functions of torch._C below torch.accelerator: the same answers under other names."""

    def __init__(self, cuda: CudaFunctions) -> None:
        self._cuda = cuda

    def _accelerator_getAccelerator(self) -> torch.device:  # noqa: N802
        return torch.device("cuda")

    def _accelerator_getDeviceIndex(self) -> int:  # noqa: N802
        return 0

    def _accelerator_setDeviceIndex(self, index: int) -> None:  # noqa: N802
        self._cuda._cuda_setDevice(index)

    def _accelerator_exchangeDevice(self, index: int) -> int:  # noqa: N802
        return self._cuda._cuda_exchangeDevice(index)

    def _accelerator_maybeExchangeDevice(self, index: int) -> int:  # noqa: N802
        return self._cuda._cuda_exchangeDevice(index)

    def _accelerator_getStream(self, index: int) -> Any:  # noqa: N802
        return torch.cuda.current_stream()

    def _accelerator_setStream(self, stream: Any) -> None:  # noqa: N802
        torch.cuda.set_stream(stream)

    def _accelerator_synchronizeDevice(self, index: int) -> None:  # noqa: N802
        self._cuda._cuda_synchronize()

    def _accelerator_isAllocatorInitialized(self) -> bool:  # noqa: N802
        return True

    def _accelerator_emptyCache(self) -> None:  # noqa: N802
        self._cuda._cuda_emptyCache()

    def _accelerator_emptyHostCache(self) -> None:  # noqa: N802
        """Pinned memory is not cached."""

    def _accelerator_getDeviceCapability(self, index: int) -> NoReturn:  # noqa: N802
        raise NotImplementedError(
            "torch.accelerator.get_device_capability is not covered by the virtual GPU; "
            "torch.cuda.get_device_capability is"
        )

    def _accelerator_getDeviceStats(self, index: int) -> dict[str, Any]:  # noqa: N802
        return self._cuda._cuda_memoryStats(index)

    def _accelerator_resetAccumulatedStats(self, index: int) -> None:  # noqa: N802
        self._cuda._cuda_resetAccumulatedMemoryStats(index)

    def _accelerator_resetPeakStats(self, index: int) -> None:  # noqa: N802
        self._cuda._cuda_resetPeakMemoryStats(index)

    def _accelerator_getMemoryInfo(self, index: int) -> tuple[int, int]:  # noqa: N802
        return self._cuda.memory()
