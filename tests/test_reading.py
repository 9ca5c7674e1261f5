"""Readers: what is written is read again with its names, and missing values are treated as was asked."""

import csv
import io
import re
import tempfile
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from problems import properties

from phibe import Trajectories, open_data
from phibe.io import data_warnings, describe_data, from_arrays, save_data, treat_missing
from phibe.tables import numbers, read_csv
from phibe.trajectories import Label, Labels

LABELS = Labels.read(["time [s]", "x [m]", "speed (m/s)"])


def some(ragged=False, own=True, seed=0):
    generator = np.random.default_rng(seed)
    times = np.sort(generator.uniform(0, 2, (5, 7)), axis=1) if own else np.linspace(0, 1, 7)
    states, lengths = generator.normal(size=(5, 7, 2)), np.array([7, 3, 5, 2, 7]) if ragged else None
    if ragged:
        beyond = np.arange(7) >= lengths[:, None]
        states[beyond] = np.nan
        if own:
            times[beyond] = np.nan
    return Trajectories(states, times, lengths, labels=LABELS)


def same(a, b):
    inside = a._observed()
    assert torch.equal(inside, b._observed())
    assert torch.equal(a.states[inside], b.states[inside])
    assert torch.equal(a._path_times()[inside], b._path_times()[inside])
    for part, whole in zip(a.pairs(), b.pairs(), strict=True):
        assert torch.equal(part, whole)
    assert a.labels == b.labels


@pytest.mark.parametrize(("own", "ragged"), [(False, False), (True, True)])
@pytest.mark.parametrize("kind", ["csv", "npz", "nc", "zarr"])
def test_what_is_saved_is_read_again_with_its_names(tmp_path, kind, own, ragged):
    data = some(ragged, own)
    again = open_data(save_data(data, tmp_path / f"data.{kind}"))
    same(data, again)
    assert again.shared_times is not own
    assert again.labels.state == (Label("x", "m"), Label("speed", "m/s"))
    assert str(again.labels.time) == "time [s]"


def test_an_array_alone_takes_its_times_from_a_step(tmp_path):
    data = some(own=False)
    again = open_data(save_data(data, tmp_path / "data.npy"), time_step=0.25)
    assert torch.equal(again.states, data.states)
    torch.testing.assert_close(again.times, torch.arange(7).double() / 4)


def test_labels_stay_with_parts_and_leave_with_another_state():
    data = some(ragged=True)
    for part in (data[:2], data[1], data.coarsen(1), data.cut(4), data.to(torch.float32), *data.split(0.4)):
        assert part.labels == LABELS
    assert data._with(data.states[..., :1], data.times, data.lengths).labels == Labels()
    with pytest.raises(ValueError, match="`labels` must name each of the 2 coordinates; got 1: x"):
        Trajectories(data.states, data.times, labels=Labels.read(["t", "x"]))


# -- open files --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["csv", "npz", "nc"])
def test_an_open_file_is_read_as_one_with_a_path(tmp_path, kind):
    data = some(ragged=True)
    path = save_data(data, tmp_path / f"data.{kind}")
    same(data, open_data(io.BytesIO(path.read_bytes()), kind=kind))
    with path.open("rb") as file:
        same(data, open_data(file))


def test_an_open_npy_stays_when_the_file_is_closed(tmp_path):
    data = some(own=False)
    again = open_data(io.BytesIO(save_data(data, tmp_path / "data.npy").read_bytes()), kind=".npy", time_step=1)
    assert torch.equal(again.states, data.states)


def test_messages_about_an_open_file_name_it_and_not_its_copy():
    with pytest.raises(ValueError, match=r"^data.csv: line 3 has 'a' in column 'x'"):
        open_data(io.BytesIO(b"time,x\n0,1\n1,a\n"), kind="csv")
    with pytest.raises(ValueError, match="got 'data'.*Of an open file say the `kind`"):
        open_data(io.BytesIO(b"time,x\n0,1\n1,2\n"))
    with pytest.raises(ValueError, match=r"The `kind` of a.csv is that of its name; 'npz' can be said of an open file"):
        open_data("a.csv", kind="npz")
    with pytest.raises(ValueError, match=r"^data.zarr is a file, and no .zarr"):
        open_data(io.BytesIO(b""), kind="zarr")


# -- tables ------------------------------------------------------------------------------------------------------------


