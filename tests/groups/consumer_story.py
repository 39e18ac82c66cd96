"""Commands of consumer groups (KIP-848) for stories.

topics t1=4 t2=2                  makes topics, or gives them more partitions
beat a g epoch=0 topics=t1        a heartbeat; the waiter is also the member's id. With epoch=0 all that a joining
                                  client must say has a default; otherwise only what is named is said
> a: epoch=2 [t1:0,1]             the answer; without brackets it has no assignment
hold-jobs                         what goes to the pool is not run until `run-jobs`; otherwise it is run at once
"""

import re
from typing import TYPE_CHECKING, Any

from penstock.groups.consumer.checks import check_heartbeat
from penstock.groups.consumer.member import MemberState
from penstock.groups.decision import Decision, GroupRecord, Job, Now
from penstock.model.errors import ErrorCode, Refusal
from penstock.wire.generated import records_consumer_group as rows
from penstock.wire.generated.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from tests.groups.topics import Topics, parse_partitions

if TYPE_CHECKING:
    from penstock.groups.config import GroupConfig
    from penstock.groups.shard import GroupShard

TopicPartitions = ConsumerGroupHeartbeatRequest.TopicPartitions

# The topics of the story being told, so that ids can be shown as names.
_topics = Topics()


class ConsumerCommands:
    if TYPE_CHECKING:
        shard: GroupShard
        config: GroupConfig
        out: list[str]

        @property
        def now(self) -> Now: ...

        def apply(self, decision: Decision) -> None: ...

    def __init__(self) -> None:
        global _topics
        self.topics = _topics = Topics()
        self.jobs: list[Job] = []
        self.holds_jobs = False
        self.hidden: set[str] = set()

    def run_jobs_unless_held(self) -> None:
        while self.jobs and not self.holds_jobs:
            self._run_job()

    def _run_job(self) -> None:
        job = self.jobs.pop(0)
        job.run()
        self.apply(self.shard.decide_job(job, self.now))

    def do_topics(self, names: list[str], options: dict[str, str]) -> None:
        created = [self.topics.put(name, int(count)) for name, count in options.items()]
        self.shard.follow(self.topics.image, set(options), any(created))

    def do_delete_topic(self, names: list[str], options: dict[str, str]) -> None:
        self.topics.delete(names[0])
        self.shard.follow(self.topics.image, names, False)

    def do_hide(self, names: list[str], options: dict[str, str]) -> None:
        """Topics that no client may describe from now on."""
        self.hidden.update(names)

    def do_hold_jobs(self, names: list[str], options: dict[str, str]) -> None:
        self.holds_jobs = True

    def do_run_jobs(self, names: list[str], options: dict[str, str]) -> None:
        """Runs those there are; what they lead to is held again."""
        for _ in range(len(self.jobs)):
            self._run_job()

    def do_fail_jobs(self, names: list[str], options: dict[str, str]) -> None:
        while self.jobs:
            job = self.jobs.pop(0)
            job.failed = True
            self.apply(self.shard.decide_job(job, self.now))

    def do_beat(self, names: list[str], options: dict[str, str]) -> None:
        waiter, group = names
        epoch = int(options["epoch"])
        owned = options.get("owned", "" if epoch == 0 else None)
        said = options.get("topics")
        request = ConsumerGroupHeartbeatRequest(
            group_id=group,
            member_id=options.get("member", waiter),
            member_epoch=epoch,
            instance_id=options.get("instance"),
            rack_id=options.get("rack"),
            rebalance_timeout_ms=int(options.get("rebalance", "60000" if epoch == 0 else "-1")),
            subscribed_topic_names=None if said is None else [name for name in said.split(",") if name],
            subscribed_topic_regex=options.get("regex"),
            server_assignor=options.get("assignor"),
            topic_partitions=None if owned is None else self._owned(owned),
        )
        refusal = check_heartbeat(request, int(options.get("version", "1")), self.config.consumer_assignors)
        if refusal is not None:
            self.out.append(f"{waiter}: {describe_consumer_response(refusal)}")
            return
        client = options.get("client", "c")
        self.apply(
            self.shard.decide_consumer_heartbeat(
                request, client, "/h", lambda topic: topic not in self.hidden, waiter, self.now
            )
        )

    def _owned(self, text: str) -> list[Any]:
        return [TopicPartitions(self.topics.id_of(name), numbers) for name, numbers in parse_partitions(text).items()]

    def do_describe_consumer(self, names: list[str], options: dict[str, str]) -> None:
        group = self.shard.describe_consumer_group(names[0])
        if group.error_code:
            self.out.append(f"{ErrorCode(group.error_code).name} {group.error_message!r}")
            return
        epochs = f"epoch={group.group_epoch} target={group.assignment_epoch}"
        self.out.append(f"{group.group_state} {epochs} {group.assignor_name}")
        for member in group.members:
            words = [short_ids(member.member_id), f"epoch={member.member_epoch}"]
            words += [f"instance={member.instance_id}"] if member.instance_id else []
            words += ["classic"] if member.member_type == 0 else []
            words.append("topics=" + ",".join(member.subscribed_topic_names))
            words += [f"regex={member.subscribed_topic_regex}"] if member.subscribed_topic_regex else []
            words.append(show_topics(member.assignment.topic_partitions))
            words.append("target=" + show_topics(member.target_assignment.topic_partitions))
            self.out.append("  " + " ".join(words))


