"""Who a node is, and what it refuses to start on."""

import pytest

from penstock.log.disk import OsDisk
from penstock.model.ids import parse_uuid
from penstock.model.ports import SystemRng
from penstock.node.identity import DirectoryLock, NodeRefused, load_identity

RNG = SystemRng()


def test_a_new_directory_gets_an_identity_that_stays(tmp_path):
    directories = [str(tmp_path / "a"), str(tmp_path / "b")]
    first = load_identity(OsDisk(), directories, 1, None, RNG)
    assert first.created
    assert len(set(first.directory_ids)) == 2
    second = load_identity(OsDisk(), directories, 1, None, RNG)
    assert second == first._replace(created=False)
    text = (tmp_path / "a" / "meta.properties").read_text()
    assert f"cluster.id={first.cluster_id}" in text
    assert "version=1" in text
    assert len(parse_uuid(first.cluster_id)) == 16


def test_an_added_directory_joins_the_cluster(tmp_path):
    first = load_identity(OsDisk(), [str(tmp_path / "a")], 1, None, RNG)
    both = load_identity(OsDisk(), [str(tmp_path / "a"), str(tmp_path / "b")], 1, None, RNG)
    assert both.cluster_id == first.cluster_id
    assert both.directory_ids[0] == first.directory_ids[0]


def test_what_belongs_to_somebody_else_is_refused(tmp_path):
    ours, theirs = str(tmp_path / "ours"), str(tmp_path / "theirs")
    load_identity(OsDisk(), [ours], 1, "AAAAAAAAQAAAAAAAAAAAAA", RNG)
    load_identity(OsDisk(), [theirs], 1, "BBBBBBBBQBBBBBBBBBBBBA", RNG)
    with pytest.raises(NodeRefused, match="different clusters"):
        load_identity(OsDisk(), [ours, theirs], 1, None, RNG)
    with pytest.raises(NodeRefused, match=r"node\.id=2"):
        load_identity(OsDisk(), [ours], 2, None, RNG)
    with pytest.raises(NodeRefused, match="belongs to cluster"):
        load_identity(OsDisk(), [ours], 1, "BBBBBBBBQBBBBBBBBBBBBA", RNG)


def test_a_damaged_or_newer_file_is_refused(tmp_path):
    path = tmp_path / "meta.properties"
    path.write_text("version=1\nnode.id=1\n")
    with pytest.raises(NodeRefused, match=r"lacks cluster\.id, directory\.id"):
        load_identity(OsDisk(), [str(tmp_path)], 1, None, RNG)
    path.write_text("version=9\nnode.id=1\ncluster.id=x\ndirectory.id=y\n")
    with pytest.raises(NodeRefused, match="version 9"):
        load_identity(OsDisk(), [str(tmp_path)], 1, None, RNG)


def test_a_directory_has_one_node(tmp_path):
    lock = DirectoryLock(str(tmp_path))
    with pytest.raises(NodeRefused, match="in use by another process"):
        DirectoryLock(str(tmp_path))
    lock.release()
    DirectoryLock(str(tmp_path)).release()
