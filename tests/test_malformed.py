"""Files that cannot be used: each gets one clear line and exit code 2, no traceback, and nothing is written."""

import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest

from phibe.cli import main

ROWS = [(path, k / 4, np.sin(path + k), np.cos(path * k)) for path in range(6) for k in range(6)]
GOOD = "\n".join(["path,time,x [m],y", *(f"{p},{t},{x},{y}" for p, t, x, y in ROWS)]) + "\n"
STATES = np.array([[x, y] for _, _, x, y in ROWS]).reshape(6, 6, 2)
TIMES = np.arange(6) / 4


def text(content, name="data.csv", encoding="utf8"):
    return lambda folder: (folder / name).write_bytes(
        content if isinstance(content, bytes) else content.encode(encoding)
    )


def changed(old, new, count=1):
    assert old in GOOD
    return text(GOOD.replace(old, new, count))


def rows(*lines):
    return text("\n".join(lines) + "\n")


def npz(**arrays):
    return lambda folder: np.savez(folder / "data.npz", **({"states": STATES, "times": TIMES} | arrays))


def npy(array, name="data.npy", **options):
    return lambda folder: np.save(folder / name, array, **options)


def cut(make, name, share=0.6):
    """The same file without its end."""

    def broken(folder):
        make(folder)
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: int(share * len(content))])

    return broken


