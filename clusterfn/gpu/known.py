"""What CUDA, PyTorch, NCCL and the driver say when they fail, by their exact texts: the table, and nothing else.

A row says what it is called, whether trying again can help, and one thing to do. "here": the same call may succeed a
little later in this process. "new process": this process cannot use CUDA any more or the card is bad, but the same
job may succeed when it is started again, best on another card. "never": it fails again in the same way.
Looked up on 2026-11-20, where `source` says. Read by `sorting`, from the top: the first row with a text that occurs.
"""

from __future__ import annotations

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

_OTHER_CARD = "start the job again, on another card if there is one; tell the administrator which card it was"
_NO_CARD = "ask for a card: gpus=1; a job with gpus=0 sees none"
_SEE_WHERE = "set CUDA_LAUNCH_BLOCKING=1 to see which call it was; this process cannot use CUDA any more"
_LESS = "use a smaller batch, or a card with more memory; get_recommended_batch_size says what fits"
_ADMIN = "ask the administrator: the machine's driver needs a restart or an update"


@dataclass(frozen=True)
class Known:
    """One failure that is known.

    Attributes:
        name: What its own makers call it.
        texts: Any of these in the message means it, as does a name of one word; exact, with upper and lower case.
        retry: Whether trying again can help: "here", "new process" or "never".
        advice: One thing to do.
        source: Where the text and its meaning stand.
        is_driver: Whether the machine's driver failed, rather than CUDA.
    """

    name: str
    texts: tuple[str, ...]
    retry: str
    advice: str
    source: str = _RUNTIME
    is_driver: bool = False

    def occurs_in(self, message: str) -> bool:
        """Whether a message says this."""
        if any(text in message for text in self.texts):
            return True
        return " " not in self.name and re.search(rf"\b{self.name}\b", message) is not None


