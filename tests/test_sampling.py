"""Batches are a function of seed and step, the same from memory, from disk and for any number of processes."""

import json
import os
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from problems import PAPER, normal

from phibe import Trajectories
from phibe.io import open_data, save_data
from phibe.networks.mlp import MLP
from phibe.training.config import FitConfig
from phibe.training.loop import fit_network
from phibe.training.sampling import BLOCKS, Batches, Order, Samples
from phibe.trajectories import split_paths

REGULAR = Trajectories(normal(7, 9, 3), torch.linspace(0, 1, 9))
OWN_TIMES = Trajectories(normal(7, 9, 3), torch.rand(7, 9, generator=torch.Generator().manual_seed(0)).cumsum(1))
RAGGED = Trajectories(normal(7, 9, 2, 2), torch.linspace(0, 1, 9), lengths=[9, 2, 5, 3, 9, 4, 8])
KINDS = pytest.mark.parametrize("data", [REGULAR, OWN_TIMES, RAGGED], ids=["regular", "own times", "ragged"])


# -- samples -----------------------------------------------------------------------------------------------------------


@KINDS
def test_samples_are_the_pairs_and_windows_of_the_data(data):
    samples = Samples(data)
    everything = torch.arange(len(samples))
    for taken, expected in zip(samples.take(everything), data.pairs(), strict=True):
        torch.testing.assert_close(taken.to(expected.dtype), expected, rtol=0, atol=0)
    longer = Samples(data, width=3)
    for taken, expected in zip(longer.take(torch.arange(len(longer))), data.windows(3), strict=True):
        torch.testing.assert_close(taken.to(expected.dtype), expected, rtol=0, atol=0)


@KINDS
def test_samples_of_some_paths_are_those_of_the_smaller_data(data):
    paths = torch.tensor([1, 2, 5])
    part, whole = Samples(data, paths=paths), Samples(data[paths])
    index = torch.randperm(len(part), generator=torch.Generator().manual_seed(0))
    assert len(part) == len(whole) < len(Samples(data))
    for a, b in zip(part.take(index), whole.take(index), strict=True):
        assert torch.equal(a, b)
    path, time = part.where(index)
    assert torch.equal(data.states[path, time], part.take(index)[0])


def test_too_short_paths_have_no_samples():
    with pytest.raises(ValueError, match="no run of 3 observations in these 1 paths"):
        Samples(RAGGED, width=3, paths=torch.tensor([1]))


def test_the_split_is_that_of_the_trajectories():
    data = Trajectories(normal(53, 4, 1), torch.arange(4.0))
    for train, held in ((split_paths(53, 0.2, seed=3)), (split_paths(53, 0.35, seed=3))):
        expected = data.split(len(held) / 53, seed=3)
        assert torch.equal(data[train].states, expected[0].states)
        assert torch.equal(data[held].states, expected[1].states)
    assert len(split_paths(4, 0.1, seed=0)[1]) == 1  # one is held out, however small the share


# -- order -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "window"), [(1, 64), (1003, 64), (5000, 640)])
def test_every_epoch_has_each_sample_once(count, window):
    order = Order(count, seed=1, window=window)
    for epoch in range(3):
        assert torch.equal(order[epoch * count : (epoch + 1) * count].sort().values, torch.arange(count))
    if count > 1:
        assert not torch.equal(order[:count], order[count : 2 * count])
        assert not torch.equal(order[:count], Order(count, seed=2, window=window)[:count])


def test_the_stream_is_the_same_wherever_reading_begins():
    whole = Order(1003, seed=1, window=128)[0:4000]
    for start, stop in ((0, 10), (120, 300), (1000, 1010), (2500, 4000), (999, 3500)):
        assert torch.equal(Order(1003, seed=1, window=128)[start:stop], whole[start:stop])


def test_reads_of_large_data_stay_near_a_few_places():
    order = Order(100_000, seed=0, window=6400)
    for start in (0, 40_000, 91_000):
        near = order[start : start + 3000].sort().values
        blocks = int((near.diff() > 300).sum()) + 1
        assert blocks <= 2 * BLOCKS
        assert near[-1] - near[0] > 50_000  # but these places are spread over all of it
    whole = Order(100_000, seed=0, window=200_000)[0:3000].sort().values
    assert whole.diff().max() < 300  # while small data is shuffled as a whole


# -- batches -----------------------------------------------------------------------------------------------------------