def bomb(folder):
    """A hundred small members that declare to be of four gigabytes each."""
    with zipfile.ZipFile(folder / "data.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        for k in range(100):
            archive.writestr(f"array{k}.npy", bytes(1000))
    content = bytearray((folder / "data.npz").read_bytes())
    place = content.find(b"PK\x01\x02")
    while place >= 0:
        content[place + 24 : place + 28] = struct.pack("<I", 0xF0000000)
        place = content.find(b"PK\x01\x02", place + 4)
    (folder / "data.npz").write_bytes(content)


def netcdf(**variables):
    def make(folder):
        import xarray

        xarray.Dataset(variables).to_netcdf(folder / "data.nc", engine="h5netcdf")

    return make


def store(**arrays):
    def make(folder):
        import zarr

        group = zarr.open_group(folder / "data.zarr", mode="w")
        for name, array in arrays.items():
            if isinstance(array, tuple):
                group.create_array(name, shape=array, dtype="f8", chunks=(1, 1000, 3))
            else:
                group.create_array(name, data=array)

    return make


def nan(states=STATES):
    states = states.copy()
    states[2, 3:5, 1] = np.nan
    return states


HOLES = GOOD.replace("2,0.75,", "2,0.75,nan,1\n2,0.8,")

TABLES = {
    "wrong delimiter": (text(GOOD.replace(",", "|")), "is one column"),
    "duplicated times": (changed("0,0.5,", "0,0.25,"), "the time of path 0 must increase; it goes from 0.25 (line 3)"),
    "mixed lengths": (changed("0,0.5,", "0,0.5,3,"), "line 4 has 5 values and the header 4 names"),
    "a word among numbers": (rows("time,x", "0,1", "1,abc", "2,3"), "line 3 has 'abc' in column 'x'"),
    "huge value": (rows("time,x", "0,1", "1,1e300", "2,3"), "1e+300 in path 0 at time index 1: too large"),
    "a path of one time": (text(GOOD + "9,0.0,1,1\n"), "path 6 has 1"),
    "one row": (rows("time,x", "0,1"), "Each path needs at least two observations"),
    "NaN block": (text(HOLES), "1 of 37 observations have a missing value, the first in path 2 at time index 3"),
    "empty": (text(""), "data.csv is empty"),
    "header alone": (rows("path,time,x"), "has a header and no rows"),
    "no header": (text(GOOD.partition("\n")[2]), "the first line must name the columns"),
    "no time": (text(GOOD.replace("time", "when")), "has no column of times; it has 'path', 'when'"),
    "no coordinate": (rows("path,time", "0,0", "0,1"), "has a time and no coordinate"),
    "UTF-16": (text(GOOD, encoding="utf-16"), "is text in UTF-16"),
    "Latin-1": (text(GOOD.replace("[m]", "[µm]").encode("latin-1")), "is not text in UTF-8: byte 13 is 0xb5"),
    "binary": (text(bytes(range(256)) * 9), "is no text: byte 0 is zero"),
    "open quote": (changed("0,0.5,", '0,0.5,"'), "cannot be read: unexpected end of data"),
    "two columns of one name": (text(GOOD.replace("x [m],y", "x,x")), "two columns are called 'x'"),
    "no path": (changed("1,0.0,", ",0.0,"), "line 8 belongs to no path: 'path' is empty"),
    "no instant": (changed("1,0.25,", "1,,"), "line 9 has no time in column 'time'"),
    "several paths without a column": (text(GOOD.replace("path", "y2")), "Several paths? Add a column `path`."),
    "impossible date": (rows("date,x", "2024-01-30,1", "2024-02-31,2"), "a date that cannot be read"),
}

ARRAYS = {
    "pickled npz": (npz(states=np.array([{}, []], dtype=object)), "Object arrays cannot be loaded"),
    "truncated npz": (cut(npz(), "data.npz"), "it is no zip archive; cut short"),
    "zip bomb": (bomb, "GB of numbers, and this machine has"),
    "no states": (npz(states=np.zeros(3), x=np.zeros((2, 2))), "`states` must be (path, time, *state)"),
    "nothing known": (lambda f: np.savez(f / "data.npz", a=np.zeros(3)), "must hold `states`"),
    "complex": (npz(states=STATES + 1j), "must hold numbers; got dtype complex128"),
    "flat states": (
        npz(states=STATES[..., 0]),
        "`states` must be (path, time, *state) and not empty; got shape (6, 6)",
    ),
    "times of another length": (npz(times=TIMES[:-1]), "`times` must have shape (6,) or (6, 6)"),
    "dates as times": (npz(times=np.array("2024-01-01", "M8[D]") + np.arange(6)), "Convert times to seconds or days"),
    "lengths beyond the end": (npz(lengths=np.full(6, 9)), "up to 6; got shape (6,), up to 9"),
    "broken lengths": (npz(lengths=np.full(6, 2.5)), "`lengths` must be whole numbers"),
    "missing in npz": (npz(states=nan()), "2 of 36 observations have a missing value, the first in path 2"),
    "flat npy": (npy(np.arange(5.0)), "holds states (5,) and no times"),
    "npy without times": (npy(STATES), "Say how long: --time-step 0.1"),
    "pickled npy": (npy(np.array([None, 1]), allow_pickle=True), "Array can't be memory-mapped: Python objects"),
    "truncated npy": (cut(npy(STATES), "data.npy"), "mmap length is greater than file size"),
    "foreign nc": (netcdf(height=("lat", np.arange(3.0))), "must hold variables over ('path', 'time', …)"),
    "truncated nc": (cut(netcdf(x=(("path", "time"), STATES[..., 0])), "data.nc"), "is not a readable .nc file"),
    "nc without times": (netcdf(x=(("path", "time"), STATES[..., 0])), "and a `time`; it holds x ('path', 'time')"),
    "empty zarr": (lambda f: (f / "data.zarr").mkdir(), "is not a readable .zarr file"),
    "foreign zarr": (store(speed=np.zeros(3)), "must hold `states` and `times`"),
    "zarr that is a file": (text("hello", "data.zarr"), "data.zarr is a file, and no .zarr"),
    "missing in zarr": (store(states=nan(), times=TIMES), "`states` must be finite; path 2 has nan at time index 3"),
    "zarr beyond the disk": (store(states=(10**9, 10**5, 3), times=np.arange(1e5)), "GB left for a copy"),
    "a folder": (lambda f: (f / "data.csv").mkdir(), "data.csv is a folder, and no .csv"),
    "no file": (lambda f: None, "There is no file data.csv"),
    "unknown kind": (text(GOOD, "data.parquet"), "are read from .csv, .npz, .npy, .nc or .zarr; got 'data.parquet'"),
}

OPTIONS = {
    "no such column": (text(GOOD), "--columns x,z", "has no column 'z'"),
    "no such choice": (text(GOOD), "--missing guess", "--missing needs one of error, drop, split; got 'guess'"),
    "a whole column missing": (rows("time,x,y", "0,1,", "1,2,", "2,3,"), "--missing drop", "no two neighbouring"),
    "windows of one": (text(GOOD), "--windows 1", "`length` must be two or more observations"),
    "a step of no length": (npy(STATES), "--time-step 0", "`times` must be finite and increase"),
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(capsys, folder, *arguments):
    """The one line that is said; what is in the folder is as before."""
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    code = main(list(arguments))
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert err.startswith("phibe: ") and err.count("\n") == 1 and "Traceback" not in err
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    return err


def file_in(folder):
    return next((path.name for path in folder.iterdir()), "data.csv")


@pytest.mark.parametrize("case", TABLES | ARRAYS)
def test_a_malformed_file_gets_one_clear_line(folder, capsys, case):
    make, message = (TABLES | ARRAYS)[case]
    make(folder)
    assert message in refused(capsys, folder, "check", file_in(folder))


@pytest.mark.parametrize("case", ["no header", "missing in npz", "zarr beyond the disk"])
def test_so_it_does_when_it_is_to_be_fitted(folder, capsys, case):
    make, message = (TABLES | ARRAYS)[case]
    make(folder)
    assert message in refused(capsys, folder, "fit", file_in(folder))


@pytest.mark.parametrize("case", OPTIONS)
def test_so_do_options_that_do_not_fit_the_file(folder, capsys, case):
    make, options, message = OPTIONS[case]
    make(folder)
    assert message in refused(capsys, folder, "check", file_in(folder), *options.split())


def test_a_file_without_permission_is_named(folder, capsys, monkeypatch):
    """Tests may run as root, who may read anything: the refusal is that of the system, but staged."""
    text(GOOD)(folder)

    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    assert "Permission denied: 'data.csv'" in refused(capsys, folder, "fit", "data.csv")


def test_there_are_fifty_and_the_file_they_are_made_of_is_good(folder, capsys):
    assert len(TABLES | ARRAYS | OPTIONS) > 50
    text(GOOD)(folder)
    assert main(["check", "data.csv"]) == 0
    assert "x [m]" in capsys.readouterr().out
