"""kcat by itself: metadata, the balanced consumer, keys, partitions, a format line."""

import json

from confluent_kafka import Consumer, TopicPartition

from tests.conformance.clients import Kcat
from tests.conformance.conftest import NewTopicFunction


def test_metadata(bootstrap: str, new_topic: NewTopicFunction) -> None:
    topic = new_topic(3)
    described = json.loads(Kcat.run("-L", "-b", bootstrap, "-t", topic, "-J"))
    assert [broker["name"] for broker in described["brokers"]] == [bootstrap]
    [found] = described["topics"]
    assert (found["topic"], len(found["partitions"])) == (topic, 3)
    assert all(p["leader"] == described["brokers"][0]["id"] for p in found["partitions"])


def test_a_balanced_consumer_commits_its_place(bootstrap: str, new_topic: NewTopicFunction, new_group: str) -> None:
    topic = new_topic(2)
    for partition in ("0", "1"):
        lines = "".join(f"{partition}-{number}\n" for number in range(5)).encode()
        Kcat.run("-P", "-b", bootstrap, "-t", topic, "-p", partition, stdin=lines)
    group = ("-b", bootstrap, "-G", new_group, topic, "-X", "auto.offset.reset=earliest", "-e", "-q")
    assert len(Kcat.run(*group, "-f", "%p %o %s\\n").splitlines()) == 10
    assert Kcat.run(*group).splitlines() == [], "the second run begins where the first one ended"
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": new_group})
    try:
        stored = consumer.committed([TopicPartition(topic, p) for p in (0, 1)], timeout=30)
    finally:
        consumer.close()
    assert [found.offset for found in stored] == [5, 5]


def test_keys_choose_partitions_and_come_back(bootstrap: str, new_topic: NewTopicFunction) -> None:
    topic = new_topic(4)
    lines = b"".join(b"key%d:value%d\n" % (number % 7, number) for number in range(70))
    Kcat.run("-P", "-b", bootstrap, "-t", topic, "-K", ":", "-z", "zstd", stdin=lines)
    read = Kcat.run("-C", "-b", bootstrap, "-t", topic, "-e", "-q", "-o", "beginning", "-f", "%k %p %s %S %T\\n")
    rows = [line.split() for line in read.splitlines()]
    assert sorted(row[2] for row in rows) == sorted(b"value%d" % number for number in range(70))
    assert len({(row[0], row[1]) for row in rows}) == 7, "one partition per key"
    assert all(len(row[2]) == int(row[3]) and int(row[4]) > 0 for row in rows)
