# SPDX-License-Identifier: MIT
# mypy: disable-error-code="type-arg"
# By nanobind.stubgen: tests/test_types.py writes it anew with NPRF_WRITE_STUB=1.

from collections.abc import Sequence
from typing import Annotated

import numpy
from numpy.typing import NDArray
from typing_extensions import CapsuleType


class Call:
    def __init__(self, arg0: Annotated[NDArray[numpy.bool_], dict(order='C', device='cpu', writable=False)] | None, arg1: Sequence[int] | None, arg2: Sequence[int], arg3: Sequence[int], arg4: int, arg5: float, arg6: int, arg7: int, arg8: bool, arg9: bool, arg10: int, /) -> None: ...

class Report:
    """
    What one call reports. Reports are values: they are compared and pickled.
    """

    def __init__(self, engine: str, repaired_rows: int, indefinite_rows: int, empty_rows: int, failing_rows: int, error_bound: float, compared_rows: int, softmax_error: float, workspace_bytes: int) -> None: ...

    @property
    def engine(self) -> str:
        """
        The engine of the first sequence; "automatic" if there was nothing to compute.
        """

    @property
    def repaired_rows(self) -> int:
        """
        Rows that failed the engine's error bound, underflowed, or whose terms cancel, and were recomputed.
        """

    @property
    def indefinite_rows(self) -> int:
        """
        Rows whose denominator is not positive, by cancellation or by underflow.
        """

    @property
    def empty_rows(self) -> int:
        """Rows that attend to no key; they are zero."""

    @property
    def failing_rows(self) -> int:
        """
        Of a step of a Decoder: rows that would be recomputed if all keys were stored.
        """

    @property
    def error_bound(self) -> float:
        """
        The bound of the rounding errors of the returned rows, relative to the largest |v| that a row attends to.
        """

    @property
    def compared_rows(self) -> int:
        """Rows that were compared with exact softmax (softmax_samples)."""

    @property
    def softmax_error(self) -> float:
        """
        The difference of these rows from exact softmax, relative by the Frobenius norm; NaN if there are none.
        """

    @property
    def workspace_bytes(self) -> int:
        """The peak scratch memory of all threads, without what forward saves."""

    def __repr__(self) -> str: ...

    def __eq__(self, arg: object | None, /) -> bool: ...

    def __hash__(self) -> int: ...

class GradientReport:
    """
    What one backward reports. Reports are values: they are compared and pickled.
    """

    def __init__(self, engine: str, recomputed_queries: int, recomputed_keys: int, recomputed_lags: int, error_bound: float, workspace_bytes: int) -> None: ...

    @property
    def engine(self) -> str:
        """
        The engine of the first sequence; "automatic" if there was nothing to compute.
        """

    @property
    def recomputed_queries(self) -> int:
        """
        Gradients of queries that failed their error bound, and were recomputed.
        """

    @property
    def recomputed_keys(self) -> int:
        """The same of keys."""

    @property
    def recomputed_lags(self) -> int:
        """The same of biases, by lag."""

    @property
    def error_bound(self) -> float:
        """
        The bound of the rounding errors of the returned gradients, each relative to a magnitude of its own.
        """

    @property
    def workspace_bytes(self) -> int:
        """The peak scratch memory of all threads."""

    def __repr__(self) -> str: ...

    def __eq__(self, arg: object | None, /) -> bool: ...

    def __hash__(self) -> int: ...

class Features_float32:
    @staticmethod
    def random(arg0: str, arg1: int, arg2: int, arg3: str, arg4: int, /) -> Features_float32: ...

    @staticmethod
    def tilted(arg0: str, arg1: int, arg2: int, arg3: str, arg4: int, arg5: Annotated[NDArray, dict(device='cpu', writable=False)], arg6: Annotated[NDArray, dict(device='cpu', writable=False)], /) -> Features_float32: ...

    @staticmethod
    def of_rows(arg0: str, arg1: Annotated[NDArray, dict(device='cpu', writable=False)], /) -> Features_float32: ...

    @staticmethod
    def elu(arg: int, /) -> Features_float32: ...

    @staticmethod
    def taylor(arg0: int, arg1: int, /) -> Features_float32: ...

    @staticmethod
    def calibrated(arg: str, /) -> Features_float32: ...

    @staticmethod
    def joined(arg: Sequence[Features_float32], /) -> Features_float32: ...

    @property
    def input_dim(self) -> int: ...

    @property
    def output_dim(self) -> int: ...

    @staticmethod
    def centred(arg0: Features_float32, arg1: Annotated[NDArray, dict(device='cpu', writable=False)], arg2: Annotated[NDArray, dict(device='cpu', writable=False)], arg3: Annotated[NDArray, dict(device='cpu', writable=False)], /) -> Features_float32: ...

    def centring(self) -> tuple: ...

    def projection(self) -> NDArray[numpy.float32]: ...

