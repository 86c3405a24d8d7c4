"""The table of what CUDA, PyTorch, NCCL and the driver say when they fail, by their exact texts.

A row says what it is called, whether trying again can help, and one thing to do. "here": the same call may succeed a
little later in this process. "new process": this process cannot use CUDA any more, or the GPU is bad. The job may
succeed when it is restarted, best on another GPU. "never": it fails again in the same way. Looked up on 2026-11-20,
where `source` says. The worker, the client and `clusterfn.gpu` read it.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

HERE, NEW_PROCESS, NEVER = "here", "new process", "never"

_RUNTIME = "https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html"
_CUBLAS = "https://docs.nvidia.com/cuda/cublas/#cublasstatus-t"
_CUDNN = "https://docs.nvidia.com/deeplearning/cudnn/latest/api/cudnn-graph-library.html"
_NVML = "https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceEnumvs.html"
_NCCL = "https://github.com/NVIDIA/nccl/blob/master/src/init.cc"
_TORCH = "https://github.com/pytorch/pytorch/blob/main/"
_TORCH_CUDA = _TORCH + "torch/cuda/__init__.py"
_TORCH_COUNT = _TORCH + "c10/cuda/CUDAFunctions.cpp"
_TORCH_NCCL = _TORCH + "torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp"

_OTHER_GPU = "restart the job, on another GPU if possible; report this GPU to the administrator"
_NO_GPU = "request a GPU with gpus=1; a job with gpus=0 sees none"
_SEE_WHERE = "set CUDA_LAUNCH_BLOCKING=1 to find the failing call; this process can no longer use CUDA"
_LESS = "use a smaller batch, or a GPU with more memory; get_recommended_batch_size says what fits"
_ADMIN = "ask the administrator: the machine's driver needs a restart or an update"


@dataclass(frozen=True)
class Cause:
    """One known cause of failure.

    Attributes:
        name: What its own makers call it.
        texts: Any of these in the message means it, as does a name of one word; exact, with upper and lower case.
        retry: Whether trying again can help: "here", "new process" or "never".
        advice: One thing to do.
        source: Where the text and its meaning are documented.
        is_driver: Whether the machine's driver failed, rather than CUDA.
    """

    name: str
    texts: tuple[str, ...]
    retry: str
    advice: str
    source: str = _RUNTIME
    is_driver: bool = False


TABLE: tuple[Cause, ...] = (
    # Several processes and GPUs together: these messages quote the ones below.
    Cause("collective operation timeout", ("Watchdog caught collective operation timeout",), NEW_PROCESS,
          "look for the rank that died or fell out of step; the others only waited for it", _TORCH_NCCL),
    Cause("NCCL communicator was aborted", ("NCCL communicator was aborted",), NEW_PROCESS,
          "look at the first rank that failed: it made this one stop", _TORCH_NCCL),
    Cause("ncclRemoteError", ("remote process exited or there was a network error",), NEW_PROCESS,
          "read the log of the rank that disappeared", _NCCL),
    Cause("ncclSystemError", ("unhandled system error",), NEW_PROCESS,
          "set NCCL_DEBUG=INFO; often NCCL_SOCKET_IFNAME names the wrong network, or /dev/shm is full", _NCCL),
    Cause("ncclUnhandledCudaError", ("unhandled cuda error",), NEVER,
          "set NCCL_DEBUG=INFO: it names CUDA's own error", _NCCL),
    Cause("ncclInvalidUsage", ("invalid usage (run with NCCL_DEBUG", "Duplicate GPU detected"), NEVER,
          "give each rank a GPU of its own: torch.cuda.set_device(LOCAL_RANK)", _NCCL),
    Cause("port in use", ("The server socket has failed to listen on any local network address",), HERE,
          "set MASTER_PORT to a free port: another job on the node uses this one",
          _TORCH + "torch/csrc/distributed/c10d/socket.cpp"),
    # Processes.
    Cause("CUDA after fork", ("Cannot re-initialize CUDA in forked subprocess",), NEVER,
          "start processes with multiprocessing.get_context('spawn')", _TORCH_CUDA),
    Cause("cudaErrorInvalidResourceHandle", ("invalid resource handle", "CUDA_ERROR_INVALID_HANDLE"), NEVER,
          "send tensors to other processes as tensor.cpu(): a CUDA tensor belongs to the process that made it"),
    # Memory.
    Cause("cudaErrorMemoryAllocation",
          ("CUDA out of memory", "CUDA error: out of memory", "CUDA driver error: out of memory",
           "CUDA_ERROR_OUT_OF_MEMORY"), NEVER, _LESS,
          _TORCH + "c10/cuda/CUDACachingAllocator.cpp"),
    Cause("CUBLAS_STATUS_ALLOC_FAILED", ("CUBLAS_STATUS_ALLOC_FAILED", "CUSOLVER_STATUS_ALLOC_FAILED"), NEVER,
          _LESS, _CUBLAS),
    # Which GPU.
    Cause("cudaErrorInvalidDevice", ("invalid device ordinal", "CUDA_ERROR_INVALID_DEVICE"), NEVER,
          "a job's GPUs are always cuda:0, cuda:1, …, as many as gpus= asks for"),
    Cause("cudaErrorNoDevice",
          ("no CUDA-capable device is detected", "No CUDA GPUs are available", "CUDA_ERROR_NO_DEVICE"), NEVER,
          _NO_GPU),
    Cause("cudaErrorDevicesUnavailable", ("CUDA-capable device(s) is/are busy or unavailable",), HERE,
          "another process uses the GPU exclusively: wait, or find it with nvidia-smi"),
    # Code for the GPU.
    Cause("cudaErrorNoKernelImageForDevice",
          ("no kernel image is available for execution on the device", "CUDA_ERROR_NO_BINARY_FOR_GPU"), NEVER,
          "install a build with code for this GPU: torch.cuda.get_arch_list() lists what a build supports"),
    Cause("cudaErrorUnsupportedPtxVersion",
          ("the provided PTX was compiled with an unsupported toolchain", "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"), NEVER,
          "the program was built with a newer CUDA than the driver supports: use a build for an older CUDA"),
    # The driver.
    Cause("cudaErrorInsufficientDriver",
          ("CUDA driver version is insufficient for CUDA runtime version",
           "The NVIDIA driver on your system is too old"), NEVER,
          "use a build for an older CUDA, or ask the administrator for a newer driver", _TORCH_COUNT, True),
    Cause("cudaErrorSystemDriverMismatch", ("system has unsupported display driver / cuda driver combination",),
          NEVER, _ADMIN, _RUNTIME, True),
    Cause("cudaErrorSystemNotReady", ("system not yet initialized", "CUDA_ERROR_SYSTEM_NOT_READY"), NEW_PROCESS,
          "ask the administrator whether nvidia-fabricmanager is running", _RUNTIME, True),
    Cause("no NVIDIA driver", ("Found no NVIDIA driver on your system",), NEVER,
          "run this on a machine with a GPU: login nodes have none", _TORCH_COUNT, True),
    Cause("libcuda is missing",
          ("libcuda.so.1: cannot open shared object file", "libcuda.so: cannot open shared object file"), NEVER,
          "run this on a machine with a GPU: libcuda comes with the driver, not with a package",
          "https://docs.nvidia.com/deploy/cuda-compatibility/", True),
    Cause("NVML_ERROR_LIB_RM_VERSION_MISMATCH", ("Driver/library version mismatch",), NEVER, _ADMIN, _NVML, True),
    Cause("NVML_ERROR_DRIVER_NOT_LOADED", ("couldn't communicate with the NVIDIA driver", "Driver Not Loaded"), NEVER,
          _ADMIN, _NVML, True),
    Cause("NVML_ERROR_GPU_IS_LOST", ("GPU is lost", "GPU Is Lost", "has fallen off the bus"), NEW_PROCESS, _OTHER_GPU,
          _NVML, True),
    Cause("device handle", ("Unable to determine the device handle for",), NEW_PROCESS, _OTHER_GPU, _NVML, True),
    Cause("No devices were found", ("No devices were found",), NEVER, _NO_GPU, _NVML, True),
    # PyTorch as installed.
    Cause("PyTorch without CUDA", ("Torch not compiled with CUDA enabled",), NEVER,
          "install a build of PyTorch for CUDA: this one is for CPUs", _TORCH_CUDA),
    Cause("saved on a GPU", ("Attempting to deserialize object on a CUDA device",), NEVER,
          "torch.load(..., map_location='cpu')", _TORCH + "torch/serialization.py"),
    # The hardware.
    Cause("cudaErrorECCUncorrectable", ("uncorrectable ECC error encountered", "CUDA_ERROR_ECC_UNCORRECTABLE"),
          NEW_PROCESS, _OTHER_GPU),
    # The program.
    Cause("cudaErrorAssert", ("device-side assert triggered", "CUDA_ERROR_ASSERT"), NEVER,
          "usually an index out of range (a label beyond the classes, a token beyond the vocabulary); " + _SEE_WHERE),
    Cause("cudaErrorIllegalAddress", ("an illegal memory access was encountered", "CUDA_ERROR_ILLEGAL_ADDRESS"), NEVER,
          _SEE_WHERE),
    Cause("cudaErrorLaunchFailure", ("unspecified launch failure", "CUDA_ERROR_LAUNCH_FAILED"), NEVER, _SEE_WHERE),
    Cause("cudaErrorLaunchOutOfResources", ("too many resources requested for launch",), NEVER,
          "launch fewer threads in a block: the kernel needs too many registers"),
    Cause("CUBLAS_STATUS_EXECUTION_FAILED", ("CUBLAS_STATUS_EXECUTION_FAILED",), NEVER, _SEE_WHERE, _CUBLAS),
    Cause("CUBLAS_STATUS_NOT_INITIALIZED", ("CUBLAS_STATUS_NOT_INITIALIZED",), NEVER,
          "usually too little memory, or an earlier error: set CUDA_LAUNCH_BLOCKING=1", _CUBLAS),
    Cause("CUDNN_STATUS_NOT_INITIALIZED", ("CUDNN_STATUS_NOT_INITIALIZED",), NEVER,
          "usually too little memory, or a cuDNN for another CUDA in LD_LIBRARY_PATH", _CUDNN),
    Cause("CUDNN_STATUS_EXECUTION_FAILED", ("CUDNN_STATUS_EXECUTION_FAILED",), NEVER, _SEE_WHERE, _CUDNN),
    # What has no cause of its own comes last.
    Cause("cudaErrorInitializationError",
          ("CUDA error: initialization error", "CUDA driver initialization failed"), NEW_PROCESS,
          "usually a fork after CUDA was used: start processes with spawn; otherwise restart the job"),
    Cause("cudaErrorUnknown",
          ("CUDA error: unknown error", "CUDA driver error: unknown error", "CUDA unknown error - this may be due to"),
          NEW_PROCESS, "restart the job; if the error persists, " + _ADMIN, _TORCH_COUNT),
)  # fmt: skip


def message_of(error: BaseException) -> str:
    """Return an exception's text; "" where its own `__str__` fails."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - the error's own __str__, which may raise anything
        return ""


@functools.lru_cache(maxsize=256)
def find_known_error(text: str) -> Cause | None:
    """Return the first row of the table that occurs in a message; None if none does."""
    for row in TABLE:
        if any(part in text for part in row.texts):
            return row
        if " " not in row.name and re.search(rf"\b{row.name}\b", text):
            return row
    return None
