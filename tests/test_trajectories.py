"""Trajectories: one meaning for regular, irregular and ragged data, wherever it comes from, and clear refusals."""

import tracemalloc

import numpy as np
import pytest
import torch
import xarray
from hypothesis import given
from hypothesis import strategies as st
from problems import normal, properties, real

from phibe import Trajectories

NAN = float("nan")


def _regular(paths=6, steps=9, shape=(2,)):
    return Trajectories(normal(paths, steps, *shape), 0.5 + 0.25 * torch.arange(steps, dtype=torch.float64))


def _ragged(shape=(2,)):
    """Four paths with times of their own; what is beyond their ends is NaN."""
    lengths, steps = [5, 2, 7, 3], 7
    states, times = normal(4, steps, *shape), normal(4, steps, seed=1).abs().cumsum(1)
    for path, length in enumerate(lengths):
        states[path, length:], times[path, length:] = NAN, NAN
    return Trajectories(states, times, lengths)


def _by_hand(data, width):
    """Every run of `width` observations of one path, by the slowest possible loop."""
    times = data.times.expand(data.states.shape[:2])
    lengths = [data.states.shape[1]] * len(data) if data.lengths is None else data.lengths.tolist()
    runs = [(i, j) for i, n in enumerate(lengths) for j in range(n - width + 1)]
    x = torch.stack([data.states[i, j : j + width] for i, j in runs])
    return x, torch.stack([times[i, j : j + width] for i, j in runs])


# -- pairs and windows -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [_regular(shape=(1, 3, 4)), _ragged()], ids=["regular", "ragged"])
def test_pairs_and_windows_never_cross_a_path(data):
    x, t = _by_hand(data, 2)
    pairs = data.pairs()
    for found, expected in zip(pairs, (x[:, 0], t[:, 0], x[:, 1] - x[:, 0], t[:, 1] - t[:, 0]), strict=True):
        assert torch.equal(found, expected)
    assert bool(torch.isfinite(pairs.dx).all())  # the padding was never read
    for width in (2, 3):
        windows = data.windows(width)
        assert torch.equal(windows.x, _by_hand(data, width)[0])
        assert torch.equal(windows.t, _by_hand(data, width)[1])


def test_a_window_longer_than_a_path_takes_none_of_it():
    assert len(_ragged().windows(4).x) == 2 + 0 + 4 + 0


@properties
@given(
    lengths=st.lists(st.integers(2, 6), min_size=1, max_size=5),
    k=st.integers(1, 3),
)
def test_coarsening_keeps_every_kth_observation_of_every_path(lengths, k):
    steps = max(lengths)
    data = Trajectories(normal(len(lengths), steps, 1), torch.arange(steps), lengths)
    if min(lengths) <= k:
        with pytest.raises(ValueError, match=rf"`coarsen\({k}\)` must keep two observations.*shortest has"):
            data.coarsen(k)
        return
    coarse = data.coarsen(k)
    for i, n in enumerate(lengths):
        kept = int(coarse.lengths[i])
        assert torch.equal(coarse.states[i, :kept], data.states[i, :n:k])
        assert torch.equal(coarse.times[:kept], data.times[:n:k])


def test_chunks_and_slices_are_the_paths_in_order_and_without_a_copy():
    data = _regular(paths=50, steps=40)
    chunks = list(data.chunks(megabytes=0.005))
    assert len(chunks) > 5
    assert torch.equal(torch.cat([chunk.states for chunk in chunks]), data.states)
    assert chunks[1].states.data_ptr() == data.states[len(chunks[0])].data_ptr()
    ragged = _ragged()
    assert torch.equal(ragged[1:3].pairs().x, torch.cat([ragged[1].pairs().x, ragged[2].pairs().x]))
    assert torch.equal(ragged[-1].pairs().x, ragged[3].pairs().x)


def test_a_split_puts_each_path_on_one_side():
    data = Trajectories(torch.arange(20.0).reshape(10, 2, 1), [0.0, 1.0])
    train, held = data.split(0.3, seed=4)
    sides = [set(part.states[:, 0, 0].tolist()) for part in (train, held)]
    assert len(held) == 3
    assert sides[0] | sides[1] == set(data.states[:, 0, 0].tolist())
    assert not sides[0] & sides[1]
    assert torch.equal(held.states, data.split(0.3, seed=4)[1].states)
    assert not torch.equal(held.states, data.split(0.3, seed=5)[1].states)
    ragged_held = _ragged().split(0.5, seed=1)[1]
    assert torch.equal(ragged_held.lengths, torch.isfinite(ragged_held.times).sum(1))  # lengths follow their paths


def test_the_interval_is_what_was_observed_and_not_what_was_padded():
    data = Trajectories(torch.zeros(2, 4, 1), [0.0, 1.0, 2.0, 9.0], [3, 2])
    assert data.interval == (0.0, 2.0)
    assert _ragged().interval[1] == float(np.nanmax(_ragged().times.numpy()))


