"""The verbs on a mapping of tensors: checksum, reset, compare. Those on a plan are in `planned`.

All of them take torch tensors, numpy arrays and anything with `__dlpack__` or `__array_interface__`,
of any shape and strides, and copy none of them. They block until done, without holding the GIL and
on up to `threads` cores (0: all that this process may use), may be called from several threads at
once, and leave nothing behind. Nobody may write to the tensors meanwhile.

Tensors may be on CUDA devices, host memory and several devices mixed. A call sees what torch's current
stream of their device holds when it begins (with several devices the host waits for those streams; without
torch tensors it is the legacy default stream, after which a `__dlpack__` exporter is asked to order its
work); work in other streams is for the caller to wait for. `sha256` passes through at most
`max_host_bytes` of host memory at once (0: 256 MiB, else at least 1 MiB), `sha256-tree` is made on the device.
What a call has allocated for that stays for the next one; a smaller `max_host_bytes` frees host memory.

Torch tensors on any other device (ROCm, XPU, ...) are copied by torch to the host, `max_host_bytes` at
once. That is slower; the digests are the same. A "random" reset of one makes its new values in host memory
as large as the tensor.

`progress(bytes_done, bytes_total)` is called from any thread; a true result cancels the call, as does
an exception, which the caller then gets. Errors are `CheckError`s: `TensorError` for a tensor that
cannot be read in place, `NativeError` for anything that the library refuses, `LibraryError` when the
library cannot be loaded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from . import _native, elsewhere
from ._native import Options, Progress
from .baselines import algorithm_of
from .errors import CheckError, NativeError, Status
from .rank import Rank
from .report import Report
from .tensors import describe


def backend() -> str:
    """The hash backend in use, such as "avx512+shani": what fills many lanes, and what runs few tensors fast.

    Raises:
        NativeError: the environment variable WC_BACKEND forces one that this processor lacks.
    """
    return _native.backend()


def checksum(
    tensors: Mapping[str, object],
    rank: Rank = Rank(),
    *,
    algorithm: str = "sha256",
    threads: int = 0,
    progress: Progress | None = None,
    max_host_bytes: int = 0,
) -> dict[str, str]:
    """Hashes every tensor's elements in row-major order: {rank.prefix + name: digest}, in their order.

    A digest of "sha256" is 64 lower-case hex digits, what `hashlib.sha256` gives for the bytes of a
    contiguous copy. One of "sha256-tree" is `sha256-tree:` and 64 hex digits: the Merkle tree hash of RFC
    9162 section 2.1.1 over leaves of 8,192 bytes, which all cores make together even of one tensor.
    """
    described = describe(tensors, writable=False)
    options, rest = elsewhere.parts(described.elsewhere, Options(algorithm, threads, progress, max_host_bytes))
    digests = _native.checksum(described, rank, options)
    for name, digest in elsewhere.digests(described.elsewhere, rest).items():
        digests[rank.prefix + name] = digest
    return digests


def reset(
    tensors: Mapping[str, object],
    fill: str = "zero",
    seed: int = 0,
    *,
    threads: int = 0,
    progress: Progress | None = None,
) -> Report:
    """Overwrites every element of every tensor, and no byte between strides.

    Args:
        fill: "zero"; "random" (valid values of the dtype, the same for the same name and seed); or
            "poison" (bytes 0xFF, which is NaN for floats).
        seed: 0 to 2**64 - 1, for "random".

    Returns:
        {"tensors", "written", "shared", "bytes"}: tensors = written + shared, where a tensor is shared
        when its memory is exactly that of one before it.
    """
    described = describe(tensors, writable=True)
    options, rest = elsewhere.parts(described.elsewhere, Options(threads=threads, progress=progress))
    counts = _native.reset(described, fill, seed, options)
    shared, size = elsewhere.fill(described.elsewhere, fill, seed, rest)
    changes = {"written": -shared, "shared": shared, "bytes": size}
    return Report({name: count + changes.get(name, 0) for name, count in counts.items()})


def compare(
    tensors: Mapping[str, object],
    baseline: Mapping[str, str] | str,
    rank: Rank = Rank(),
    *,
    algorithm: str | None = None,
    threads: int = 0,
    progress: Progress | None = None,
    max_host_bytes: int = 0,
) -> Report:
    """Hashes every tensor and compares with a baseline {key: digest}, given as a mapping or as JSON text.

    The algorithm is that of the baseline's digests. Digests of two algorithms in one baseline, or of
    another than `algorithm` when one is given, are an error. Keys of other ranks in the baseline are
    ignored. A mismatch is a result; that no tensor has a key in the baseline is an error
    (`Status.NOTHING_COMPARED`).

    Returns:
        {"match", "mismatches", "differing", "missing", "unexpected", "tensors", "compared", "equal",
        "bytes", "through_host"}: sorted keys that differ, are in the baseline only, are not in the baseline,
        and all three of them; tensors = compared + unexpected, compared = equal + differing. `through_host`
        tensors are on devices that only torch can read, and were copied to the host.
    """
    text = _baseline_text(baseline)
    algorithm = algorithm or _algorithm_of(baseline)
    described = describe(tensors, writable=False)
    options, rest = elsewhere.parts(described.elsewhere, Options(algorithm, threads, progress, max_host_bytes))
    report = _native.compare(described, rank, text, options)
    if described.elsewhere:
        found = elsewhere.digests(described.elsewhere, rest)
        elsewhere.corrected(report, {rank.prefix + name: digest for name, digest in found.items()}, text)
        report["bytes"] += elsewhere.size(described.elsewhere)
    report["through_host"] = len(described.elsewhere)
    return Report(report)


def _algorithm_of(baseline: Mapping[str, str] | str) -> str:
    """The baseline's algorithm. The library says what else is wrong with it."""
    if isinstance(baseline, str):
        try:
            baseline = json.loads(baseline)
        except (ValueError, RecursionError):
            baseline = {}
    try:
        return algorithm_of(baseline if isinstance(baseline, Mapping) else {})
    except CheckError as error:
        raise NativeError(Status.ALGORITHM_MISMATCH, str(error)) from None


def _baseline_text(baseline: Mapping[str, str] | str) -> bytes:
    if not isinstance(baseline, (str, Mapping)):
        what = f"the baseline is a {type(baseline).__qualname__}; pass a mapping of key to digest, or its JSON text"
        raise NativeError(Status.BAD_BASELINE, what)
    try:
        text = (baseline if isinstance(baseline, str) else json.dumps(dict(baseline))).encode()
    except (TypeError, ValueError) as error:
        raise NativeError(Status.BAD_BASELINE, f"the baseline has no JSON form: {error}") from error
    if b"\0" in text:
        raise NativeError(Status.BAD_BASELINE, "the baseline holds a NUL character, so it is no JSON text")
    return text
