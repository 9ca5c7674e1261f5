"""The published Navier–Stokes files: read, repeated paths found, split, refused; and downloads that are cut off."""

import fcntl
import json
import os
import pickle
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch

from phibe.cli import main
from phibe.experiments.downloads import HASHES, fetch, sha256_of
from phibe.experiments.turbulence.data import convert_pfi, read_pfi
from phibe.io import open_data

TIMES = torch.arange(4) * 0.5


def save(path, *, paths: int = 6, seed: int = 0, grid: int = 8):
    data = 3 * torch.randn(paths, 4, grid, grid, generator=torch.Generator().manual_seed(seed))
    torch.save((data, TIMES), path)
    return data


# -- files -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("zipped", [True, False])
def test_a_file_is_read_with_its_times(tmp_path, zipped):
    data = save(tmp_path / "a.pt")
    torch.save((data, TIMES), tmp_path / "a.pt", _use_new_zipfile_serialization=zipped)
    read = read_pfi(tmp_path / "a.pt")
    assert torch.equal(read.states, data[:, :, None])
    assert torch.equal(read.times, TIMES.double())


def test_repeated_files_are_dropped_before_the_split(tmp_path):
    """Files 1 and 3 are the same, and one path of file 2 is in file 4: no path is on both sides, none is lost."""
    one, two = save(tmp_path / "1.pt"), save(tmp_path / "2.pt", seed=1)
    save(tmp_path / "3.pt")
    torch.save((torch.cat([two[4:5], -two[:1]]), TIMES), tmp_path / "4.pt")
    with pytest.warns(UserWarning, match="the same as earlier ones") as notices:
        record = convert_pfi([tmp_path / f"{n}.pt" for n in (1, 2, 3, 4)], tmp_path / "out", held_out=0.25, seed=3)
    assert ["3.pt: 6 of 6 paths" in str(notices[0].message), "4.pt: 1 of 2 paths" in str(notices[1].message)] == [
        True,
        True,
    ]
    train, held_out = (open_data(tmp_path / "out" / f"{name}.zarr") for name in ("train", "held_out"))
    assert (len(train), len(held_out)) == (record["train"], record["held_out"]) == (10, 3)
    everything = torch.cat([train.states, held_out.states]).flatten(1)
    assert len(everything.unique(dim=0)) == 13
    expected = torch.cat([one, two, -two[:1]]).flatten(1)
    assert torch.equal(everything.sort(0).values, expected.sort(0).values)
    assert record["scale"] == pytest.approx(float(train.states.square().mean().sqrt()), rel=1e-5)
    assert record == json.loads((tmp_path / "out" / "record.json").read_text("utf8"))
    assert [file["repeated"] for file in record["files"]] == [0, 0, 6, 1]


