from __future__ import annotations

from pathlib import Path

from leveret.pipeline.spark.shared_classes import (
    archive_path,
    delete_leftovers,
    make_archive_options,
    use_archive,
)


def test_each_java_has_its_own_archive(tmp_path: Path) -> None:
    environment = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    homes = [tmp_path / "a", tmp_path / "b"]
    for home in homes:
        home.mkdir()
        (home / "release").write_text(f'JAVA_VERSION="17.{home.name}"')
    paths = {archive_path(home, environment) for home in homes}
    assert len(paths) == 2
    before = archive_path(homes[0], environment)
    (homes[0] / "release").write_text('JAVA_VERSION="18"')
    assert archive_path(homes[0], environment) not in {before, *paths}, "an upgrade makes it another"
    assert all(path.parent == tmp_path / "cache" / "leveret" for path in paths)


def test_an_archive_is_used_only_if_there_is_one(tmp_path: Path) -> None:
    archive = tmp_path / "cache" / "x.jsa"
    assert use_archive(archive) == ""
    beside, options = make_archive_options(archive)
    assert str(beside) in options
    archive.touch()
    assert use_archive(archive) == "", "this Java cannot make one"
    archive.write_bytes(b"x")
    assert str(archive) in use_archive(archive)


def test_what_a_killed_jvm_left_beside_an_archive_is_deleted(tmp_path: Path) -> None:
    archive = tmp_path / "x.jsa"
    archive.write_bytes(b"x")
    beside, _ = make_archive_options(archive)
    other, _ = make_archive_options(tmp_path / "y.jsa")
    for path in (beside, other):
        path.touch()
    delete_leftovers(archive)
    assert sorted(tmp_path.iterdir()) == [archive, other]