class Positions_float32:
    @staticmethod
    def none() -> Positions_float32: ...

    @staticmethod
    def relative(arg0: Annotated[NDArray, dict(device='cpu', writable=False)], arg1: bool, /) -> Positions_float32: ...

    @staticmethod
    def t5(arg0: Annotated[NDArray, dict(device='cpu', writable=False)], arg1: bool, arg2: int, /) -> Positions_float32: ...

    @staticmethod
    def alibi(arg: Annotated[NDArray, dict(device='cpu', writable=False)], /) -> Positions_float32: ...

    @staticmethod
    def curve(arg0: str, arg1: Annotated[NDArray, dict(device='cpu', writable=False)], arg2: int, arg3: Sequence[int], arg4: str, /) -> Positions_float32: ...

    @staticmethod
    def grid(arg0: int, arg1: int, arg2: Annotated[NDArray, dict(device='cpu', writable=False)], arg3: Annotated[NDArray, dict(device='cpu', writable=False)], arg4: int, /) -> Positions_float32: ...

    def with_parameters(self, arg: Annotated[NDArray, dict(device='cpu', writable=False)], /) -> Positions_float32: ...

    def with_lag_vectors(self, arg0: Annotated[NDArray, dict(device='cpu', writable=False)], arg1: int, /) -> Positions_float32: ...

class Saved_float32:
    def backward(self, arg0: Annotated[NDArray, dict(device='cpu', writable=False)], arg1: Annotated[NDArray, dict(device='cpu')], arg2: Annotated[NDArray, dict(device='cpu')], arg3: Annotated[NDArray, dict(device='cpu')], arg4: Call, /) -> tuple: ...

    @property
    def address(self) -> int: ...

    def token(self) -> Annotated[NDArray[numpy.uint8], dict(device='cpu')]: ...

class Attention_float32:
    @staticmethod
    def make(arg0: Features_float32, arg1: Positions_float32, arg2: bool, arg3: float, arg4: str, arg5: int, arg6: int, arg7: int, /) -> Attention_float32: ...

    def __call__(self, arg0: Annotated[NDArray, dict(device='cpu', writable=False)], arg1: Annotated[NDArray, dict(device='cpu', writable=False)], arg2: Annotated[NDArray, dict(device='cpu', writable=False)], arg3: Annotated[NDArray, dict(device='cpu')], arg4: Call, /) -> Report: ...

    def forward(self, arg0: Annotated[NDArray, dict(device='cpu', writable=False)], arg1: Annotated[NDArray, dict(device='cpu', writable=False)], arg2: Annotated[NDArray, dict(device='cpu', writable=False)], arg3: Annotated[NDArray, dict(device='cpu')], arg4: Call, /) -> tuple: ...

    def kernelized_attention(self, arg0: Annotated[NDArray, dict(device='cpu', writable=False)], arg1: Annotated[NDArray, dict(device='cpu', writable=False)], arg2: Annotated[NDArray, dict(device='cpu', writable=False)], arg3: Annotated[NDArray, dict(device='cpu')], arg4: Call, /) -> None: ...

    def cuda_model(self) -> CapsuleType: ...

class PlainAttention_float32:
    def __init__(self, arg0: Features_float32, arg1: Positions_float32, arg2: bool, arg3: float, arg4: str, arg5: int, /) -> None: ...

    @property
    def address(self) -> int: ...

class Decoder_float32:
    @staticmethod
    def make(arg0: Attention_float32, arg1: int, arg2: int, arg3: int, /) -> Decoder_float32: ...

    def append(self, arg0: Annotated[NDArray, dict(device='cpu', writable=False)], arg1: Annotated[NDArray, dict(device='cpu', writable=False)], arg2: Annotated[NDArray, dict(device='cpu', writable=False)], arg3: Annotated[NDArray, dict(device='cpu')], arg4: Call, arg5: bool, /) -> Report: ...

    def rollback(self, arg0: int, arg1: int, /) -> None: ...

    def reorder(self, arg: Sequence[int], /) -> None: ...

    def fork(self, arg0: int, arg1: int, /) -> None: ...

    def reset(self, arg: int, /) -> None: ...

    def tokens(self, arg: int, /) -> int: ...

    def nbytes(self) -> int: ...

    def save(self) -> bytes: ...

    def load(self, arg: bytes, /) -> None: ...