class Sly:
    """Pickles as a call that would make a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_a_file_that_would_run_code_is_refused_and_does_not(tmp_path):
    torch.save((torch.zeros(1, 4, 8, 8), Sly(tmp_path / "run")), tmp_path / "a.pt")
    (tmp_path / "b.pt").write_bytes(pickle.dumps(Sly(tmp_path / "run"), protocol=2))
    for name in ("a.pt", "b.pt"):
        with pytest.raises(ValueError, match="refused"):
            read_pfi(tmp_path / name)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (torch.zeros(2, 4, 8, 8), "must hold a tuple of data .* it holds a Tensor"),
        ((torch.zeros(2, 3, 8, 8), TIMES), r"it holds \(2, 3, 8, 8\) and \(4,\)"),
        ((torch.zeros(2, 4, 8, 8), 0.5), "and float"),
        ((torch.full((2, 4, 8, 8), torch.nan), TIMES), "path 0 has nan at time index 0"),
        ((torch.zeros(2, 4, 8, 8), TIMES.flip(0)), "must be finite and increase"),
    ],
)
def test_files_of_another_form_are_named(tmp_path, content, message):
    torch.save(content, tmp_path / "a.pt")
    with pytest.raises(ValueError, match=message):
        read_pfi(tmp_path / "a.pt")


def test_broken_and_unlike_files_are_named_and_nothing_is_written(tmp_path):
    save(tmp_path / "a.pt")
    (tmp_path / "cut.pt").write_bytes((tmp_path / "a.pt").read_bytes()[:-500])
    save(tmp_path / "big.pt", grid=16)
    for files, message in (
        (["cut.pt"], "cut.pt is not a readable file of torch.save"),
        (["none.pt"], "There is no file"),
        (["a.pt", "big.pt"], "the same times and the same grid.*big.pt"),
        ([], "name one or more"),
    ):
        with pytest.raises(ValueError, match=message):
            convert_pfi([tmp_path / name for name in files], tmp_path / "out")
    with pytest.raises(ValueError, match="leaves 6 and 0 of 6 paths"):
        convert_pfi([tmp_path / "a.pt"], tmp_path / "out", held_out=0.01)
    assert not (tmp_path / "out").exists()


# -- downloads ---------------------------------------------------------------------------------------------------------


class Server(BaseHTTPRequestHandler):
    """Serves `content`, parts of it too, but ends each reply after `most` bytes."""

    content, version, most, asked = b"", '"1"', None, []

    def do_GET(self):
        begin = self.headers.get("Range")
        start = int(begin[6:-1]) if begin and self.headers["If-Range"] == self.version else 0
        self.asked.append(start)
        if start >= len(self.content):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(self.content)}")
            self.end_headers()
            return
        self.send_response(404 if "none" in self.path else 206 if start else 200)
        self.send_header("ETag", self.version)
        self.send_header("Content-Length", str(len(self.content) - start))
        self.end_headers()
        self.wfile.write(self.content[start:][: self.most])

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    handler = type("Handler", (Server,), {"content": bytes(range(256)) * 40, "asked": []})
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        handler.url = f"http://127.0.0.1:{http.server_address[1]}/set/a.pt"
        yield handler
        http.shutdown()
        thread.join()


def get(server, folder, **options):
    return fetch(server.url, folder, progress=False, **options)


def test_a_download_that_is_cut_off_goes_on(server, tmp_path):
    server.most = 4000
    for _ in range(2):
        with pytest.raises(ValueError, match="of 10240 bytes. Run the same command again to go on."):
            get(server, tmp_path)
        assert not (tmp_path / "a.pt").exists()
    assert get(server, tmp_path).read_bytes() == server.content
    assert server.asked == [0, 4000, 8000]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.pt", HASHES]
    get(server, tmp_path)
    assert len(server.asked) == 3  # what is there is not fetched again


def test_a_download_begins_anew_when_the_file_has_changed(server, tmp_path):
    server.most = 4000
    with pytest.raises(ValueError, match="4000 of 10240"):
        get(server, tmp_path)
    server.content, server.version, server.most = server.content[::-1], '"2"', None
    assert get(server, tmp_path).read_bytes() == server.content
    assert server.asked == [0, 0]


def test_a_whole_download_that_was_not_yet_checked_is_taken(server, tmp_path):
    (tmp_path / ".a.pt.part").write_bytes(server.content)
    (tmp_path / ".a.pt.part.tag").write_text(server.version, encoding="utf8")
    assert get(server, tmp_path).read_bytes() == server.content
    assert server.asked == [len(server.content)]


def test_hashes_are_checked_remembered_and_checked_again(server, tmp_path):
    with pytest.raises(ValueError, match="must have SHA-256 0000"):
        get(server, tmp_path, sha256="0" * 64)
    assert list(tmp_path.iterdir()) == []
    file = get(server, tmp_path)
    assert json.loads((tmp_path / HASHES).read_text("utf8"))["a.pt"]["sha256"] == sha256_of(file)
    assert get(server, tmp_path, sha256=sha256_of(file).upper()) == file
    file.unlink()
    server.content = server.content[::-1]
    with pytest.raises(ValueError, match="serves another file now"):
        get(server, tmp_path)
    assert not file.exists()
    file.write_bytes(b"changed")
    with pytest.raises(ValueError, match="must have SHA-256"):
        get(server, tmp_path)


def test_without_network_or_file_the_error_says_what_to_do(server, tmp_path, capsys):
    with pytest.raises(ValueError, match="the server says 404"):
        fetch(server.url.replace("a.pt", "none.pt"), tmp_path, progress=False)
    with pytest.raises(ValueError, match=r"must be http\(s\)"):
        fetch("file:///etc/passwd", tmp_path)
    assert main(["fetch", "http://127.0.0.1:9/a.pt", "--out", str(tmp_path)]) == 2
    assert "No network? Run the same command again to go on, or bring the file yourself" in capsys.readouterr().err


def test_from_the_address_to_trajectories(server, tmp_path, capsys):
    save(tmp_path / "made.pt")
    server.content = (tmp_path / "made.pt").read_bytes()
    assert main(["fetch", server.url, "--out", str(tmp_path / "raw")]) == 0
    assert sha256_of(tmp_path / "made.pt") in capsys.readouterr().out
    assert main(["convert", str(tmp_path / "raw"), "--out", str(tmp_path / "set")]) == 0
    assert "5 paths to train on, 1 held out, 0 repeated ones left out" in capsys.readouterr().out
    assert open_data(tmp_path / "set" / "train.zarr").state_shape == (1, 8, 8)
    assert main(["convert", str(tmp_path / "nowhere"), "--out", "x"]) == 2


def test_a_strangers_list_and_a_download_that_is_under_way_are_left_alone(server, tmp_path):
    (tmp_path / "hashes.json").write_text('{"mine": 1}', "utf8")
    with pytest.raises(ValueError, match=r"hashes\.json is no list of hashes that phibe wrote"):
        get(server, tmp_path)
    (tmp_path / "hashes.json").unlink()
    with (tmp_path / ".a.pt.part").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(ValueError, match=r"\.a\.pt\.part is being downloaded by another process"):
            get(server, tmp_path)
    assert os.listdir(tmp_path) == [".a.pt.part"]
    assert get(server, tmp_path).exists()
