"""The only door to libweight_checker.so: loading it, its function table, and its kinds of call.

ctypes releases the GIL while a function of the library runs, so other Python threads go on.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import logging
import operator
import os
import threading
from collections.abc import Callable
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import LibraryError, NativeError, Status
from .interrupts import held_back
from .rank import Rank

if TYPE_CHECKING:
    from .tensors import Described

ABI_VERSION = 1
LIBRARY_VARIABLE = "VLLM_WEIGHT_CHECKER_LIBRARY"
ALGORITHMS = {"sha256": 0, "sha256-tree": 1}
DIGEST_BYTES = 32
DIGEST_PREFIXES = {"sha256": "", "sha256-tree": "sha256-tree:"}
FILLS = {"zero": 0, "random": 1, "poison": 2}

Progress = Callable[[int, int], Any]
"""Told (bytes done, bytes in all), from any thread; a true result or an exception cancels the call."""


@dataclass(frozen=True)
class Options:
    """How a call does its work; what says nothing to a function is ignored by it."""

    algorithm: str = "sha256"
    threads: int = 0
    progress: Progress | None = None
    max_host_bytes: int = 0
    """The most host memory that is used at once to hash tensors of devices; 0 for 256 MiB."""


class WcRank(ctypes.Structure):
    _fields_ = [(index, ctypes.c_uint32) for index in ("dp", "pp", "pcp", "tp")]


ProgressCallback = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_void_p)
LogCallback = ctypes.CFUNCTYPE(None, ctypes.c_int32, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_void_p)


class WcOptions(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("algorithm", ctypes.c_uint32),
        ("threads", ctypes.c_uint32),
        ("progress", ProgressCallback),
        ("progress_data", ctypes.c_void_p),
        ("stream", ctypes.c_void_p),
        ("max_host_bytes", ctypes.c_uint64),
    ]


_TENSORS = [ctypes.c_void_p, ctypes.c_size_t]
_RANK = ctypes.POINTER(WcRank)
_OPTIONS = ctypes.POINTER(WcOptions)
_OUT_JSON = ctypes.POINTER(ctypes.c_void_p)

SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "wc_abi_version": (ctypes.c_uint32, []),
    "wc_version": (ctypes.c_char_p, []),
    "wc_backend": (ctypes.c_char_p, []),
    "wc_checksum": (ctypes.c_int32, [*_TENSORS, _RANK, _OPTIONS, _OUT_JSON]),
    "wc_digest": (ctypes.c_int32, [*_TENSORS, _OPTIONS, ctypes.c_void_p, ctypes.c_size_t]),
    "wc_reset": (ctypes.c_int32, [*_TENSORS, ctypes.c_uint32, ctypes.c_uint64, _OPTIONS, _OUT_JSON]),
    "wc_compare": (ctypes.c_int32, [*_TENSORS, _RANK, ctypes.c_char_p, _OPTIONS, _OUT_JSON]),
    "wc_expect": (ctypes.c_int32, [ctypes.c_char_p, ctypes.c_char_p, *_TENSORS, _OPTIONS, _OUT_JSON]),
    "wc_audit": (ctypes.c_int32, [ctypes.c_char_p, _OUT_JSON]),
    "wc_string_free": (None, [ctypes.c_void_p]),
    "wc_last_error": (ctypes.c_char_p, []),
    "wc_set_log_callback": (ctypes.c_int32, [LogCallback, ctypes.c_void_p]),
}
"""Every function of weight_checker.h: (result, arguments)."""

_LEVELS = {1: logging.ERROR, 2: logging.WARNING, 3: logging.INFO, 4: logging.DEBUG}
_log = logging.getLogger("vllm_weight_checker.native")
_loading = threading.Lock()
_loaded: ctypes.CDLL | None = None
# A process that is forked while another thread loads would wait for that thread, which it does not have.
os.register_at_fork(before=_loading.acquire, after_in_parent=_loading.release, after_in_child=_loading.release)


def library() -> ctypes.CDLL:
    """The library with its functions declared, loaded on the first call in this process.

    Raises:
        LibraryError: it is absent, cannot be loaded, or is of another ABI version.
    """
    global _loaded
    if _loaded is None:
        with _loading:
            if _loaded is None:
                _loaded = _load(_path())
    return _loaded


def backend() -> str:
    """`wc_backend`: the hash backend in use, such as "avx512+shani"."""
    native = library()
    name = native.wc_backend()
    if name is None:
        raise _error(Status.BAD_OPTION, native.wc_last_error())
    return str(name.decode())


def checksum(tensors: Described, rank: Rank, options: Options) -> dict[str, str]:
    """{key: digest}, in the order of the tensors: what `wc_checksum` gives, without its JSON."""
    _rank(rank)
    digests = (ctypes.c_uint8 * (DIGEST_BYTES * tensors.count))()
    _call("wc_digest", _array(tensors), options, tensors.stream, [digests, len(digests)])
    text, width = bytes(digests).hex(), 2 * DIGEST_BYTES
    of_key, of_digest = rank.prefix, DIGEST_PREFIXES[options.algorithm]
    starts = range(0, len(text), width)
    return {of_key + name: of_digest + text[at : at + width] for name, at in zip(tensors.names, starts)}


def reset(tensors: Described, fill: str, seed: int, options: Options) -> dict[str, int]:
    """`wc_reset`: the counts of what was written."""
    arguments = [*_array(tensors), _choice("fill", fill, FILLS), _unsigned("seed", seed, 64)]
    counts: dict[str, int] = _call_json("wc_reset", arguments, options, tensors.stream)
    return counts


def compare(tensors: Described, rank: Rank, baseline: bytes, options: Options) -> dict[str, Any]:
    """`wc_compare`: the report; `baseline` is JSON text without NUL."""
    arguments = [*_array(tensors), _rank(rank), baseline]
    report: dict[str, Any] = _call_json("wc_compare", arguments, options, tensors.stream)
    return report


def expect(plan: bytes, checkpoint: bytes | None, tensors: Described, options: Options) -> dict[str, str]:
    """`wc_expect`: {key: digest}. `plan` is JSON text and `checkpoint` a path, both without NUL.

    `tensors` are read where there is no `checkpoint`, and are none where there is one.
    """
    arguments = [plan, checkpoint, *_array(tensors)]
    digests: dict[str, str] = _call_json("wc_expect", arguments, options, tensors.stream)
    return digests


def audit(plan: bytes) -> dict[str, Any]:
    """`wc_audit`: the findings; `plan` is JSON text without NUL."""
    native = library()
    out = ctypes.c_void_p()
    try:
        with held_back():
            status = native.wc_audit(plan, out)
        if status != Status.OK:
            raise _error(status, native.wc_last_error())
        findings: dict[str, Any] = json.loads(ctypes.string_at(out))
        return findings
    finally:
        native.wc_string_free(out)


def _array(tensors: Described) -> list[Any]:
    """The two arguments for tensors. Whoever makes the call holds `tensors`, whose memory this is, until it returns."""
    return [tensors.address, tensors.count]


def _call_json(function: str, arguments: list[Any], options: Options, stream: int) -> Any:
    """Calls a function that gives JSON, and parses it."""
    out = ctypes.c_void_p()
    try:
        _call(function, arguments, options, stream, [out])
        return json.loads(ctypes.string_at(out))
    finally:
        library().wc_string_free(out)


def _call(function: str, arguments: list[Any], options: Options, stream: int, outputs: list[Any]) -> None:
    """Calls a function that hashes or writes: with its `arguments`, the options, and its `outputs`.

    The library reads device memory after the work that the CUDA `stream` holds by now.
    """
    native = library()
    raised: list[BaseException] = []
    with held_back() as interrupted:
        native_options = WcOptions(
            struct_size=ctypes.sizeof(WcOptions),
            algorithm=_choice("algorithm", options.algorithm, ALGORITHMS),
            threads=_unsigned("threads", options.threads, 32),
            progress=_progress_callback(options.progress, interrupted, raised),
            stream=stream,
            max_host_bytes=_unsigned("max_host_bytes", options.max_host_bytes, 64),
        )
        status = getattr(native, function)(*arguments, native_options, *outputs)
    if raised:
        raise raised.pop()
    if status != Status.OK:
        raise _error(status, native.wc_last_error())


def _error(status: int, message: bytes) -> NativeError:
    known = Status(status) if status in Status._value2member_map_ else status
    return NativeError(known, message.decode(errors="replace"))


def _progress_callback(
    progress: Progress | None, interrupted: Callable[[], bool] | None, raised: list[BaseException]
) -> Any:
    """A C callback for `progress`, if any; what it raises, or Ctrl-C, cancels the call. `raised` gets the first."""

    if progress is None and interrupted is None:
        return ProgressCallback()

    def tell(done: int, total: int, _data: object) -> int:
        try:
            stops = interrupted is not None and interrupted()
            return 1 if stops or (progress is not None and progress(done, total)) else 0
        except BaseException as error:
            raised.append(error)
            return 1

    return ProgressCallback(tell)


def _rank(rank: Rank) -> WcRank:
    return WcRank(*(_unsigned("a rank's index", index, 32) for index in astuple(rank)))


def _choice(argument: str, value: str, choices: dict[str, int]) -> int:
    if value not in choices:
        raise NativeError(Status.BAD_OPTION, f"{argument} {value!r} is not known; there is {', '.join(choices)}")
    return choices[value]


def _unsigned(argument: str, value: int, bits: int) -> int:
    """`value`, refused where ctypes would silently keep its lowest bits only."""
    number = operator.index(value)
    if not 0 <= number < 1 << bits:
        raise NativeError(Status.BAD_OPTION, f"{argument} {value!r} is not in 0 to 2**{bits} - 1")
    return number


def _path() -> Path:
    named = os.environ.get(LIBRARY_VARIABLE)
    path = Path(named) if named else Path(__file__).with_name("libweight_checker.so")
    if path.is_file():
        return path.absolute()
    if named:
        raise LibraryError(f"{LIBRARY_VARIABLE} names {named!r}, and there is no such file")
    raise LibraryError(
        f"{path} is missing: install the package with pip, which builds it, or let {LIBRARY_VARIABLE} name a built one"
    )


def _load(path: Path) -> ctypes.CDLL:
    try:
        native = ctypes.CDLL(str(path))
    except OSError as error:
        raise LibraryError(f"{path} cannot be loaded: {error}") from error
    try:
        # First and alone: the other functions of another version may be missing or take other arguments.
        _declare(native, "wc_abi_version")
        if (found := native.wc_abi_version()) != ABI_VERSION:
            raise LibraryError(
                f"{path} speaks version {found} of the ABI and this package version {ABI_VERSION}: "
                "install a library and a package of the same release"
            )
        for function in SIGNATURES:
            _declare(native, function)
    except AttributeError as error:
        raise LibraryError(f"{path} is no weight-checker library of this version: {error}") from error
    _forward_log(native)
    return native


def _declare(native: ctypes.CDLL, function: str) -> None:
    getattr(native, function).restype, getattr(native, function).argtypes = SIGNATURES[function]


def _forward(level: int, target: bytes, message: bytes, _data: object) -> None:
    _log.log(_LEVELS.get(level, logging.DEBUG // 2), "%s: %s", target.decode(), message.decode(errors="replace"))


# For the library to call at any time, so it lives as long as the process.
_FORWARD = LogCallback(_forward)


def _forward_log(native: ctypes.CDLL) -> None:
    status = native.wc_set_log_callback(_FORWARD, None)
    if status != Status.OK:
        _log.warning("the library's log is not forwarded: %s", _error(status, native.wc_last_error()))
    # A thread of the library that logs while the interpreter is taken down would be ended inside the callback.
    atexit.register(native.wc_set_log_callback, LogCallback(), None)
