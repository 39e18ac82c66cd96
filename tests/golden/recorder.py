"""A server that speaks just enough Kafka to make clients talk, and keeps the requests they send.

Answers come from the generated codecs. Calls that need a real broker fail in the client; by then their request is
kept.
"""

import asyncio
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

from penstock.wire.apis import API_TABLE, Api, ApiKey
from penstock.wire.generated.api_versions import ApiVersionsResponse
from penstock.wire.header import RequestHeader, decode_request_header, encode_response_header
from penstock.wire.served import advertised_versions

TOPIC_ID = bytes(range(1, 17))
NODE_ID = 1
# Beyond what is served, so that these requests are captured too.
_ALSO_ADVERTISED = (
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.ADD_OFFSETS_TO_TXN,
    ApiKey.END_TXN,
    ApiKey.TXN_OFFSET_COMMIT,
    ApiKey.DESCRIBE_ACLS,
    ApiKey.CREATE_ACLS,
    ApiKey.DELETE_ACLS,
    ApiKey.ELECT_LEADERS,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS,
    ApiKey.LIST_PARTITION_REASSIGNMENTS,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
    ApiKey.CONSUMER_GROUP_HEARTBEAT,
    ApiKey.CONSUMER_GROUP_DESCRIBE,
)


class Recorder:
    """Runs in a thread of its own; `frames` maps (API module, version) to the longest frame seen."""

    def __init__(self) -> None:
        self.frames: dict[tuple[str, int], bytes] = {}
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Recorder":
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        server.close()
        open_connections = asyncio.all_tasks(self._loop)
        for task in open_connections:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*open_connections))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                frame = await reader.readexactly(size)
                response = self._answer(frame)
                if response is not None:
                    writer.write(len(response).to_bytes(4, "big") + response)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            writer.close()

    def _answer(self, frame: bytes) -> bytes | None:
        header = decode_request_header(frame)
        api = API_TABLE[header.api_key]
        if header.api_version > api.max_version or (api.key == ApiKey.API_VERSIONS and header.api_version > 4):
            return self._encode(header, 0, ApiVersionsResponse(error_code=35))
        place = (api.module, header.api_version)
        if len(frame) > len(self.frames.get(place, b"")):
            self.frames[place] = frame
        request, _ = api.request_class().decode(frame, header.body_pos, header.api_version)
        if api.key == ApiKey.PRODUCE and request.acks == 0:
            return None
        return self._encode(header, header.api_version, self._respond(api, header, request))

    def _encode(self, header: RequestHeader, version: int, response: Any) -> bytes:
        out = bytearray()
        encode_response_header(header.api_key, version, header.correlation_id, out)
        response.encode(version, out)
        return bytes(out)

    def _respond(self, api: Api, header: RequestHeader, request: Any) -> Any:
        response: Any = api.response_class()()
        fill: Callable[[Any, Any, int], None] | None = getattr(self, f"_fill_{api.module}", None)
        if fill is not None:
            fill(request, response, header.api_version)
        return response

    # --- answers without which a client would say no more ---------------------------------------------------

    def _fill_api_versions(self, request: Any, response: Any, version: int) -> None:
        ranges = advertised_versions()
        ranges += [(key, API_TABLE[key].min_version, API_TABLE[key].max_stable_version) for key in _ALSO_ADVERTISED]
        response.api_keys = [response.ApiVersion(*versions) for versions in sorted(ranges)]

    def _fill_metadata(self, request: Any, response: Any, version: int) -> None:
        response.brokers = [response.MetadataResponseBroker(NODE_ID, "127.0.0.1", self.port)]
        response.cluster_id = "golden"
        response.controller_id = NODE_ID
        for name in [topic.name or "golden" for topic in request.topics or ()] or ["golden"]:
            partition = response.MetadataResponsePartition(
                leader_id=NODE_ID, leader_epoch=0, replica_nodes=[NODE_ID], isr_nodes=[NODE_ID]
            )
            topic = response.MetadataResponseTopic(name=name, partitions=[partition])
            topic.topic_id = TOPIC_ID if version >= 10 else topic.topic_id
            response.topics.append(topic)

    def _fill_describe_cluster(self, request: Any, response: Any, version: int) -> None:
        response.brokers = [response.DescribeClusterBroker(NODE_ID, "127.0.0.1", self.port)]
        response.cluster_id = "golden"
        response.controller_id = NODE_ID

    def _fill_find_coordinator(self, request: Any, response: Any, version: int) -> None:
        if version >= 4:
            keys = request.coordinator_keys
            response.coordinators = [response.Coordinator(key, NODE_ID, "127.0.0.1", self.port) for key in keys]
        else:
            response.node_id, response.host, response.port = NODE_ID, "127.0.0.1", self.port

    def _fill_init_producer_id(self, request: Any, response: Any, version: int) -> None:
        response.producer_id, response.producer_epoch = 7, 0

    def _fill_produce(self, request: Any, response: Any, version: int) -> None:
        for topic in request.topic_data:
            answers = [response.PartitionProduceResponse(data.index) for data in topic.partition_data]
            response.responses.append(response.TopicProduceResponse(topic.name, topic.topic_id, answers))

    def _fill_fetch(self, request: Any, response: Any, version: int) -> None:
        for topic in request.topics:
            answers = [response.PartitionData(asked.partition, high_watermark=0) for asked in topic.partitions]
            response.responses.append(response.FetchableTopicResponse(topic.topic, topic.topic_id, answers))

    def _fill_list_offsets(self, request: Any, response: Any, version: int) -> None:
        for topic in request.topics:
            answers = [
                response.ListOffsetsPartitionResponse(asked.partition_index, 0, -1, 0, 0 if version >= 4 else -1)
                for asked in topic.partitions
            ]
            response.topics.append(response.ListOffsetsTopicResponse(topic.name, answers))

    def _fill_join_group(self, request: Any, response: Any, version: int) -> None:
        member = request.member_id or "golden-member"
        response.generation_id = 1
        response.protocol_type = request.protocol_type
        response.protocol_name = request.protocols[0].name
        response.leader = response.member_id = member
        response.members = [response.JoinGroupResponseMember(member, None, request.protocols[0].metadata)]

    def _fill_sync_group(self, request: Any, response: Any, version: int) -> None:
        response.protocol_type, response.protocol_name = request.protocol_type, request.protocol_name
        response.assignment = request.assignments[0].assignment if request.assignments else b""

    def _fill_offset_fetch(self, request: Any, response: Any, version: int) -> None:
        if version >= 8:
            for group in request.groups:
                answer = response.OffsetFetchResponseGroup(group.group_id)
                for topic in group.topics or ():
                    partitions = [response.OffsetFetchResponsePartitions(i, -1) for i in topic.partition_indexes]
                    answer.topics.append(response.OffsetFetchResponseTopics(topic.name, topic.topic_id, partitions))
                response.groups.append(answer)
        else:
            for topic in request.topics or ():
                partitions = [response.OffsetFetchResponsePartition(i, -1) for i in topic.partition_indexes]
                response.topics.append(response.OffsetFetchResponseTopic(topic.name, partitions))

    def _fill_offset_commit(self, request: Any, response: Any, version: int) -> None:
        for topic in request.topics:
            partitions = [response.OffsetCommitResponsePartition(asked.partition_index) for asked in topic.partitions]
            response.topics.append(response.OffsetCommitResponseTopic(topic.name, topic.topic_id, partitions))

    def _fill_add_partitions_to_txn(self, request: Any, response: Any, version: int) -> None:
        for topic in request.v3_and_below_topics:
            results = [response.AddPartitionsToTxnPartitionResult(index) for index in topic.partitions]
            response.results_by_topic_v3_and_below.append(response.AddPartitionsToTxnTopicResult(topic.name, results))

    def _fill_txn_offset_commit(self, request: Any, response: Any, version: int) -> None:
        for topic in request.topics:
            partitions = [
                response.TxnOffsetCommitResponsePartition(asked.partition_index) for asked in topic.partitions
            ]
            response.topics.append(response.TxnOffsetCommitResponseTopic(topic.name, topic.topic_id, partitions))

    def _fill_consumer_group_heartbeat(self, request: Any, response: Any, version: int) -> None:
        response.member_id, response.member_epoch, response.heartbeat_interval_ms = request.member_id, 1, 1000
        topics = [response.TopicPartitions(TOPIC_ID, [0])]
        response.assignment = response.Assignment(topics)

    # --- answers without which librdkafka aborts the process ------------------------------------------------

    def _fill_describe_groups(self, request: Any, response: Any, version: int) -> None:
        response.groups = [response.DescribedGroup(group_id=group) for group in request.groups]

    def _fill_consumer_group_describe(self, request: Any, response: Any, version: int) -> None:
        response.groups = [response.DescribedGroup(group_id=group) for group in request.group_ids]

    def _fill_delete_groups(self, request: Any, response: Any, version: int) -> None:
        response.results = [response.DeletableGroupResult(group) for group in request.groups_names]

    def _fill_create_topics(self, request: Any, response: Any, version: int) -> None:
        response.topics = [response.CreatableTopicResult(topic.name) for topic in request.topics]

    def _fill_delete_topics(self, request: Any, response: Any, version: int) -> None:
        names = request.topic_names or [topic.name for topic in request.topics]
        response.responses = [response.DeletableTopicResult(name) for name in names]

    def _fill_create_partitions(self, request: Any, response: Any, version: int) -> None:
        response.results = [response.CreatePartitionsTopicResult(topic.name) for topic in request.topics]

    def _fill_create_acls(self, request: Any, response: Any, version: int) -> None:
        response.results = [response.AclCreationResult(error_message=None) for _ in request.creations]

    def _fill_delete_acls(self, request: Any, response: Any, version: int) -> None:
        response.filter_results = [response.DeleteAclsFilterResult(error_message=None) for _ in request.filters]

    def _fill_delete_records(self, request: Any, response: Any, version: int) -> None:
        for topic in request.topics:
            results = [response.DeleteRecordsPartitionResult(asked.partition_index) for asked in topic.partitions]
            response.topics.append(response.DeleteRecordsTopicResult(topic.name, results))
