"""Arrays as they come, of numpy, xarray or torch, made tensors: without a copy where possible."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor


def from_xarray(array: Any) -> tuple[Any, Any]:
    if not isinstance(array.dims, tuple):
        raise ValueError("`states` is an xarray Dataset; pass one of its arrays, e.g. `Trajectories(dataset['x'])`.")
    if array.dims[:2] != ("path", "time") or "time" not in array.coords:
        raise ValueError(
            f"An xarray array needs dimensions ('path', 'time', …) and a `time` coordinate; got {array.dims}. "
            "Rename and transpose first, or pass `times` yourself."
        )
    return array.data, np.asarray(array.coords["time"])


def real_tensor(array: Any, name: str) -> Tensor:
    """A floating tensor around the array, sharing its memory when it is one of floats."""
    array = array.detach() if isinstance(array, Tensor) else torch.from_numpy(_writable(array, name))
    if array.is_complex():
        raise ValueError(f"`{name}` must hold real numbers; got {array.dtype}. Pass `torch.view_as_real(x)`?")
    return array if array.is_floating_point() else array.double()


def whole_numbers(lengths: Any) -> Tensor:
    lengths = torch.as_tensor(_writable(lengths, "lengths"))
    if not torch.equal(lengths, lengths.long()):
        raise ValueError(f"`lengths` must be whole numbers of observations; got {lengths.tolist()[:8]}.")
    return lengths.long()


def _writable(array: Any, name: str) -> np.ndarray:
    try:
        array = np.asarray(array)
    except ValueError as error:
        raise ValueError(
            f"`{name}` must be one array of numbers. Paths of different lengths? Pad them and pass `lengths`. ({error})"
        ) from error
    if array.dtype.kind not in "fiub":
        raise ValueError(
            f"`{name}` must hold numbers; got dtype {array.dtype}. Convert times to seconds or days first?"
        )
    if array.dtype.byteorder == ">" or array.dtype == np.float16 or array.dtype.itemsize > 8:
        array = array.astype(np.float64)
    if any(stride < 0 for stride in array.strides):
        return np.array(array)
    return array if array.flags.writeable else _private(array)


def _private(array: np.ndarray) -> np.ndarray:
    """The same numbers in memory that torch may call writable: a copy, or of (a view of) a map a copy-on-write one."""
    root: Any = array
    while isinstance(root, np.ndarray) and isinstance(root.base, np.ndarray):
        root = root.base
    if not isinstance(root, np.memmap) or root.filename is None:
        return np.array(array)
    twin = np.memmap(str(root.filename), np.uint8, "c", root.offset, (root.nbytes,))
    start = array.__array_interface__["data"][0] - root.__array_interface__["data"][0]
    return np.ndarray(array.shape, array.dtype, twin, start, array.strides)
