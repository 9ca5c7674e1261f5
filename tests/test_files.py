"""Files are either whole or not there, and are never unpickled."""

import errno
import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from phibe import files
from phibe.io import open_data

KINDS = ["data.npz", "data.zarr"]
OLD = {"states": np.arange(6.0), "times": np.array([0.0, 1.0])}
NEW = {"states": np.arange(8.0) ** 2, "times": np.array([2.0, 3.0])}


def _same(path, arrays):
    found = files.read_arrays(path)
    assert found.keys() == arrays.keys()
    for name in arrays:
        np.testing.assert_array_equal(found[name], arrays[name])
        assert found[name].dtype == arrays[name].dtype


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_is_read_again_and_replaces_the_old(tmp_path, kind):
    path = tmp_path / "made" / "for" / kind
    for arrays in (OLD, {"only": np.array([[1, 2], [3, 4]], dtype=np.int32), "empty": np.zeros((0, 2))}, NEW):
        files.write_arrays(path, arrays)
        _same(path, arrays)
    assert os.listdir(path.parent) == [kind]


@pytest.mark.parametrize(
    ("kind", "error"),
    [("data.npz", KeyboardInterrupt), ("data.zarr", OSError(errno.ENOSPC, "No space left on device"))],
)
def test_an_interrupted_write_keeps_the_old_file(tmp_path, monkeypatch, kind, error):
    import zarr

    path = files.write_arrays(tmp_path / kind, OLD)

    def half(target, *args, **kwargs):
        Path(target).write_bytes(b"half of it") if kind == "data.npz" else Path(target).mkdir()
        raise error

    monkeypatch.setattr(np, "savez", half)
    monkeypatch.setattr(zarr, "open_group", half)
    with pytest.raises(error if isinstance(error, type) else type(error)):
        files.write_arrays(path, NEW)
    monkeypatch.undo()
    _same(path, OLD)
    assert os.listdir(tmp_path) == [kind]


@pytest.mark.parametrize("kind", KINDS)
def test_a_failed_rename_keeps_the_old_file(tmp_path, monkeypatch, kind):
    path, rename = files.write_arrays(tmp_path / kind, OLD), os.replace

    def refuse(source, target):
        if Path(target) == path and Path(source).name == kind:
            raise PermissionError(errno.EACCES, "refused")
        rename(source, target)

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(PermissionError):
        files.write_arrays(path, NEW)
    monkeypatch.undo()
    _same(path, OLD)
    assert os.listdir(tmp_path) == [kind]


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_process_leaves_the_old_file(tmp_path, kind):
    path = files.write_arrays(tmp_path / kind, OLD)
    script = (
        "import importlib.util, os, signal, sys\n"
        "spec = importlib.util.spec_from_file_location('files', sys.argv[1])\n"
        "files = importlib.util.module_from_spec(spec); spec.loader.exec_module(files)\n"
        "with files.replacing(sys.argv[2]) as partial:\n"
        "    partial.write_bytes(b'half of it')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, files.__file__, path])
    assert done.returncode == -9
    _same(path, OLD)


def test_a_folder_that_cannot_be_written_stays_as_it_is():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "locked"
        folder.mkdir()
        files.write_arrays(folder / "data.npz", OLD)
        os.chmod(name, 0o755)
        os.chmod(folder, 0o555)
        root = os.access(folder, os.W_OK)
        try:
            if root:  # the superuser may write anywhere: be nobody for a moment
                os.seteuid(65534)
            with pytest.raises(PermissionError, match=r"locked"):
                files.write_arrays(folder / "data.npz", NEW)
            with pytest.raises(PermissionError, match=r"locked"):
                files.write_arrays(folder / "other.zarr", NEW)
            with pytest.raises(PermissionError, match=r"locked"), files.writing(folder / "run", "a fit"):
                pass
        finally:
            if root:
                os.seteuid(0)
            os.chmod(folder, 0o755)
        _same(folder / "data.npz", OLD)
        assert os.listdir(folder) == ["data.npz"]


def test_json_that_no_other_reader_would_take_is_refused(tmp_path):
    path = files.write_json(tmp_path / "report.json", {"error": 0.25, "name": "σ"})
    for bad in ({"error": float("nan")}, {"error": float("inf")}):
        with pytest.raises(ValueError, match="not JSON compliant"):
            files.write_json(path, bad)
    assert path.read_text("utf8") == '{\n  "error": 0.25,\n  "name": "σ"\n}\n'
    assert os.listdir(tmp_path) == ["report.json"]


def test_a_copy_has_the_same_bytes_and_a_missing_source_changes_nothing(tmp_path):
    (tmp_path / "a").write_bytes(os.urandom(1000))
    files.copy(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    with pytest.raises(FileNotFoundError):
        files.copy(tmp_path / "none", tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


# -- files from elsewhere ----------------------------------------------------------------------------------------------


class Bomb:
    """An object whose unpickling leaves a trace."""

    def __init__(self, trace):
        self.trace = str(trace)

    def __reduce__(self):
        return os.mkdir, (self.trace,)


def test_a_pickle_inside_a_file_is_never_run(tmp_path):
    trace, path = tmp_path / "trace", tmp_path / "data.npz"
    with open(path, "wb") as file:
        np.savez(file, states=np.array([Bomb(trace)], dtype=object), times=np.arange(2.0))
    with pytest.raises(ValueError, match=r"not a readable \.npz file: Object arrays cannot be loaded"):
        open_data(path)
    path.write_bytes(pickle.dumps(Bomb(trace)))
    with pytest.raises(ValueError, match=r"not a readable \.npz file: it is no zip archive"):
        open_data(path)
    assert not trace.exists()
    pickle.loads(path.read_bytes())
    assert trace.exists()  # it would have gone off


@pytest.mark.parametrize("keep", [0, -1])
def test_a_file_cut_short_is_not_read(tmp_path, keep):
    path = files.write_arrays(tmp_path / "data.npz", OLD)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"data\.npz is not a readable \.npz file: .*cut short"):
        files.read_arrays(path)


def test_a_damaged_file_is_not_read(tmp_path):
    path = files.write_arrays(tmp_path / "data.npz", {"states": np.zeros(500)})
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1  # one bit
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"not a readable \.npz file: Bad CRC-32"):
        files.read_arrays(path)


def test_foreign_files_are_refused(tmp_path):
    np.save(tmp_path / "array.npy", np.zeros(3))
    os.rename(tmp_path / "array.npy", tmp_path / "array.npz")
    (tmp_path / "empty.zarr").mkdir()
    (tmp_path / "text.zarr").write_text("hello", encoding="utf8")
    for name in ("array.npz", "empty.zarr", "text.zarr"):
        with pytest.raises(ValueError, match=f"{name} is not a readable"):
            files.read_arrays(tmp_path / name)
    with pytest.raises(ValueError, match=r"There is no file .*nothing\.npz"):
        files.read_arrays(tmp_path / "nothing.npz")
    for name in ("data.pt", "data"):
        with pytest.raises(ValueError, match=f"kept as .npz, .npy, .nc or .zarr, tables as .csv; got '{name}'"):
            files.write_arrays(tmp_path / name, OLD)


def test_an_archive_of_other_arrays_says_what_it_holds(tmp_path):
    path = files.write_arrays(tmp_path / "data.npz", {"x": np.zeros(4), "times": np.zeros(3)})
    with pytest.raises(ValueError, match=r"must hold `states` .* it holds x \(4,\), times \(3,\)"):
        open_data(path)