def softmax_attention_float32(arg0: Annotated[NDArray, dict(device='cpu', writable=False)], arg1: Annotated[NDArray, dict(device='cpu', writable=False)], arg2: Annotated[NDArray, dict(device='cpu', writable=False)], arg3: Annotated[NDArray, dict(device='cpu')], arg4: Positions_float32, arg5: bool, arg6: float, arg7: Call, /) -> None: ...

def calibrate_float32(arg0: Annotated[NDArray, dict(device='cpu', writable=False)], arg1: Annotated[NDArray, dict(device='cpu', writable=False)], arg2: Annotated[NDArray, dict(device='cpu', writable=False)], arg3: Positions_float32, arg4: bool, arg5: float, arg6: int, arg7: int, arg8: int, arg9: int, arg10: float, arg11: float, arg12: int, /) -> tuple: ...

def sderf_tilt_float32(arg0: Annotated[NDArray, dict(device='cpu', writable=False)], arg1: Annotated[NDArray, dict(device='cpu', writable=False)], /) -> tuple: ...

def free_memory_float32() -> None: ...

class Features_float64:
    @staticmethod
    def random(arg0: str, arg1: int, arg2: int, arg3: str, arg4: int, /) -> Features_float64: ...

    @staticmethod
    def tilted(arg0: str, arg1: int, arg2: int, arg3: str, arg4: int, arg5: Annotated[NDArray, dict(device='cpu', writable=False)], arg6: Annotated[NDArray, dict(device='cpu', writable=False)], /) -> Features_float64: ...

    @staticmethod
    def of_rows(arg0: str, arg1: Annotated[NDArray, dict(device='cpu', writable=False)], /) -> Features_float64: ...

    @staticmethod
    def elu(arg: int, /) -> Features_float64: ...

    @staticmethod
    def taylor(arg0: int, arg1: int, /) -> Features_float64: ...

    @staticmethod
    def calibrated(arg: str, /) -> Features_float64: ...

    @staticmethod
    def joined(arg: Sequence[Features_float64], /) -> Features_float64: ...

    @property
    def input_dim(self) -> int: ...

    @property
    def output_dim(self) -> int: ...

    @staticmethod
    def centred(arg0: Features_float64, arg1: Annotated[NDArray, dict(device='cpu', writable=False)], arg2: Annotated[NDArray, dict(device='cpu', writable=False)], arg3: Annotated[NDArray, dict(device='cpu', writable=False)], /) -> Features_float64: ...

    def centring(self) -> tuple: ...

    def projection(self) -> NDArray[numpy.float64]: ...

class Positions_float64:
    @staticmethod
    def none() -> Positions_float64: ...

    @staticmethod
    def relative(arg0: Annotated[NDArray, dict(device='cpu', writable=False)], arg1: bool, /) -> Positions_float64: ...

    @staticmethod
    def t5(arg0: Annotated[NDArray, dict(device='cpu', writable=False)], arg1: bool, arg2: int, /) -> Positions_float64: ...

    @staticmethod
    def alibi(arg: Annotated[NDArray, dict(device='cpu', writable=False)], /) -> Positions_float64: ...

    @staticmethod
    def curve(arg0: str, arg1: Annotated[NDArray, dict(device='cpu', writable=False)], arg2: int, arg3: Sequence[int], arg4: str, /) -> Positions_float64: ...

    @staticmethod
    def grid(arg0: int, arg1: int, arg2: Annotated[NDArray, dict(device='cpu', writable=False)], arg3: Annotated[NDArray, dict(device='cpu', writable=False)], arg4: int, /) -> Positions_float64: ...

    def with_parameters(self, arg: Annotated[NDArray, dict(device='cpu', writable=False)], /) -> Positions_float64: ...

    def with_lag_vectors(self, arg0: Annotated[NDArray, dict(device='cpu', writable=False)], arg1: int, /) -> Positions_float64: ...

class Saved_float64:
    def backward(self, arg0: Annotated[NDArray, dict(device='cpu', writable=False)], arg1: Annotated[NDArray, dict(device='cpu')], arg2: Annotated[NDArray, dict(device='cpu')], arg3: Annotated[NDArray, dict(device='cpu')], arg4: Call, /) -> tuple: ...

    @property
    def address(self) -> int: ...

    def token(self) -> Annotated[NDArray[numpy.uint8], dict(device='cpu')]: ...

