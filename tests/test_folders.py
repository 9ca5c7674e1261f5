"""Nothing of the user's is deleted or mixed: what may be replaced, which folders are written, and by whom."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from problems import PAPER
from test_resume import content, cut, train

from phibe import files
from phibe.cli import main
from phibe.experiments import experiment
from phibe.experiments.turbulence.data import generate
from phibe.fitting import fit_closed
from phibe.io import open_data, save_data
from phibe.linear.basis import Size
from phibe.training.runs import open_flow, save_flow
from phibe.training.tensors import load_tensors, save_tensors

ROOT = Path(__file__).resolve().parent.parent
DATA = PAPER["reversible"].simulate(paths=30, times=torch.linspace(0, 1, 9), seed=0)
STRANGERS = ("config.json", "weights.safetensors", "notes.txt")


def everything(folder):
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in Path(folder).rglob("*")}


def refused(arguments, capsys):
    """The one line with which a command ends that changes nothing."""
    capsys.readouterr()
    before = everything(".")
    assert main([str(argument) for argument in arguments]) == 2
    assert everything(".") == before
    line = capsys.readouterr().err
    assert line.count("\n") == 1 and line.startswith("phibe: ")
    return line


@pytest.fixture(scope="module")
def flow():
    return fit_closed(DATA, "symmetric", candidates=[Size(1, 0, 1, 1e-9)])


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


# -- what `generate`, `save_data` and `convert` may replace ------------------------------------------------------------


@pytest.mark.parametrize("kind", ["csv", "nc", "zarr"])
def test_generate_replaces_no_folder_of_a_stranger(here, flow, capsys, kind):
    save_flow(flow, "run")
    Path("starts.csv").write_text("x0,x1\n1,2\n3,4\n", "utf8")
    Path(f"out.{kind}").mkdir()
    (Path(f"out.{kind}") / "thesis.txt").write_text("years of work", "utf8")
    made = ["generate", "run", "--from", "starts.csv", "--times", "0:1:0.5", "--out"]
    assert "out." in refused([*made, f"out.{kind}"], capsys)
    for _ in range(2):  # what was generated before is replaced
        assert main([*made, f"free.{kind}"]) == 0
    assert len(files.read_arrays(f"free.{kind}")["states"] if kind != "csv" else open_data("free.csv")) == 2


def test_a_store_is_replaced_only_if_nothing_else_is_in_it(here):
    Path("a.zarr").mkdir()  # empty
    for count in (3, 2):
        save_data(DATA[:count], "a.zarr")
        assert len(files.read_arrays("a.zarr")["states"]) == count
    for name in ("a.zarr/notes.txt", "a.zarr/states/c/notes"):
        Path(name).write_text("mine", "utf8")
        with pytest.raises(ValueError, match=r"a\.zarr holds files that phibe did not write, and stays"):
            save_data(DATA, "a.zarr")
        assert Path(name).read_text("utf8") == "mine"
        Path(name).unlink()
    save_data(DATA, "a.zarr")
    about = json.loads(Path("a.zarr/zarr.json").read_text("utf8"))
    Path("a.zarr/zarr.json").write_text(json.dumps(about | {"attributes": {}}), "utf8")  # a store of another program
    with pytest.raises(ValueError, match=r"a\.zarr holds files that phibe did not write"):
        save_data(DATA, "a.zarr")


def test_a_file_and_a_folder_never_replace_each_other(here):
    Path("a.zarr").write_text("mine", "utf8")
    Path("b.npz").mkdir()
    for name, kind in (("a.zarr", "folder"), ("b.npz", "file")):
        with pytest.raises(ValueError, match=f"{name} is no {kind}, and one is to be written"):
            save_data(DATA, name)
    assert Path("a.zarr").read_text("utf8") == "mine" and os.listdir("b.npz") == []


def test_folders_beside_a_store_keep_what_is_not_ours(here):
    for name in ("a.cache", "b.parts"):
        (Path(name) / "photos").mkdir(parents=True)
        (Path(name) / "photos" / "me.png").write_bytes(b"me")
    save_data(DATA, "a.zarr")
    for count in (30, 20):  # the copy of the older store goes, the photos stay
        save_data(DATA[:count], "a.zarr")
        assert len(open_data("a.zarr")) == count
        assert len(os.listdir("a.cache")) == 2
    with pytest.raises(ValueError, match=r"b\.parts must be new, empty or hold parts of a store; it holds files"):
        generate(PAPER["reversible"], "b.zarr", paths=4, times=[0.0, 0.5], shard=2)
    assert Path("a.cache/photos/me.png").exists() and Path("b.parts/photos/me.png").exists()


def test_convert_replaces_no_folder(here, capsys):
    Path("raw").mkdir()
    Path("set").mkdir()
    Path("set/thesis.txt").write_text("years of work", "utf8")
    assert "set holds files that phibe did not write" in refused(["convert", "raw", "--out", "set"], capsys)


# -- which folders are written -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("stranger", STRANGERS)
def test_a_strangers_folder_is_refused(here, flow, capsys, stranger):
    save_data(DATA, "data.npz")
    Path("mine").mkdir()
    (Path("mine") / stranger).write_text('{"mine": 1}', "utf8")
    for command in (["fit", "data.npz", "--model", "affine"], ["run", "affine_ou", "--preset", "smoke"]):
        line = refused([*command, "--out", "mine"], capsys)
        assert f"holds files that phibe did not write there ({stranger})" in line
    for write in (lambda: save_flow(flow, "mine"), lambda: train("mine")):
        with pytest.raises(ValueError, match=f"mine must be new, empty or hold .*{stranger}"):
            write()
    assert os.listdir("mine") == [stranger]


def test_a_folder_of_another_kind_is_refused_and_one_of_the_same_kind_is_written(here, flow):
    def run():
        return experiment("affine_ou").run("smoke", out=Path("experiment"))

    train("fit")
    save_flow(flow, "flow")
    run()
    before = everything(".")
    for write, kind in (
        (lambda: train("flow"), "a fit; it holds a saved flow"),
        (lambda: save_flow(flow, "fit"), "a saved flow; it holds a fit"),
        (lambda: train("experiment"), "a fit; it holds the experiment affine_ou"),
        (lambda: experiment("ou_theory").run("smoke", out=Path("experiment")), "the experiment ou_theory; it holds"),
    ):
        with pytest.raises(ValueError, match=f"must be new, empty or hold {kind}"):
            write()
    assert everything(".") == before
    (Path("fit") / "notes.txt").write_text("mine", "utf8")
    train("fit")
    save_flow(flow, "flow")
    run()
    assert everything(".").keys() == before.keys() | {"fit/notes.txt"}


def test_folders_of_earlier_versions_open_and_go_on(here, flow, monkeypatch):
    """They have no mark; their config.json tells them."""
    whole = train("whole")
    with cut(monkeypatch):
        train("cut")
    experiment("affine_ou").run("smoke", out=Path("experiment"))
    save_flow(flow, "flow")
    for folder in ("whole", "cut", "experiment", "flow"):
        (Path(folder) / files.MARK).unlink()
    open_flow("whole"), open_flow("flow"), save_flow(flow, "flow")
    assert torch.equal(
        train("cut").velocity(*(torch.ones(1, 2), torch.ones(1))), whole.velocity(*(torch.ones(1, 2), torch.ones(1)))
    )
    experiment("affine_ou").run("smoke", out=Path("experiment"))
    Path("experiment/config.json").write_text("{}", "utf8")
    (Path("experiment") / files.MARK).unlink()
    with pytest.raises(ValueError, match="it holds files that phibe did not write there"):
        experiment("affine_ou").run("smoke", out=Path("experiment"))


# -- one process at a time ---------------------------------------------------------------------------------------------

WORKER = """
import sys, time
sys.path[:0] = [sys.argv[1], sys.argv[1] + "/tests"]
import torch
torch.set_num_threads(1)
from phibe.training import tensors
from test_resume import train

