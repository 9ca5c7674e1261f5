"""KTH: the annotations with their quirks, videos good and broken, the cache, the split and the archives."""

import functools
import http.server
import threading
import warnings
import zipfile

import av
import numpy as np
import pytest

from phibe.cli import main
from phibe.experiments.video import kth
from phibe.experiments.video.clips import read_video
from phibe.experiments.video.drawing import ACTIONS

HEADER = """
This database contains sequences of six classes of actions performed by
25 subjects in four different conditions (see below).

Training:   person11, 12, 13, 14, 15, 16, 17, 18
Validation: person19, 20, 21, 23, 24, 25, 01, 04
Test:       person22, 02, 03, 05, 06, 07, 08, 09, 10


"""
QUIRKS = HEADER + (
    "person01_boxing_d1\t\tframes\t1-95, 96-185, 186-245, 246-360\n"
    "person07_handclapping_d2    \tframes\t1-102, 103-248, 249-368, 369-518\n"
    "person07_jogging_d4\t\tframes\t1-64, 270-332, 194-264, 490-570\n"
    "\n"
    "person11_boxing_d4    \t\tframes\t1-106, 107-194, 195-250,\n"
    "person13_handclapping_d3\t*missing*\n"
    "person16_handwaving_d4\t\tframes\t1-104, 105-206, 207-311, 212-456  \n"
    "\n"
)  # fmt: skip


def test_annotations_are_read_with_all_their_quirks():
    """Blank lines, a head, tabs and spaces, three ranges, a comma at the end, ranges that go back, a missing video."""
    found = kth.parse_annotations(QUIRKS)
    assert list(found) == [
        *("person01_boxing_d1", "person07_handclapping_d2", "person07_jogging_d4", "person11_boxing_d4"),
        *("person13_handclapping_d3", "person16_handwaving_d4"),
    ]
    assert found["person01_boxing_d1"] == [(1, 95), (96, 185), (186, 245), (246, 360)]
    assert found["person07_jogging_d4"] == [(1, 64), (270, 332), (194, 264), (490, 570)]
    assert found["person11_boxing_d4"] == [(1, 106), (107, 194), (195, 250)]
    assert found["person13_handclapping_d3"] == []
    assert found["person16_handwaving_d4"][-1] == (212, 456)
    assert kth.parse_annotations(QUIRKS.replace("\n", "\r\n")) == found


def test_a_file_like_the_official_one_has_2391_sequences_of_599_videos():
    short = {"person11_boxing_d4", "person13_handwaving_d3", "person14_handwaving_d3", "person15_boxing_d4"}
    short |= {"person22_boxing_d1"}
    lines = [HEADER]
    for name in (f"person{p:02d}_{a}_d{d}" for p in range(1, 26) for a in sorted(ACTIONS) for d in range(1, 5)):
        ranges = "1-95, 96-185, 186-245" + ("" if name in short else ", 246-360")
        lines.append(f"{name}\t*missing*" if name == "person13_handclapping_d3" else f"{name}\t\tframes\t{ranges}")
    found = kth.parse_annotations("\n".join(lines))
    assert len(found) == 600 and sum(map(bool, found.values())) == 599
    assert sum(map(len, found.values())) == 2391


@pytest.mark.parametrize(
    "line",
    [
        *("person01_boxing_d1 1-95", "person01_boxing_d1\tframes\t95-1"),
        *("person01_boxing_d1\tframes\t1-95, lost", "person01_boxing_d1\tframes\t0-95"),
    ],
)
def test_a_line_that_cannot_be_meant_is_named(line):
    with pytest.raises(ValueError, match="Line 2 must be"):
        kth.parse_annotations(f"\n{line}\n")


def test_no_annotations_and_repeated_ones_are_errors():
    with pytest.raises(ValueError, match="no line of the form"):
        kth.parse_annotations(HEADER)
    with pytest.raises(ValueError, match="second time"):
        kth.parse_annotations("person01_boxing_d1 frames 1-9\n" * 2)