class Attention_float64:
    @staticmethod
    def make(arg0: Features_float64, arg1: Positions_float64, arg2: bool, arg3: float, arg4: str, arg5: int, arg6: int, arg7: int, /) -> Attention_float64: ...

    def __call__(self, arg0: Annotated[NDArray, dict(device='cpu', writable=False)], arg1: Annotated[NDArray, dict(device='cpu', writable=False)], arg2: Annotated[NDArray, dict(device='cpu', writable=False)], arg3: Annotated[NDArray, dict(device='cpu')], arg4: Call, /) -> Report: ...

    def forward(self, arg0: Annotated[NDArray, dict(device='cpu', writable=False)], arg1: Annotated[NDArray, dict(device='cpu', writable=False)], arg2: Annotated[NDArray, dict(device='cpu', writable=False)], arg3: Annotated[NDArray, dict(device='cpu')], arg4: Call, /) -> tuple: ...

    def kernelized_attention(self, arg0: Annotated[NDArray, dict(device='cpu', writable=False)], arg1: Annotated[NDArray, dict(device='cpu', writable=False)], arg2: Annotated[NDArray, dict(device='cpu', writable=False)], arg3: Annotated[NDArray, dict(device='cpu')], arg4: Call, /) -> None: ...

    def cuda_model(self) -> CapsuleType: ...

class PlainAttention_float64:
    def __init__(self, arg0: Features_float64, arg1: Positions_float64, arg2: bool, arg3: float, arg4: str, arg5: int, /) -> None: ...

    @property
    def address(self) -> int: ...

class Decoder_float64:
    @staticmethod
    def make(arg0: Attention_float64, arg1: int, arg2: int, arg3: int, /) -> Decoder_float64: ...

    def append(self, arg0: Annotated[NDArray, dict(device='cpu', writable=False)], arg1: Annotated[NDArray, dict(device='cpu', writable=False)], arg2: Annotated[NDArray, dict(device='cpu', writable=False)], arg3: Annotated[NDArray, dict(device='cpu')], arg4: Call, arg5: bool, /) -> Report: ...

    def rollback(self, arg0: int, arg1: int, /) -> None: ...

    def reorder(self, arg: Sequence[int], /) -> None: ...

    def fork(self, arg0: int, arg1: int, /) -> None: ...

    def reset(self, arg: int, /) -> None: ...

    def tokens(self, arg: int, /) -> int: ...

    def nbytes(self) -> int: ...

    def save(self) -> bytes: ...

    def load(self, arg: bytes, /) -> None: ...

def softmax_attention_float64(arg0: Annotated[NDArray, dict(device='cpu', writable=False)], arg1: Annotated[NDArray, dict(device='cpu', writable=False)], arg2: Annotated[NDArray, dict(device='cpu', writable=False)], arg3: Annotated[NDArray, dict(device='cpu')], arg4: Positions_float64, arg5: bool, arg6: float, arg7: Call, /) -> None: ...

def calibrate_float64(arg0: Annotated[NDArray, dict(device='cpu', writable=False)], arg1: Annotated[NDArray, dict(device='cpu', writable=False)], arg2: Annotated[NDArray, dict(device='cpu', writable=False)], arg3: Positions_float64, arg4: bool, arg5: float, arg6: int, arg7: int, arg8: int, arg9: int, arg10: float, arg11: float, arg12: int, /) -> tuple: ...

def sderf_tilt_float64(arg0: Annotated[NDArray, dict(device='cpu', writable=False)], arg1: Annotated[NDArray, dict(device='cpu', writable=False)], /) -> tuple: ...

def free_memory_float64() -> None: ...

def balance(arg0: Annotated[NDArray, dict(device='cpu', writable=False)], arg1: Annotated[NDArray, dict(device='cpu', writable=False)], arg2: float, /) -> tuple: ...

def calibration_text(arg0: Sequence[str], arg1: float, arg2: Sequence[float], arg3: Sequence[tuple[int, int, float]], /) -> str: ...

def parts_of_calibration(arg: str, /) -> tuple: ...

def resize_bias(arg0: Annotated[NDArray, dict(device='cpu', writable=False)], arg1: int, /) -> NDArray[numpy.float64]: ...

def resize_grid(arg0: Annotated[NDArray, dict(device='cpu', writable=False)], arg1: int, arg2: int, /) -> NDArray[numpy.float64]: ...

def log_spaced_knots(arg0: int, arg1: int, /) -> list[int]: ...

def spline_tables(arg0: Annotated[NDArray, dict(device='cpu', writable=False)], arg1: Sequence[int], arg2: int, arg3: str, /) -> NDArray[numpy.float64]: ...

def fit_spline(arg0: Annotated[NDArray, dict(device='cpu', writable=False)], arg1: Sequence[int], arg2: str, arg3: bool, /) -> tuple: ...

def t5_bucket(arg0: int, arg1: int, arg2: bool, arg3: int, /) -> int: ...

def best_tilt(arg: float, /) -> float: ...

def num_threads() -> int: ...

def set_num_threads(arg: int, /) -> None: ...

def after_fork() -> None: ...

version: str = '0.1.0'
