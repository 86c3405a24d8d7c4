"""How errors of CUDA are told apart, explained and passed on."""

from __future__ import annotations

import subprocess
import sys

import pytest

from clusterfn import ConfigError, gpu

pytest_plugins = ["tests.fakes.gpu"]
pytestmark = pytest.mark.usefixtures("no_gpu")
# As they were seen in public reports and in the sources of PyTorch and NCCL, typed here once more.
HERE, NEW_PROCESS, NEVER = "here", "new process", "never"
SEEN = [
    ("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 47.54 GiB",
     "cudaErrorMemoryAllocation", NEVER),
    ("CUDA error: out of memory\nCUDA kernel errors might", "cudaErrorMemoryAllocation", NEVER),
    ("CUDA error: invalid device ordinal", "cudaErrorInvalidDevice", NEVER),
    ("CUDA error: no kernel image is available for execution on the device", "cudaErrorNoKernelImageForDevice", NEVER),
    ("CUDA driver version is insufficient for CUDA runtime version", "cudaErrorInsufficientDriver", NEVER),
    ("The NVIDIA driver on your system is too old (found", "cudaErrorInsufficientDriver", NEVER),
    ("CUDA error: invalid resource handle", "cudaErrorInvalidResourceHandle", NEVER),
    ("CUDA error: uncorrectable ECC error encountered", "cudaErrorECCUncorrectable", NEW_PROCESS),
    ("runtime error (39) : uncorrectable ECC error encountered at /p", "cudaErrorECCUncorrectable", NEW_PROCESS),
    ("CUDA error: unspecified launch failure", "cudaErrorLaunchFailure", NEVER),
    ("CUDA error: device-side assert triggered", "cudaErrorAssert", NEVER),
    ("CUDA error: an illegal memory access was encountered", "cudaErrorIllegalAddress", NEVER),
    ("Triton Error [CUDA]: an illegal memory access was encountered", "cudaErrorIllegalAddress", NEVER),
    ("CUDA error: CUDA-capable device(s) is/are busy or unavailable", "cudaErrorDevicesUnavailable", HERE),
    ("CUDA error: initialization error\nSearch for `cudaErrorInitializationError' in https://docs.nvidia.com",
     "cudaErrorInitializationError", NEW_PROCESS),
    ("[Rank 6] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=47, OpType=ALLREDUCE, Timeout(ms)=600000)",
     "collective operation timeout", NEW_PROCESS),
    ("NCCL error in: ProcessGroupNCCL.cpp:1331, unhandled system error (run with NCCL_DEBUG=INFO for details)",
     "ncclSystemError", NEW_PROCESS),
    ("NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO for details)\nCuda failure 2 'out of memory'",
     "ncclUnhandledCudaError", NEVER),
    ("NCCL error: remote process exited or there was a network error", "ncclRemoteError", NEW_PROCESS),
    ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "CUBLAS_STATUS_ALLOC_FAILED", NEVER),
    ("Cannot re-initialize CUDA in forked subprocess. To use CUDA with",
     "CUDA after fork", NEVER),
    ("Torch not compiled with CUDA enabled", "PyTorch without CUDA", NEVER),
    ("Failed to initialize NVML: Driver/library version mismatch", "NVML_ERROR_LIB_RM_VERSION_MISMATCH", NEVER),
    ("Unable to determine the device handle for GPU3: 0000:5F:00.0: Unknown Error", "device handle", NEW_PROCESS),
    ("failed call to cuInit: CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected", "cudaErrorNoDevice", NEVER),
    ("Attempting to deserialize object on a CUDA device but torch.cuda.", "saved on a GPU", NEVER),
]  # fmt: skip


def test_an_error_that_is_known_by_its_text_has_its_name_and_advice():
    for text, name, retry in SEEN:
        fault = gpu.classify(RuntimeError(text))

        assert (fault.name, fault.retry) == (name, retry)
        assert fault.advice and fault.expected


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("shapes cannot be multiplied (3x4 and 5x6)"),
        RuntimeError("Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"),
        ValueError("bad learning rate"),
        OSError("the port in use is 80"),
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
    ],
)
def test_an_unknown_error_stays_as_it_is(error):
    fault = gpu.classify(error)

    assert fault.name == type(error).__name__
    assert (fault.advice, fault.retry) == ("", NEVER)