TABLE: tuple[Known, ...] = (
    # Several processes and cards together: these messages quote the ones below.
    Known("collective operation timeout", ("Watchdog caught collective operation timeout",), NEW_PROCESS,
          "look for the rank that died or ran another step than the rest; the others only waited for it", _TORCH_NCCL),
    Known("NCCL communicator was aborted", ("NCCL communicator was aborted",), NEW_PROCESS,
          "look at the first rank that failed: this one was told to stop", _TORCH_NCCL),
    Known("ncclRemoteError", ("remote process exited or there was a network error",), NEW_PROCESS,
          "look at the log of the rank that went away", _NCCL),
    Known("ncclSystemError", ("unhandled system error",), NEW_PROCESS,
          "set NCCL_DEBUG=INFO; often NCCL_SOCKET_IFNAME names the wrong network, or /dev/shm is full", _NCCL),
    Known("ncclUnhandledCudaError", ("unhandled cuda error",), NEVER,
          "set NCCL_DEBUG=INFO: it names CUDA's own error", _NCCL),
    Known("ncclInvalidUsage", ("invalid usage (run with NCCL_DEBUG", "Duplicate GPU detected"), NEVER,
          "give each rank a card of its own: torch.cuda.set_device(LOCAL_RANK)", _NCCL),
    Known("port in use", ("The server socket has failed to listen on any local network address",), HERE,
          "let MASTER_PORT be a free port: another job of the node has this one",
          _TORCH + "torch/csrc/distributed/c10d/socket.cpp"),
    # Processes.
    Known("CUDA after fork", ("Cannot re-initialize CUDA in forked subprocess",), NEVER,
          "start processes by multiprocessing.get_context('spawn')", _TORCH_CUDA),
    Known("cudaErrorInvalidResourceHandle", ("invalid resource handle", "CUDA_ERROR_INVALID_HANDLE"), NEVER,
          "send tensors to other processes as tensor.cpu(): a CUDA tensor belongs to the process that made it"),
    # Memory.
    Known("cudaErrorMemoryAllocation",
          ("CUDA out of memory", "CUDA error: out of memory", "CUDA driver error: out of memory",
           "CUDA_ERROR_OUT_OF_MEMORY"), NEVER, _LESS,
          _TORCH + "c10/cuda/CUDACachingAllocator.cpp"),
    Known("CUBLAS_STATUS_ALLOC_FAILED", ("CUBLAS_STATUS_ALLOC_FAILED", "CUSOLVER_STATUS_ALLOC_FAILED"), NEVER,
          _LESS, _CUBLAS),
    Known("CUDNN_STATUS_ALLOC_FAILED", ("CUDNN_STATUS_ALLOC_FAILED",), NEVER, _LESS, _CUDNN),
    # Which card.
    Known("cudaErrorInvalidDevice", ("invalid device ordinal", "CUDA_ERROR_INVALID_DEVICE"), NEVER,
          "a job's cards are always cuda:0, cuda:1, …, as many as gpus= asks for"),
    Known("cudaErrorNoDevice",
          ("no CUDA-capable device is detected", "No CUDA GPUs are available", "CUDA_ERROR_NO_DEVICE"), NEVER,
          _NO_CARD),
    Known("cudaErrorDevicesUnavailable", ("CUDA-capable device(s) is/are busy or unavailable",), HERE,
          "another process has the card for itself alone: wait, or see who it is with nvidia-smi"),
    Known("cudaErrorPeerAccessUnsupported", ("peer access is not supported between these two devices",), NEVER,
          "set NCCL_P2P_DISABLE=1, or copy through the CPU"),
    # Code for the card.
    Known("cudaErrorNoKernelImageForDevice",
          ("no kernel image is available for execution on the device", "CUDA_ERROR_NO_BINARY_FOR_GPU"), NEVER,
          "install a build that has code for this card: torch.cuda.get_arch_list() says for which it has"),
    Known("cudaErrorUnsupportedPtxVersion",
          ("the provided PTX was compiled with an unsupported toolchain", "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"), NEVER,
          "the program was built with a newer CUDA than the driver knows: use a build for an older CUDA"),
    Known("cudaErrorInvalidDeviceFunction", ("CUDA error: invalid device function",), NEVER,
          "an extension was built for other cards: build it again for this one"),
    Known("needs newer cards", ("is only supported on CUDA devices with compute capability",), NEVER,
          "choose a newer card: supports_fp8 says whether one can",
          _TORCH + "aten/src/ATen/native/cuda/Blas.cpp"),
    # The driver.
    Known("cudaErrorInsufficientDriver",
          ("CUDA driver version is insufficient for CUDA runtime version",
           "The NVIDIA driver on your system is too old"), NEVER,
          "use a build for an older CUDA, or ask the administrator for a newer driver", _TORCH_COUNT, True),
    Known("cudaErrorSystemDriverMismatch", ("system has unsupported display driver / cuda driver combination",),
          NEVER, _ADMIN, _RUNTIME, True),
    Known("cudaErrorCompatNotSupportedOnDevice", ("forward compatibility was attempted on non supported HW",), NEVER,
          "take CUDA's compat folder out of LD_LIBRARY_PATH, or ask the administrator to restart the machine",
          _RUNTIME, True),
    Known("cudaErrorStubLibrary", ("CUDA driver is a stub library",), NEVER,
          "take CUDA's stubs folder out of LD_LIBRARY_PATH", _RUNTIME, True),
    Known("cudaErrorSystemNotReady", ("system not yet initialized", "CUDA_ERROR_SYSTEM_NOT_READY"), NEW_PROCESS,
          "ask the administrator whether nvidia-fabricmanager runs", _RUNTIME, True),
    Known("no NVIDIA driver", ("Found no NVIDIA driver on your system",), NEVER,
          "run this where a card is: on a login node there is none", _TORCH_COUNT, True),
    Known("libcuda is missing",
          ("libcuda.so.1: cannot open shared object file", "libcuda.so: cannot open shared object file"), NEVER,
          "run this where a card is: the driver brings libcuda, no package does",
          "https://docs.nvidia.com/deploy/cuda-compatibility/", True),
    Known("NVML_ERROR_LIB_RM_VERSION_MISMATCH", ("Driver/library version mismatch",), NEVER, _ADMIN, _NVML, True),
    Known("NVML_ERROR_LIBRARY_NOT_FOUND", ("NVML Shared Library Not Found", "libnvidia-ml.so.1: cannot open"), NEVER,
          "run this where a card is: the driver brings NVML", _NVML, True),
    Known("NVML_ERROR_DRIVER_NOT_LOADED", ("couldn't communicate with the NVIDIA driver", "Driver Not Loaded"), NEVER,
          _ADMIN, _NVML, True),
    Known("NVML_ERROR_GPU_IS_LOST", ("GPU is lost", "GPU Is Lost", "has fallen off the bus"), NEW_PROCESS, _OTHER_CARD,
          _NVML, True),
    Known("device handle", ("Unable to determine the device handle for",), NEW_PROCESS, _OTHER_CARD, _NVML, True),
    Known("No devices were found", ("No devices were found",), NEVER, _NO_CARD, _NVML, True),
    # PyTorch as installed.
    Known("PyTorch without CUDA", ("Torch not compiled with CUDA enabled",), NEVER,
          "install a build of PyTorch for CUDA: this one is for CPUs", _TORCH_CUDA),
    Known("saved on a card", ("Attempting to deserialize object on a CUDA device",), NEVER,
          "torch.load(..., map_location='cpu')", _TORCH + "torch/serialization.py"),
    # The hardware.
    Known("cudaErrorECCUncorrectable", ("uncorrectable ECC error encountered", "CUDA_ERROR_ECC_UNCORRECTABLE"),
          NEW_PROCESS, _OTHER_CARD),
    Known("cudaErrorNvlinkUncorrectable", ("uncorrectable NVLink error detected during the execution",), NEW_PROCESS,
          _OTHER_CARD),
    Known("cudaErrorContained", ("Invalid access of peer GPU memory over nvlink or a hardware error",), NEW_PROCESS,
          _OTHER_CARD),
    Known("cudaErrorHardwareStackError", ("CUDA error: hardware stack error",), NEW_PROCESS,
          _OTHER_CARD),
    # The program.
    Known("cudaErrorAssert", ("device-side assert triggered", "CUDA_ERROR_ASSERT"), NEVER,
          "mostly an index out of range (a label beyond the classes, a token beyond the vocabulary); " + _SEE_WHERE),
    Known("cudaErrorIllegalAddress", ("an illegal memory access was encountered", "CUDA_ERROR_ILLEGAL_ADDRESS"), NEVER,
          _SEE_WHERE),
    Known("cudaErrorMisalignedAddress", ("CUDA error: misaligned address", "CUDA_ERROR_MISALIGNED_ADDRESS"), NEVER,
          _SEE_WHERE),
    Known("cudaErrorIllegalInstruction", ("an illegal instruction was encountered", "CUDA_ERROR_ILLEGAL_INSTRUCTION"),
          NEVER, _SEE_WHERE),
    Known("cudaErrorLaunchFailure", ("unspecified launch failure", "CUDA_ERROR_LAUNCH_FAILED"), NEVER, _SEE_WHERE),
    Known("cudaErrorLaunchOutOfResources", ("too many resources requested for launch",), NEVER,
          "launch fewer threads in a block: the kernel needs too many registers"),
    Known("cudaErrorLaunchTimeout", ("the launch timed out and was terminated", "CUDA_ERROR_LAUNCH_TIMEOUT"), NEVER,
          "use a card without a display: there the driver ends long kernels"),
    Known("CUBLAS_STATUS_EXECUTION_FAILED", ("CUBLAS_STATUS_EXECUTION_FAILED",), NEVER, _SEE_WHERE, _CUBLAS),
    Known("CUBLAS_STATUS_NOT_INITIALIZED", ("CUBLAS_STATUS_NOT_INITIALIZED",), NEVER,
          "mostly too little memory, or an error before this one: set CUDA_LAUNCH_BLOCKING=1", _CUBLAS),
    Known("CUDNN_STATUS_NOT_INITIALIZED", ("CUDNN_STATUS_NOT_INITIALIZED",), NEVER,
          "mostly too little memory, or a cuDNN of another CUDA in LD_LIBRARY_PATH", _CUDNN),
    Known("CUDNN_STATUS_EXECUTION_FAILED", ("CUDNN_STATUS_EXECUTION_FAILED",), NEVER, _SEE_WHERE, _CUDNN),
    # What has no cause of its own stands last.
    Known("cudaErrorMpsServerNotReady", ("MPS server is not ready to accept new MPS client requests",), HERE,
          "wait: the MPS server starts or recovers"),
    Known("cudaErrorMpsConnectionFailed", ("MPS client failed to connect to the MPS control daemon",), NEW_PROCESS,
          "ask the administrator whether nvidia-cuda-mps-control runs"),
    Known("cudaErrorInitializationError",
          ("CUDA error: initialization error", "CUDA driver initialization failed"), NEW_PROCESS,
          "mostly a fork after CUDA was used: start processes by spawn; else start the job again"),
    Known("cudaErrorUnknown",
          ("CUDA error: unknown error", "CUDA driver error: unknown error", "CUDA unknown error - this may be due to"),
          NEW_PROCESS, "start the job again; if it stays, " + _ADMIN, _TORCH_COUNT),
)  # fmt: skip