whole, saved = tensors.save_file, []

def save_file(content, path, **options):
    saved.append(path)
    if len(saved) == 2 and sys.argv[3] == "half":
        path.write_bytes(b"half of it")
        print("half", flush=True)
        time.sleep(600)
    whole(content, path, **options)

tensors.save_file = save_file
print("ready", flush=True)
sys.stdin.readline()
try:
    train(sys.argv[2], steps=int(sys.argv[4]))
except ValueError as error:
    sys.exit(str(error))
"""


def start(out, how, steps=24):
    """A process that trains there, once it is let go by a line."""
    arguments = [sys.executable, "-c", WORKER, str(ROOT), str(out), how, str(steps)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(arguments, encoding="utf8", env=os.environ | {"OMP_NUM_THREADS": "1"}, **pipes)


def let_go(process):
    process.stdin.write("go\n")
    process.stdin.flush()


@pytest.mark.slow
def test_a_second_process_is_refused_and_the_next_after_a_kill_cleans_up_and_goes_on(tmp_path):
    train(tmp_path / "whole")
    first = start(tmp_path / "run", "half")
    let_go(first)
    try:
        assert [first.stdout.readline() for _ in range(2)] == ["ready\n", "half\n"]
        before = everything(tmp_path)
        with pytest.raises(ValueError, match=f"run is being written by process {first.pid} on "):
            train(tmp_path / "run")
        assert everything(tmp_path) == before
        files.write_json(tmp_path / "run" / "other.json", {})  # leaves what a living process is writing
        assert everything(tmp_path).keys() == before.keys() | {"run/other.json"}
        assert any(name.endswith(".part") for name in before)
    finally:
        first.kill()
        first.communicate()
    (tmp_path / "run" / "other.json").unlink()
    train(tmp_path / "run")
    whole, run = content(tmp_path / "whole"), content(tmp_path / "run")
    assert whole.keys() == run.keys()  # nothing half written stays
    assert whole["weights.safetensors"] == run["weights.safetensors"]


@pytest.mark.slow
def test_two_equal_fits_at_once_write_each_line_once(tmp_path):
    both = [start(tmp_path / "run", "whole", 300) for _ in range(2)]
    assert [process.stdout.readline() for process in both] == ["ready\n"] * 2
    for process in both:
        let_go(process)
    errors = [process.communicate(timeout=120)[1] for process in both]
    codes = [process.returncode for process in both]
    assert 0 in codes
    for code, error, other in zip(codes, errors, reversed(both), strict=True):
        assert code == 0 or f"is being written by process {other.pid} on " in error
    steps = [json.loads(line)["step"] for line in (tmp_path / "run" / "metrics.jsonl").open()]
    assert steps == [*range(6, 301, 6)]


def test_a_lock_ends_with_an_error_and_shuts_out_its_own_process_too(tmp_path):
    def again():
        with files.writing(tmp_path, "a fit"):
            pass

    def fail():
        with files.writing(tmp_path, "a fit"):
            with pytest.raises(ValueError, match=f"is being written by process {os.getpid()} on "):
                again()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    again()
    assert (tmp_path / files.MARK).read_text("utf8") == "a fit\n"


# -- what killed processes leave ---------------------------------------------------------------------------------------


def test_what_a_killed_process_left_is_removed_and_what_it_was_replacing_comes_back(tmp_path):
    done = subprocess.Popen(["true"])
    done.wait()
    ours, elsewhere = (f".a.zarr.{done.pid}-01234567@{host}.abcdefgh.part" for host in (files.HOST, "another"))
    save_data(DATA, tmp_path / ours / "replaced a.zarr")
    save_data(DATA[:3], tmp_path / ours / "a.zarr")
    for name in (elsewhere, ".mine.part", f".a.npz.{os.getpid()}-{files.TOKEN}@{files.HOST}.abcdefgh.part"):
        (tmp_path / name).mkdir()
    kept = {path.name for path in tmp_path.iterdir()} - {ours}
    files.write_json(tmp_path / "b.json", {})
    assert {path.name for path in tmp_path.iterdir()} == kept | {"a.zarr", "b.json"}
    assert len(files.read_arrays(tmp_path / "a.zarr")["states"]) == len(DATA)


# -- no room -----------------------------------------------------------------------------------------------------------


def test_a_full_disk_is_an_error_of_one_line_and_keeps_the_old_file(tmp_path):
    """A limit to the size of files stands for the disk."""
    path = tmp_path / "weights.safetensors"
    save_tensors(path, {"w": torch.arange(3.0)})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(OSError, match=r"weights\.safetensors could not be written: .*Is the disk full\?"):
            save_tensors(path, {"w": torch.zeros(10_000)})
        with pytest.raises(OSError, match="File too large"):
            files.write_arrays(tmp_path / "data.npz", {"states": np.zeros(10_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert torch.equal(load_tensors(path)[0]["w"], torch.arange(3.0))
    assert os.listdir(tmp_path) == [path.name]