def read(tmp_path, text, **options):
    (tmp_path / "data.csv").write_text(text, encoding="utf8")
    return open_data(tmp_path / "data.csv", **options)


@pytest.mark.parametrize(
    "text",
    [
        "path,time,x\na,0,1.5\nb,0,3\na,1,2\nb,1,4\n",  # interleaved
        "\ufeffpath;time;x\na;0;1,5\na;1;2\n\nb;0;3\nb;1;4\n",  # decimal commas, a byte-order mark, an empty line
        "\ttime\tx\tpath\n0\t0\t1.5\ta\n1\t1\t2\ta\n2\t0\t3\tb\n3\t1\t4\tb\n",  # an unnamed index, other order
        'time,"path",x\n0,a,1.5\n1,a,2\n0,b,3\n1,b,"4"\n',
    ],
)
def test_tables_of_many_forms_hold_the_same_paths(tmp_path, text):
    data = read(tmp_path, text)
    assert data.shared_times
    assert torch.equal(data.states[..., 0], torch.tensor([[1.5, 2.0], [3.0, 4.0]], dtype=torch.float64))
    assert data.labels.state == (Label("x"),)


def test_columns_may_be_named(tmp_path):
    text = "run no,minute,x,y,note\n7,0,1,2,a\n7,5,2,3,b\n"
    data = read(tmp_path, text, path_column="run no", time_column="minute", columns=["y", "x"])
    assert data.states.tolist() == [[[2, 1], [3, 2]]]
    assert data.labels.texts() == ["minute", "y", "x"]


CELLS = st.floats(-1e9, 1e9).map(repr) | st.sampled_from(["", " NA", "inf", "-0", " 7 ", "4.9e-324", "1e16"])


@properties
@given(
    rows=st.lists(st.tuples(CELLS, CELLS), min_size=2, max_size=6),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    delimiter=st.sampled_from(",;\t"),
    end=st.sampled_from(["\n", "\r\n"]),
    blank=st.sampled_from(["", "  ", "{0}{0}", "{0}", " {0} {0} "]),
)
def test_a_table_is_read_to_the_last_bit_however_it_is_written(rows, quoting, delimiter, end, blank):
    text = io.StringIO()
    writer = csv.writer(text, delimiter=delimiter, quoting=quoting, lineterminator=end)
    writer.writerow(["time", "x", "y"])
    for k, row in enumerate(rows):
        writer.writerow([k, *row])
        text.write(blank.format(delimiter) + end)
    table = read_csv_text(text.getvalue())
    expected = [[float("nan") if cell.strip() in ("", "NA") else float(cell) for cell in row] for row in rows]
    found = np.stack([numbers(table, name, "") for name in ("x", "y")], axis=1)
    np.testing.assert_array_equal(found, expected)
    assert [table.where(k) for k in range(len(rows))] == [f"line {2 + 2 * k}" for k in range(len(rows))]


def read_csv_text(text):
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "data.csv").write_bytes(text.encode())
        return read_csv(Path(folder) / "data.csv")