def short_ids(text: str) -> str:
    """Ids that the coordinator made up, as `prefix#n`."""
    return re.sub(r"-0{8}-0000-4000-8000-(\w{12})", lambda found: f"#{int(found[1], 16)}", text)


def show_topics(topics: list[Any]) -> str:
    return _topics.show((topic.topic_id, topic.partitions) for topic in topics)


def describe_consumer_response(response: Refusal | ConsumerGroupHeartbeatResponse) -> str:
    if isinstance(response, Refusal):
        return f"{response.code.name} {response.message!r}"
    assignment = f" {show_topics(response.assignment.topic_partitions)}" if response.assignment is not None else ""
    return f"epoch={response.member_epoch}{assignment}"


def describe_consumer_record(record: GroupRecord) -> str:
    key: Any = record.key
    name = type(key).__name__.removeprefix("ConsumerGroup").removesuffix("Key")
    who = " ".join(str(getattr(key, field)) for field in key.__slots__)
    return f"{name} {short_ids(who)} {'tombstone' if record.value is None else _describe_value(record.value)}"


def _describe_value(value: Any) -> str:
    if isinstance(value, rows.ConsumerGroupMetadataValue):
        return f"epoch={value.epoch}"
    if isinstance(value, rows.ConsumerGroupTargetAssignmentMetadataValue):
        return f"epoch={value.assignment_epoch}"
    if isinstance(value, rows.ConsumerGroupTargetAssignmentMemberValue):
        return show_topics(value.topic_partitions)
    if isinstance(value, rows.ConsumerGroupRegularExpressionValue):
        return f"[{' '.join(value.topics)}]"
    if isinstance(value, rows.ConsumerGroupCurrentMemberAssignmentValue):
        revoking = value.partitions_pending_revocation
        words = [
            f"epoch={value.member_epoch} {MemberState(value.state).name}",
            show_topics(value.assigned_partitions),
        ]
        return " ".join(words + ([f"revoking={show_topics(revoking)}"] if revoking else []))
    assert isinstance(value, rows.ConsumerGroupMemberMetadataValue)
    words = ["topics=" + ",".join(value.subscribed_topic_names)]
    words += [f"regex={value.subscribed_topic_regex}"] if value.subscribed_topic_regex else []
    words += [f"instance={value.instance_id}"] if value.instance_id else []
    words += [f"assignor={value.server_assignor}"] if value.server_assignor else []
    if value.classic_member_metadata is not None:
        words.append("classic=" + "+".join(each.name for each in value.classic_member_metadata.supported_protocols))
    return " ".join(words)
