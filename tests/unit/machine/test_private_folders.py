import fcntl
import os
import stat
from pathlib import Path

import pytest

from burnish.machine.private_folders import PREFIX, private_folder, temporary_folder


@pytest.fixture(autouse=True)
def _private(tmp_path: Path) -> None:
    try:
        with private_folder(tmp_path):
            pass
    except PermissionError:
        pytest.skip("others may change the folder that tests write to")


def same(folder: int, path: Path) -> bool:
    return os.path.samestat(os.fstat(folder), path.stat())


def test_missing_parts_are_made_for_the_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b"
    before = os.umask(0)
    try:
        with private_folder(path) as folder:
            assert same(folder, path)
    finally:
        os.umask(before)
    assert [stat.S_IMODE(part.stat().st_mode) for part in (path, path.parent)] == [0o700, 0o700]


@pytest.mark.parametrize(
    ("upper", "lower", "is_private"),
    [
        (0o755, 0o755, True),
        (0o775, 0o755, False),
        (0o777, 0o755, False),
        (0o1777, 0o755, True),  # as /tmp
        (0o1775, 0o755, True),
        (0o755, 0o775, False),
        (0o755, 0o702, False),
        (0o755, 0o1777, False),  # others could add files to it
    ],
)
def test_who_may_write_where(tmp_path: Path, upper: int, lower: int, is_private: bool) -> None:
    path = tmp_path / "upper" / "lower"
    path.mkdir(parents=True)
    path.chmod(lower)
    path.parent.chmod(upper)
    if is_private:
        with private_folder(path) as folder:
            assert same(folder, path)
        return
    with pytest.raises(PermissionError), private_folder(path):
        pass


def test_a_folder_in_a_sticky_one_is_made(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    with private_folder(tmp_path / "mine") as folder:
        assert same(folder, tmp_path / "mine")


@pytest.mark.parametrize("target", ["right/folder", "../{name}/right/folder", "{path}/right/folder", "right/./folder"])
def test_links_lead_where_they_say(tmp_path: Path, target: str) -> None:
    (tmp_path / "right" / "folder").mkdir(parents=True)
    (tmp_path / "link").symlink_to(target.format(path=tmp_path, name=tmp_path.name))
    with private_folder(tmp_path / "link" / "in") as folder:
        assert same(folder, tmp_path / "right" / "folder" / "in")


def test_a_link_is_as_good_as_what_it_leads_through(tmp_path: Path) -> None:
    (tmp_path / "open" / "folder").mkdir(parents=True)
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "link").symlink_to(tmp_path / "open" / "folder")
    with pytest.raises(PermissionError), private_folder(tmp_path / "link"):
        pass


def test_links_in_a_circle_and_files_end(tmp_path: Path) -> None:
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "file").write_text("")
    for name in ("circle", "file"):
        with pytest.raises(OSError, match=r"symbolic links|Not a directory"), private_folder(tmp_path / name / "in"):
            pass


def test_what_is_swapped_after_the_check_is_not_seen(tmp_path: Path) -> None:
    with private_folder(tmp_path / "mine") as folder:
        (tmp_path / "mine").rename(tmp_path / "away")
        (tmp_path / "mine").symlink_to("/")
        with temporary_folder(folder):
            assert [entry.name.startswith(PREFIX) for entry in (tmp_path / "away").iterdir()] == [True]
    assert not list((tmp_path / "away").iterdir())


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "link").symlink_to(tmp_path / "open")
    before = len(os.listdir("/proc/self/fd"))
    for name in ("a", "open", "link"):
        try:
            with private_folder(tmp_path / name) as folder, temporary_folder(folder):
                pass
        except PermissionError:
            pass
    assert len(os.listdir("/proc/self/fd")) <= before


def test_temporary_folders_in_use_are_not_swept_and_others_are(tmp_path: Path) -> None:
    (tmp_path / f"{PREFIX}left").mkdir()
    (tmp_path / f"{PREFIX}left" / "object.o").write_text("half")
    (tmp_path / "something else").mkdir()
    with private_folder(tmp_path) as folder, temporary_folder(folder), temporary_folder(folder):
        names = sorted(entry.name for entry in tmp_path.iterdir())
        assert len(names) == 3
        assert f"{PREFIX}left" not in names
        assert "something else" in names
    assert [entry.name for entry in tmp_path.iterdir()] == ["something else"]


def test_a_folder_that_is_swept_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process has opened it in order to remove it, and holds the lock."""
    lock, refused = fcntl.flock, []

    def held_once(folder: int, how: int) -> None:
        if how & fcntl.LOCK_EX and not refused:
            refused.append(folder)
            raise BlockingIOError
        lock(folder, how)

    monkeypatch.setattr(fcntl, "flock", held_once)
    with private_folder(tmp_path) as folder, temporary_folder(folder):
        first, second = sorted(tmp_path.iterdir())
        assert {first.name[: len(PREFIX)], second.name[: len(PREFIX)]} == {PREFIX}
    assert len(list(tmp_path.iterdir())) == 1  # it is the other process's to remove
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(refused[0])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_somebody_elses_temporary_folder_is_not_swept(tmp_path: Path) -> None:
    theirs = tmp_path / f"{PREFIX}theirs"
    theirs.mkdir()
    os.chown(theirs, 65534, 65534)
    with private_folder(tmp_path) as folder, temporary_folder(folder):
        assert theirs.is_dir()