def test_a_path_is_named_by_text_and_not_by_a_number(tmp_path):
    names = ["7", "007", "7.0", "nan", "NA", "-", "true", "True", " 7"]
    data = read(tmp_path, "path,time,x\n" + "".join(f"{n},{t},{k}\n" for k, n in enumerate(names) for t in (0, 1)))
    assert data.states[:, 0, 0].tolist() == list(range(len(names)))
    np.savez(tmp_path / "a.npz", path=np.array(["b", "b", "a", "a"]), t=[0.0, 1.0, 0.0, 1.0], x=[1.0, 2.0, 3.0, 4.0])
    assert open_data(tmp_path / "a.npz").states[:, 0, 0].tolist() == [1, 3]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("time,x\n0,1\n\n\n1,2\n2,a\n", "line 6 has 'a' in column 'x', and a number is needed"),
        ('time,x,note\n0,1,"two\nlines"\n1,q,b\n', "line 4 has 'q' in column 'x'"),
        ('time,x\n0,"1"2\n1,3\n', "line 2 cannot be read: ',' expected after '\"'"),
        ("time,x\n0,True\n1,False\n", "line 2 has 'True' in column 'x'"),
        ("time,x\n0,1,5,6\n1,2,5,6\n", "line 2 has 4 values and the header 2 names"),
        ("time,x,y\n0,1,\n1,2\n", "line 3 has 2 values and the header 3 names"),
        ("time;x\n0;1,5\n1;2.5\n", "line 2 has '1,5' in column 'x'"),
        ("time,x\n2024-01-30,1\n\n2024-02-31,2\n", "line 4 has '2024-02-31' in column 'time', a date that cannot be"),
        ("time,x\n2024-01-30,1\n,2\n", "line 3 has no time in column 'time'"),
        ('time,"x\ny"\n0,1\n', "the first line, 'time,\"x', cannot be read"),
        (",,\n , \n", "the first line, '', is one column"),
    ],
)
def test_a_table_that_cannot_be_read_names_the_line(tmp_path, text, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        read(tmp_path, text)


def test_an_index_is_part_of_a_name_and_no_unit(tmp_path):
    data = Trajectories(np.zeros((1, 2, 2)), [0.0, 1.0])
    assert open_data(save_data(data, tmp_path / "data.csv")).labels.texts() == ["t", "x[0]", "x[1]"]
    assert open_data(tmp_path / "data.csv", columns=["x[1]"]).labels.texts() == ["t", "x[1]"]
    assert [Label.parse(text) for text in ("x[m]", "u [1]", "u(1)")] == [
        Label("x", "m"),
        Label("u", "1"),
        Label("u", "1"),
    ]


def test_single_precision_is_written_with_every_digit(tmp_path):
    data = Trajectories(torch.rand(3, 4, 2, generator=torch.Generator().manual_seed(0)), torch.arange(4))
    assert data.states.dtype == torch.float32
    assert torch.equal(open_data(save_data(data, tmp_path / "data.csv")).states, data.states.double())


def test_a_table_that_could_not_be_written_leaves_the_old_one(tmp_path, monkeypatch):
    def half(frame, path, **options):
        path.write_text("path,t", "utf8")
        raise KeyboardInterrupt

    path = save_data(some(), tmp_path / "data.csv")
    monkeypatch.setattr(pandas.DataFrame, "to_csv", half)
    with pytest.raises(KeyboardInterrupt):
        save_data(some(seed=1), path)
    same(open_data(path), some())
    assert list(tmp_path.iterdir()) == [path]


def test_dates_become_days(tmp_path):
    data = read(tmp_path, "date,x\n2024-02-28,1\n2024-02-29,2\n2024-03-01T12:00,3\n")
    assert data.times.tolist() == [0, 1, 2.5]
    assert str(data.labels.time) == "date [d]"


def test_datasets_of_others_are_read_by_their_dimensions(tmp_path):
    import xarray

    time = ("time", [0.0, 1.0, 4.0], {"units": "days since 2000-01-01"})
    x, y = (np.arange(6.0).reshape(2, 3) + k for k in (0, 10))
    variables = {"x": (("path", "time"), x, {"units": "K"}), "y": (("path", "time"), y)}
    xarray.Dataset(variables, coords={"time": time}).to_netcdf(tmp_path / "a.nc", engine="h5netcdf")
    data = open_data(tmp_path / "a.nc")
    assert torch.equal(data.states, torch.from_numpy(np.stack([x, y], -1)))
    assert data.labels.texts() == ["time [days]", "x [K]", "y"]
    xarray.Dataset({"x": ("time", x[0])}, coords={"time": time}).to_netcdf(tmp_path / "b.nc", engine="h5netcdf")
    assert open_data(tmp_path / "b.nc").states[..., 0].tolist() == [x[0].tolist()]


def test_columns_in_an_archive_are_a_table(tmp_path):
    np.savez(tmp_path / "a.npz", path=[0, 0, 1, 1], t=[0.0, 1.0, 0.0, 2.0], x=[1.0, 2.0, 3.0, 4.0])
    data = open_data(tmp_path / "a.npz")
    assert data.states[..., 0].tolist() == [[1, 2], [3, 4]]
    assert data.times.tolist() == [[0, 1], [0, 2]]


def test_one_long_path_is_cut_into_windows_with_times_of_their_own(tmp_path):
    text = "time,x\n" + "".join(f"{k / 4},{k}\n" for k in range(9))
    data = read(tmp_path, text, windows=3)
    assert data.states[..., 0].tolist() == [[0, 1, 2], [2, 3, 4], [4, 5, 6], [6, 7, 8]]
    assert data.times.tolist() == [[0, 0.25, 0.5]] * 4


# -- missing values ----------------------------------------------------------------------------------------------------


def holes():
    """Two paths of eight observations, one at 2 and one at 5 missing in the first, all but two in the second."""
    states = np.arange(16.0).reshape(2, 8, 1)
    states[0, [2, 5]] = np.nan
    states[1, [1, 2, 4, 5, 6, 7]] = np.nan
    return {"states": states, "times": np.arange(8.0)}


def transitions(arrays):
    x, t, dx, dt = from_arrays(arrays).pairs()
    return sorted(zip(t.tolist(), x[:, 0].tolist(), dx[:, 0].tolist(), dt.tolist(), strict=True))


def test_drop_leaves_exactly_the_transitions_that_touch_no_missing_value():
    arrays, note = treat_missing(holes(), "drop")
    full = np.arange(16.0).reshape(2, 8)
    kept = [(0, k) for k in (0, 3, 6)]  # first observation of each transition that is left
    assert transitions(arrays) == [(k, full[p, k], 1.0, 1.0) for p, k in kept]
    assert "8 missing observations" in note and "2 paths became 3 with 3 transitions" in note


def test_split_cuts_at_gaps_in_time_too_and_whole_data_stays_as_it_is():
    whole = {"states": np.arange(6.0).reshape(1, 6, 1), "times": np.array([0, 1, 2, 30, 31, 32.0])}
    assert treat_missing(whole, "drop") == (whole, "")
    assert treat_missing(whole, "error") == (whole, "")
    arrays, note = treat_missing(whole, "split")
    assert [t for t, *_ in transitions(arrays)] == [0, 1, 30, 31]
    assert "1 gaps in time" in note


def test_an_error_names_the_first_and_counts_all():
    with pytest.raises(
        ValueError, match=r"8 of 16 observations have a missing value, the first in path 0 at time index 2"
    ):
        treat_missing(holes(), "error")


def test_padding_is_not_missing():
    arrays = {"states": np.full((2, 3, 1), np.nan), "times": np.arange(3.0), "lengths": np.array([3, 2])}
    arrays["states"][0, :, 0], arrays["states"][1, :2, 0] = 1.0, 2.0
    assert treat_missing(arrays, "error")[1] == ""


# -- what was understood -----------------------------------------------------------------------------------------------


def test_a_description_holds_the_numbers_of_the_data():
    text = describe_data(some(), "file", noise="0.5", missing="")
    states = some().states
    for fact in ("5", "7 a path", "each path its own", "x [m], speed [m/s], over time [s]", "noise      0.5"):
        assert fact in text
    assert f"from {states[..., 0].min():.4g} to {states[..., 0].max():.4g}, mean {states[..., 0].mean():.4g}" in text
    assert f"spread {states[..., 1].std(correction=0):.4g}" in text
    assert "missing" not in text and "warning" not in text


def clean(paths=30, steps=101):
    x = np.random.default_rng(0).normal(size=(paths, steps, 2)).cumsum(1)
    return x, np.linspace(0, 1, steps)


def spoilt(kind):
    x, t = clean()
    if kind == "constant":
        x[..., 1] = 3.0
    if kind == "rounded":
        x[..., 1] = np.sign(x[..., 1])
    if kind == "outlier":
        x[2, 5, 1] = -9999.0
    if kind == "filled":
        x[:, 1::2] = x[:, :-1:2]
    if kind == "rows":
        t = np.arange(101.0)
    if kind == "gap":
        t[50:] += 3.0
    return Trajectories(x, t)


@pytest.mark.parametrize(
    ("kind", "warning"),
    [
        ("constant", "x[1] is 3 everywhere: a constant has no velocity"),
        ("rounded", "x[1] takes only 2 different values"),
        (
            "outlier",
            "x[1] has 1 values further than 20 spreads from its median, the first -9999 in path 2 at time index 5",
        ),
        ("filled", "50% of the transitions repeat the state exactly"),
        ("rows", "the times are 0, 1, 2, …: numbers of rows?"),
        ("gap", "30 steps are longer than 10 median ones, the first in path 0 after time index 49"),
    ],
)
def test_each_oddity_gets_its_warning_and_no_other(kind, warning):
    (found,) = data_warnings(spoilt(kind))
    assert found.startswith(warning)
    assert data_warnings(Trajectories(*clean())) == []