def test_steps_are_those_between_observations():
    shared = Trajectories(torch.zeros(3, 4, 1), [0.0, 1.0, 3.0, 4.0])
    assert shared.steps.tolist() == [1, 2, 1] and shared.typical_step == 1
    ragged = _ragged()
    assert torch.equal(ragged.steps, ragged.pairs().dt)
    assert ragged.typical_step == float(ragged.pairs().dt.median())


# -- where the numbers come from ---------------------------------------------------------------------------------------


def test_numpy_torch_and_xarray_give_the_same_data():
    states, times = normal(3, 4, 2).numpy(), np.array([0.0, 1.0, 1.5, 4.0])
    expected = Trajectories(torch.from_numpy(states), torch.from_numpy(times))
    labelled = xarray.DataArray(states, dims=("path", "time", "component"), coords={"time": times})
    for data in (
        Trajectories(states, times),
        Trajectories(states.tolist(), times.tolist()),
        Trajectories(labelled),
        Trajectories(labelled, times),
        Trajectories(np.asfortranarray(states), times),
        Trajectories(states.astype(">f8"), times),
        Trajectories(states[:, ::-1][:, ::-1], times),
        Trajectories(states, np.broadcast_to(times, (3, 4))),
    ):
        for part, whole in zip(data.pairs(), expected.pairs(), strict=True):
            assert torch.equal(part, whole)
    assert torch.equal(Trajectories(np.arange(4).reshape(1, 4, 1), times).states.ravel(), real([0, 1, 2, 3]))


def test_memory_is_shared_and_float32_stays_float32():
    states = np.zeros((2, 3, 1), dtype=np.float32)
    data = Trajectories(states, [0.0, 0.1, 0.2])
    states[1, 2, 0] = 5.0
    assert float(data.states[1, 2, 0]) == 5.0
    assert data.states.dtype == torch.float32
    assert data.times.dtype == torch.float64


@pytest.mark.parametrize("mode", ["r", "r+"])
def test_a_memory_map_gives_the_same_bits_as_memory(tmp_path, mode):
    states = normal(20, 5, 3).numpy()
    np.save(tmp_path / "states.npy", states)
    mapped, times = np.load(tmp_path / "states.npy", mmap_mode=mode), np.arange(5.0)
    views = [
        lambda a: a,
        lambda a: a[7:12],
        lambda a: a[3:, ::2],
        lambda a: a[:, :, 1:],
        lambda a: a.transpose(0, 1, 2)[1::3],
        lambda a: a[::-1],
        lambda a: a.reshape(10, 10, 3)[:, :5],
    ]
    for view in views:
        part = view(states)
        data = Trajectories(view(mapped), times[: part.shape[1]])
        assert torch.equal(data.states, torch.from_numpy(part.copy()))


def test_a_read_only_map_is_not_read_into_memory_nor_written_to(tmp_path):
    np.lib.format.open_memmap(tmp_path / "states.npy", "w+", np.float64, (400, 1000, 2))[:] = 1.0
    mapped, times = np.load(tmp_path / "states.npy", mmap_mode="r"), np.arange(1000)
    tracemalloc.start()
    data = Trajectories(mapped[1:], times)
    mapped_peak = tracemalloc.get_traced_memory()[1]
    Trajectories(np.array(mapped[1:]), times)
    copied_peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert mapped_peak < 0.1 * mapped.nbytes < copied_peak
    data.states[:3] = 0.0  # in our copy-on-write twin, not in the file
    assert float(np.load(tmp_path / "states.npy").min()) == 1.0


def test_another_type_keeps_the_times_in_float64():
    data = Trajectories(torch.zeros(1, 2, 1, dtype=torch.float64), [0.0, 1e-9]).to(torch.float32)
    assert data.states.dtype == torch.float32
    assert float(data.times[1]) == 1e-9


# -- messages ----------------------------------------------------------------------------------------------------------


def _spoilt(value, path=1, index=2):
    states = np.zeros((3, 4, 2))
    states[path, index, 1] = value
    return states