def test_processes_take_slices_of_one_batch_with_the_same_random_numbers():
    config = FitConfig(batch=16, input_noise=0.1)

    def share(rank, world):
        devices = SimpleNamespace(world_size=world, global_rank=rank, device=torch.device("cpu"))
        batches = Batches(Samples(REGULAR), config, devices)
        probes = torch.randint(0, 2, (16 // world, 3), generator=batches.probes(5))
        return [*batches.sample(5), probes]

    alone, shares = share(0, 1), [share(rank, 4) for rank in range(4)]
    for whole, parts in zip(alone, zip(*shares, strict=True), strict=True):
        assert torch.equal(whole, torch.cat(parts))


# -- data on disk ------------------------------------------------------------------------------------------------------


def equal(a, b):
    assert torch.equal(a.states, b.states)
    assert torch.equal(a.times, b.times)
    assert (a.lengths is None) == (b.lengths is None)
    assert a.lengths is None or torch.equal(a.lengths, b.lengths)


@KINDS
def test_a_store_is_read_through_a_memory_map_of_the_same_numbers(tmp_path, data):
    save_data(data, tmp_path / "data.zarr")
    for _ in range(2):  # the second time from the copy
        equal(open_data(tmp_path / "data.zarr"), data)
    assert open_data(save_data(data, tmp_path / "data.npz")).states.shape == data.states.shape


def test_training_from_disk_ends_with_the_same_bits(tmp_path):
    data = PAPER["reversible"].simulate(paths=30, times=torch.linspace(0, 1, 9), seed=0)
    config = FitConfig(steps=12, batch=16, evaluate_every=6)
    torch.manual_seed(0)
    network = MLP((2,), width=8, depth=1)
    mapped = open_data(save_data(data, tmp_path / "data.zarr"))
    flows = [fit_network(d, network, "regression", config=config, progress=False) for d in (data, mapped)]
    for a, b in zip(*(flow.velocity.state_dict().values() for flow in flows), strict=True):
        assert torch.equal(a, b)


def test_a_store_that_changed_is_copied_again_and_its_old_copy_goes(tmp_path):
    store = save_data(REGULAR, tmp_path / "data.zarr")
    open_data(store, cache=tmp_path / "cache")
    (first,) = os.listdir(tmp_path / "cache")
    other = Trajectories(REGULAR.states + 1, REGULAR.times)
    save_data(other, store)
    equal(open_data(store, cache=tmp_path / "cache"), other)
    (second,) = os.listdir(tmp_path / "cache")
    assert first != second


@pytest.mark.parametrize("chunks", [(7, 2, 3), (3, 4, 1)])
def test_stores_of_xarray_are_read_whatever_their_chunks(tmp_path, chunks):
    import xarray

    dims, times = ("path", "time", "x"), REGULAR.times.numpy()
    array = xarray.DataArray(REGULAR.states.float().numpy(), dims=dims, coords={"time": times})
    array.to_dataset(name="u").to_zarr(tmp_path / "data.zarr", encoding={"u": {"chunks": chunks}})
    equal(open_data(tmp_path / "data.zarr"), REGULAR.to(torch.float32))


def test_stores_that_cannot_be_used_say_why_and_leave_nothing(tmp_path):
    import zarr

    bad = REGULAR.states.clone()
    bad[4, 2, 1] = float("nan")
    group = zarr.open_group(tmp_path / "bad.zarr", mode="w")
    group.create_array("states", data=bad.numpy(), chunks=(2, 9, 3))
    group.create_array("times", data=REGULAR.times.numpy())
    with pytest.raises(ValueError, match="path 4 has nan at time index 2"):
        open_data(tmp_path / "bad.zarr", cache=tmp_path / "cache")
    assert not (tmp_path / "cache").exists()
    zarr.open_group(tmp_path / "other.zarr", mode="w").create_array("speed", data=np.zeros(3))
    with pytest.raises(ValueError, match=r"other.zarr must hold `states` and `times`, or one array"):
        open_data(tmp_path / "other.zarr")
    (tmp_path / "text.zarr").mkdir()
    (tmp_path / "text.zarr" / "note").write_text("hello", encoding="utf8")
    with pytest.raises(ValueError, match="text.zarr is not a readable .zarr file"):
        open_data(tmp_path / "text.zarr")
    with pytest.raises(ValueError, match="There is no file"):
        open_data(tmp_path / "none.zarr")


def test_a_map_may_be_larger_than_memory(tmp_path):
    """The file is sparse: it claims more bytes than this machine has, and holds almost none."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    store = save_data(REGULAR, tmp_path / "data.zarr")
    open_data(store)
    (folder,) = (tmp_path / "data.cache").iterdir()
    paths = 2 * memory // (9 * 3 * 8)
    huge = np.lib.format.open_memmap(folder / "states.npy", mode="w+", dtype=np.float64, shape=(paths, 9, 3))
    huge[-1, -1, -1] = 7.0
    data = open_data(store)
    assert data.states.nbytes > 1.9 * memory
    assert float(data.states[-1, -1, -1]) == 7.0
    assert json.dumps(data.interval) == "[0.0, 1.0]"