class AcceleratorError(RuntimeError):
    """As torch.AcceleratorError."""


class OwnError(AcceleratorError):
    """Of a library that uses PyTorch."""


KINDS = [
    (RuntimeError("CUDA error: something new"), "cuda", "WARNING"),
    (AcceleratorError("what nobody has seen yet"), "cuda", "WARNING"),
    (OwnError("nor this"), "cuda", "WARNING"),
    (AssertionError("Torch not compiled with CUDA enabled"), "cuda", "WARNING"),
    (RuntimeError("shapes cannot be multiplied"), "runtime", "ERROR"),
    (OSError("libcudart.so.11.0: cannot open shared object file"), "driver", "WARNING"),
    (AttributeError("module 'torch' has no attribute 'cuda'"), "driver", "WARNING"),
    (RuntimeError("Driver/library version mismatch"), "driver", "WARNING"),
    (ValueError("bad"), "other", "ERROR"),
    (KeyError("gpu"), "other", "ERROR"),
]


@pytest.mark.parametrize("error, kind, level", KINDS, ids=lambda value: str(value)[:30])
def test_kinds_are_distinguished_and_only_unexpected_ones_are_errors(logged, error, kind, level):
    def fail():
        raise error

    assert gpu.classify(error).kind == kind
    assert gpu.safe_cuda_operation(fail, "measuring VRAM", default_return=-1) == -1
    assert [record.levelname for record in logged.records] == [level]
    assert bool(logged.records[0].exc_info) == (level == "ERROR")


def test_the_message_says_operation_machine_job_cause_and_advice(logged, monkeypatch):
    monkeypatch.setenv("CLUSTERFN_JOB", "7f3a/1")
    monkeypatch.setattr("platform.node", lambda: "tensor01")

    with pytest.raises(RuntimeError), gpu.cuda_error_context("loading CLIP"):
        raise RuntimeError("CUDA error: invalid device ordinal\nCompile with `TORCH_USE_CUDA_DSA`")

    assert logged.messages == [
        "loading CLIP failed on tensor01, job 7f3a: RuntimeError: CUDA error: invalid device ordinal"
        " [cudaErrorInvalidDevice]; next: a job's GPUs are always cuda:0, cuda:1, …, as many as gpus= asks for"
    ]


def test_the_context_passes_the_error_on_as_itself_with_a_note():
    error = RuntimeError("CUDA error: uncorrectable ECC error encountered")

    with pytest.raises(RuntimeError) as caught, gpu.cuda_error_context("training"):
        raise error

    assert caught.value is error
    assert error.args == ("CUDA error: uncorrectable ECC error encountered",)
    (note,) = error.__notes__
    assert note.startswith("training failed on ") and "[cudaErrorECCUncorrectable]; next: restart the job" in note


def test_an_error_with_a_hostile_text_is_swallowed_all_the_same(logged):
    class Hostile(RuntimeError):
        def __str__(self):
            raise ValueError("no text")

    def fail():
        raise Hostile

    assert gpu.safe_cuda_operation(fail, "asking") == 0.0
    assert "Hostile" in logged.text


def test_the_default_is_zero_and_a_value_is_passed_through(logged):
    assert gpu.safe_cuda_operation(lambda: 1 / 0, "dividing") == 0.0
    assert gpu.safe_cuda_operation(lambda: [1], "listing") == [1]
    assert gpu.safe_cuda_operation(lambda: None, "nothing", default_return=5) is None


def test_a_persons_interrupt_is_not_swallowed():
    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        gpu.safe_cuda_operation(interrupted, "waiting")


def test_a_coroutine_function_is_refused_because_its_failure_would_come_later():
    async def later():
        raise OSError

    class Later:
        async def __call__(self):
            return 1

    with pytest.raises(ConfigError, match="a coroutine function"):
        gpu.safe_cuda_operation(Later(), "waiting")
    with pytest.raises(ConfigError, match="'later', a coroutine function"):
        gpu.safe_cuda_operation(later, "waiting")


def test_a_warning_is_seen_where_nobody_has_set_up_logging():
    program = "from clusterfn import gpu; gpu.safe_cuda_operation(lambda: open('/nothing'), 'opening')"

    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=150)

    assert ran.stderr.startswith("opening failed on ") and "FileNotFoundError" in ran.stderr
    assert len(ran.stderr.splitlines()) == 1