T4 = [0.0, 1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((_spoilt(NAN), T4), r"`states` must be finite; path 1 has nan at time index 2\. Drop the path, cut it there"),
        ((_spoilt(np.inf), T4), r"path 1 has inf at time index 2"),
        ((_spoilt(NAN, index=1), T4, [4, 2, 4]), r"path 1 has nan at time index 1"),
        ((np.zeros((3, 4, 2)), [0.0, 1.0, 1.0, 2.0]), r"increase along each path; path 0 goes from 1 to 1 at index 2"),
        ((np.zeros((2, 4, 2)), [T4, [0, 2, 3, 1]]), r"path 1 goes from 3 to 1 at index 3\. Sort the observations"),
        ((np.zeros((3, 4, 2)), [0.0, 1.0, NAN, 2.0]), r"path 0 goes from 1 to nan at index 2"),
        ((np.zeros((3, 4, 2)), T4, [4, 1, 2]), r"at least two observations; path 1 has 1\. Drop such paths first"),
        ((np.zeros((3, 4, 2)), T4, [4, 5, 2]), r"`lengths` must have one entry .* up to 4; got .* up to 5"),
        ((np.zeros((3, 4, 2)), T4, [4, 4]), r"`lengths` must have one entry for each of the 3 paths.*got shape \(2,\)"),
        ((np.zeros((3, 4, 2)), T4, ["4", "4", "4"]), r"`lengths` must hold numbers; got dtype <U1"),
        ((np.zeros((3, 4, 2)), T4, [4, 2.5, 4]), r"`lengths` must be whole numbers"),
        ((np.zeros((3, 4, 2)), [0.0, 1.0]), r"`times` must have shape \(4,\) or \(3, 4\) to match.*got \(2,\)"),
        ((np.zeros((3, 4)), T4), r"`states` must be \(path, time, \*state\).*got shape \(3, 4\).*x\[None, :, None\]"),
        ((np.zeros((0, 4, 2)), T4), r"not empty; got shape \(0, 4, 2\)"),
        ((np.array([[["a"], ["b"]]]), [0.0, 1.0]), r"`states` must hold numbers; got dtype <U1"),
        (
            (np.zeros((1, 2, 1)), np.array(["2024-01-01", "2024-01-02"], dtype="M8[D]")),
            r"`times` must hold numbers.*sec",
        ),
        (
            (torch.zeros(1, 2, 1, dtype=torch.complex64), [0.0, 1.0]),
            r"`states` must hold real numbers; got torch.complex64",
        ),
        (([[[1.0], [2.0]], [[1.0]]], [0.0, 1.0]), r"`states` must be one array of numbers.*`lengths`"),
        ((np.zeros((3, 4, 2)),), r"`times` is missing\. Pass the observation times"),
    ],
)
def test_bad_data_is_refused_with_the_place_and_the_fix(arguments, message):
    with pytest.raises(ValueError, match=message):
        Trajectories(*arguments)


def test_an_xarray_array_must_say_which_dimension_is_which():
    array = xarray.DataArray(np.zeros((2, 3, 1)), dims=("time", "path", "c"))
    with pytest.raises(ValueError, match=r"needs dimensions \('path', 'time', …\).*got \('time', 'path', 'c'\)"):
        Trajectories(array)
    with pytest.raises(ValueError, match="needs dimensions .*a `time` coordinate"):
        Trajectories(array.transpose("path", "time", "c"))
    with pytest.raises(ValueError, match="is an xarray Dataset"):
        Trajectories(xarray.Dataset({"x": array}))


def test_requests_that_cannot_be_met_say_what_can():
    data = _regular(paths=3, steps=4)
    for width in (1, 5):
        with pytest.raises(ValueError, match=f"`width` must be from 2 to 4 observations; got {width}"):
            data.windows(width)
    with pytest.raises(ValueError, match=r"`held_out` = 0\.9 leaves 0 of 3 paths to train on; both sides need one"):
        data.split(0.9)
    with pytest.raises(ValueError, match=r"`coarsen\(0\)`"):
        data.coarsen(0)
    with pytest.raises(IndexError):
        data[3]


# -- one long path, cut ------------------------------------------------------------------------------------------------


def _transitions(data):
    """Every transition as a row, sorted: what is there, and how often, whatever the order."""
    x, t, dx, dt = data.pairs()
    return sorted(torch.cat([x, t[:, None], dx, dt[:, None]], dim=1).tolist())


@pytest.mark.parametrize("make", [_regular, _ragged])
@pytest.mark.parametrize("length", [2, 4, 100])
def test_cutting_loses_no_transition_and_repeats_none(make, length):
    data = make()
    assert _transitions(data.cut(length)) == _transitions(data)
    assert _transitions(data[:-1].cut(length)) != _transitions(data)


def test_a_piece_begins_where_the_one_before_it_ends_and_keeps_its_times():
    data = Trajectories(torch.arange(8.0).reshape(1, 8, 1), torch.arange(8.0) ** 2)
    pieces = data.cut(4)
    assert pieces.lengths.tolist() == [4, 4, 2]
    assert [row[:n, 0].tolist() for row, n in zip(pieces.states, pieces.lengths, strict=True)] == [
        [0.0, 1.0, 2.0, 3.0],
        [3.0, 4.0, 5.0, 6.0],
        [6.0, 7.0],
    ]
    assert torch.equal(pieces.times[1], real([9.0, 16.0, 25.0, 36.0]))
    assert data.cut(8).lengths is None and len(data.cut(8)) == 1  # nothing to cut, nothing padded
    assert len(data.windows(3).x) - len(pieces.windows(3).x) == 2  # a window across a cut is in no piece
    Trajectories(pieces.states, pieces.times, pieces.lengths)  # valid as it stands


def test_a_piece_must_hold_a_transition():
    with pytest.raises(ValueError, match="`length` must be two or more observations.*got 1"):
        _regular().cut(1)