# -- videos -----------------------------------------------------------------------------------------------------------


def grey(frames: int, *, height: int = 120, width: int = 160, seed: int = 0) -> np.ndarray:
    """Smooth frames of bytes, each another one."""
    noise = np.random.default_rng(seed).integers(30, 220, (frames, 6, 8), dtype=np.uint8)
    return np.kron(noise, np.ones((1, height // 6, width // 8), np.uint8))


def write_avi(path, frames: np.ndarray, *, codec: str = "ffv1", pixels: str = "gray"):
    """Grey (time, height, width) or coloured (…, 3) frames; without a frame, a file that has only a head."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w", format="avi") as container:
        stream = container.add_stream(codec, rate=25)
        stream.height, stream.width, stream.pix_fmt = *frames.shape[1:3], pixels
        if codec == "mpeg4":
            stream.bit_rate = 4_000_000
        for frame in frames:
            picture = av.VideoFrame.from_ndarray(frame, format="rgb24" if frame.ndim == 3 else "gray")
            container.mux(stream.encode(picture.reformat(format=pixels)))
        container.mux(stream.encode())
    return path


@pytest.fixture
def data(tmp_path):
    """Two people's videos, in folders by action as the archives are unpacked, and their annotations."""
    videos = {"person01_walking_d1": grey(20), "person22_boxing_d2": grey(16, seed=1)}
    for name, frames in videos.items():
        write_avi(tmp_path / name.split("_")[1] / f"{name}_uncomp.avi", frames)
    (tmp_path / "00sequences.txt").write_text(
        HEADER + "person01_walking_d1\t\tframes\t1-8, 12-20\nperson22_boxing_d2\tframes\t4-10, 2-16\n\n"
        "person13_handclapping_d3\t*missing*\n",
        encoding="utf8",
    )
    return tmp_path, videos


def test_sequences_become_clips_of_their_frames(data):
    """Frames count from one and the last belongs to the sequence; a cell of 20 × 20 is constant, so its mean is too."""
    folder, videos = data
    clips = kth.read_kth(folder)
    assert clips.names == (
        *("person01_walking_d1_s0", "person01_walking_d1_s1", "person22_boxing_d2_s0", "person22_boxing_d2_s1"),
    )
    assert clips.lengths.tolist() == [8, 9, 7, 15] and clips.pixels.dtype == np.uint8
    assert clips.actions == ["walking", "walking", "boxing", "boxing"] and clips.people == [1, 1, 22, 22]
    middle = (clips.frames(1)[:, 0, 5::11, 4::8] * 255).round()
    assert (middle[:, :6, :8].numpy() == videos["person01_walking_d1"][11:20, 10::20, 10::20]).all()
    ragged = clips.trajectories()
    assert ragged.lengths.tolist() == [8, 9, 7, 15] and ragged.states.shape == (4, 15, 1, 64, 64)
    assert float(ragged.times[1]) == 0.04


def test_squash_takes_the_whole_picture_and_crop_its_middle(tmp_path):
    edge = np.zeros((4, 120, 160), np.uint8)
    edge[:, :, :20] = 255  # the part that a square in the middle leaves out
    write_avi(tmp_path / "person01_walking_d1_uncomp.avi", edge)
    (tmp_path / "00sequences.txt").write_text("person01_walking_d1 frames 1-4", "utf8")
    squashed, cropped = (kth.read_kth(tmp_path, fit=fit).frames(0) for fit in ("squash", "crop"))
    assert float(squashed.mean()) == pytest.approx(20 / 160, abs=1e-3)
    assert float(cropped.mean()) == 0


def test_a_video_compressed_as_colour_but_grey_is_read(tmp_path):
    frames = grey(6)
    video = read_video(write_avi(tmp_path / "a.avi", frames, codec="mpeg4", pixels="yuv420p"))
    assert video.frames.shape == (6, 120, 160) and video.rate == 25
    assert np.abs(video.frames.astype(int) - frames).mean() < 4


def test_the_split_is_by_person_and_complete(data):
    sides = kth.split(kth.read_kth(data[0]))
    assert {side: set(part.people) for side, part in sides.items()} == {
        **{"train": set(), "validation": {1}, "test": {22}}
    }
    for persons in (kth.OFFICIAL, kth.EIGHTY_TWENTY):
        everyone = sorted(person for side in persons.values() for person in side)
        assert everyone == list(range(1, 26))  # each on one side
    assert len(kth.EIGHTY_TWENTY["train"]) / 25 == 0.8


# -- the cache ---------------------------------------------------------------------------------------------------------


def test_the_cache_is_used_again_and_renewed(data, monkeypatch):
    folder, _ = data
    decoded: list[str] = []
    read = kth.read_official
    monkeypatch.setattr(kth, "read_official", lambda path: decoded.append(path.name) or read(path))
    first = kth.read_kth(folder)
    assert isinstance(first.pixels, np.memmap) and len(decoded) == 2
    assert (kth.read_kth(folder).pixels == first.pixels).all() and len(decoded) == 2
    kth.read_kth(folder, fit="crop")
    assert len(decoded) == 4  # other settings
    assert kth.read_kth(folder, actions=("walking",)).people == [1, 1] and len(decoded) == 5
    write_avi(folder / "boxing" / "person22_boxing_d2_uncomp.avi", grey(16, seed=5))
    assert not (kth.read_kth(folder).pixels == first.pixels).all() and len(decoded) == 7  # another video
    (folder / "00sequences.txt").write_text(
        "person01_walking_d1 frames 1-5\nperson22_boxing_d2 frames 1-6", encoding="utf8"
    )
    assert kth.read_kth(folder).lengths.tolist() == [5, 6] and len(decoded) == 9  # other annotations


def test_nothing_half_made_stays_in_the_cache(data):
    folder, _ = data
    (folder / "boxing" / "person22_boxing_d2_uncomp.avi").write_bytes(b"RIFF")
    with pytest.raises(ValueError):
        kth.read_kth(folder)
    assert not [path for path in (folder / "cache").rglob("*") if path.is_file()]


# -- bad files ---------------------------------------------------------------------------------------------------------


def refuse(folder, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        kth.read_kth(folder)


def test_missing_videos_and_annotations_are_counted(data):
    folder, _ = data
    (folder / "boxing" / "person22_boxing_d2_uncomp.avi").unlink()
    refuse(folder, "1 are missing, the first is person22_boxing_d2_uncomp.avi.*phibe fetch kth")
    assert len(kth.read_kth(folder, actions=("walking",))) == 2
    (folder / "00sequences.txt").unlink()
    refuse(folder, "There is no .*00sequences.txt")
    with pytest.raises(ValueError, match="some of walking"):
        kth.read_kth(folder, actions=("dancing",))


def test_broken_empty_small_and_coloured_videos_are_explained(data):
    folder, _ = data
    path = folder / "boxing" / "person22_boxing_d2_uncomp.avi"
    whole = path.read_bytes()
    path.write_bytes(b"")
    refuse(folder, "person22_boxing_d2_uncomp.avi cannot be decoded")
    path.write_bytes(b"no video at all" * 100)
    refuse(folder, "cannot be decoded")
    path.write_bytes(whole[:400])  # the head alone
    refuse(folder, "cannot be decoded")
    write_avi(path, grey(16, height=60, width=80))
    refuse(folder, "must be of 160 × 120 pixels.*it is of 80 × 60")
    colour = np.stack([grey(16), grey(16, seed=2), grey(16, seed=3)], -1)
    write_avi(path, colour, codec="mpeg4", pixels="yuv420p")
    refuse(folder, "must be grey; its first frame is coloured")
    assert read_video(path, colour="grey").frames.shape == (16, 120, 160)
    path.write_bytes(whole)
    assert len(kth.read_kth(folder)) == 4


def test_a_video_that_ends_too_early_loses_what_it_does_not_hold(data):
    """As one of the official videos does: of frames 4–10 and 2–16 the first twelve hold the first."""
    folder, _ = data
    path = folder / "boxing" / "person22_boxing_d2_uncomp.avi"
    write_avi(path, grey(12, seed=1))
    with pytest.warns(UserWarning, match="ends after 12 frames; 1 of its 2 annotated sequences"):
        clips = kth.read_kth(folder)
    assert clips.names[2:] == ("person22_boxing_d2_s0",)
    write_avi(path, grey(5, seed=1))
    refuse(folder, "ends after 5 frames, before the end of its first sequence at 10")


def test_a_video_that_is_too_long_to_hold_is_refused(data):
    with pytest.raises(ValueError, match="at most 0 MB when decoded"):
        read_video(data[0] / "walking" / "person01_walking_d1_uncomp.avi", most=160 * 120 * 19)


# -- archives ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def served(data, tmp_path_factory):
    """The address of a server that holds the two archives and the annotations."""
    folder, public = data[0], tmp_path_factory.mktemp("public")
    for action in ("walking", "boxing"):
        with zipfile.ZipFile(public / f"{action}.zip", "w") as archive:
            for path in (folder / action).iterdir():
                archive.write(path, path.name)
    (public / "00sequences.txt").write_text((folder / "00sequences.txt").read_text("utf8"), encoding="utf8")
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(public))
    handler.log_message = lambda *_: None  # type: ignore[attr-defined]
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/", public
        server.shutdown()


def test_what_is_fetched_can_be_read_and_a_changed_archive_is_refused(
    served, data, tmp_path_factory, monkeypatch, capsys
):
    address, public = served
    out = tmp_path_factory.mktemp("fetched")
    monkeypatch.setattr(kth, "fetch_kth", functools.partial(kth.fetch_kth, address=address))
    monkeypatch.setattr("phibe.experiments.video.kth.fetch_kth", kth.fetch_kth)
    assert main(["fetch", "kth", "--out", str(out), "--actions", "[walking,boxing]"]) == 0
    assert "436 MB" in (said := capsys.readouterr().out) and "non-commercial" in said
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (kth.read_kth(out).pixels == kth.read_kth(data[0]).pixels).all()
    (out / "boxing.zip").unlink()
    with zipfile.ZipFile(public / "boxing.zip", "w") as archive:
        archive.writestr("person22_boxing_d2_uncomp.avi", b"something else")
    assert main(["fetch", "kth", "--out", str(out), "--actions", "[boxing]"]) == 2
    assert "SHA-256" in capsys.readouterr().err
    assert len(kth.read_kth(out)) == 4  # what was there is as it was
    assert main(["fetch", "kth", "--actions", "[dancing]"]) == 2


@pytest.mark.parametrize("name", ["../person01_walking_d1_uncomp.avi", "run.sh"])
def test_an_archive_with_strange_names_is_not_unpacked(tmp_path, name):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("person01_walking_d1_uncomp.avi", b"fine")
        archive.writestr(name, b"not fine")
    with pytest.raises(ValueError, match="and nothing else"):
        kth.unzip(tmp_path / "a.zip", tmp_path / "out")
    assert not (tmp_path / "out").exists() and sorted(p.name for p in tmp_path.iterdir()) == ["a.zip"]


def test_an_archive_that_is_too_large_or_none_is_refused(tmp_path, monkeypatch):
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("person01_walking_d1_uncomp.avi", bytes(3 * 2**20))
    assert (tmp_path / "a.zip").stat().st_size < 2**14
    monkeypatch.setattr(kth, "LARGEST", 2**21)
    with pytest.raises(ValueError, match="would unpack to 3 MB; at most 2"):
        kth.unzip(tmp_path / "a.zip", tmp_path / "out")
    monkeypatch.undo()
    assert kth.unzip(tmp_path / "a.zip", tmp_path / "out")[0].stat().st_size == 3 * 2**20
    (tmp_path / "b.zip").write_bytes(b"nothing of the kind")
    with pytest.raises(ValueError, match="no readable zip"):
        kth.unzip(tmp_path / "b.zip", tmp_path / "out")
