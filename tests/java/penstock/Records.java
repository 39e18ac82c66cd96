package penstock;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Producing and consuming whole lists of records with the Java clients; bytes travel as base64. */
final class Records {
    private Records() {}

    static Map<String, Object> config(JsonNode command) {
        Map<String, Object> config = new HashMap<>();
        command.path("config").properties().forEach(e -> config.put(e.getKey(), e.getValue().asText()));
        config.put("bootstrap.servers", command.get("bootstrap").asText());
        return config;
    }

    static byte[] bytes(JsonNode node) {
        return node == null || node.isNull() ? null : Base64.getDecoder().decode(node.asText());
    }

    static String text(byte[] bytes) {
        return bytes == null ? null : Base64.getEncoder().encodeToString(bytes);
    }

    static void produce(JsonNode command, ObjectNode answer) throws Exception {
        ArrayNode results = answer.putArray("results");
        ByteArraySerializer serializer = new ByteArraySerializer();
        try (var producer = new KafkaProducer<>(config(command), serializer, serializer)) {
            List<Future<RecordMetadata>> futures = new ArrayList<>();
            for (JsonNode node : command.get("records")) {
                futures.add(producer.send(toRecord(command.get("topic").asText(), node)));
            }
            producer.flush();
            for (Future<RecordMetadata> future : futures) {
                RecordMetadata metadata = future.get(30, TimeUnit.SECONDS);
                results.addArray().add(metadata.partition()).add(metadata.offset());
            }
        }
    }

    private static ProducerRecord<byte[], byte[]> toRecord(String topic, JsonNode node) {
        Integer partition = node.path("partition").isInt() ? node.get("partition").asInt() : null;
        Long timestamp = node.path("timestamp").isNumber() ? node.get("timestamp").asLong() : null;
        var record = new ProducerRecord<>(topic, partition, timestamp, bytes(node.get("key")), bytes(node.get("value")));
        for (JsonNode header : node.path("headers")) {
            record.headers().add(header.get(0).asText(), bytes(header.get(1)));
        }
        return record;
    }

    /** Everything between the earliest and the latest offsets, as they are when the command arrives. */
    static void consume(JsonNode command, ObjectNode answer) {
        String topic = command.get("topic").asText();
        ArrayNode records = answer.putArray("records");
        ByteArrayDeserializer deserializer = new ByteArrayDeserializer();
        try (var consumer = new KafkaConsumer<>(config(command), deserializer, deserializer)) {
            List<TopicPartition> partitions = new ArrayList<>();
            consumer.partitionsFor(topic).forEach(p -> partitions.add(new TopicPartition(topic, p.partition())));
            consumer.assign(partitions);
            Map<TopicPartition, Long> ends = consumer.endOffsets(partitions);
            consumer.seekToBeginning(partitions);
            long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(30);
            while (ends.entrySet().stream().anyMatch(e -> consumer.position(e.getKey()) < e.getValue())) {
                if (System.nanoTime() > deadline) {
                    throw new IllegalStateException("read only " + records.size() + " records in 30 s");
                }
                consumer.poll(Duration.ofMillis(200)).forEach(r -> addRecord(records, r));
            }
        }
    }

    static void addRecord(ArrayNode records, ConsumerRecord<byte[], byte[]> record) {
        ObjectNode node = records.addObject();
        node.put("partition", record.partition());
        node.put("offset", record.offset());
        node.put("timestamp", record.timestamp());
        node.put("key", text(record.key()));
        node.put("value", text(record.value()));
        ArrayNode headers = node.putArray("headers");
        for (Header header : record.headers()) {
            headers.addArray().add(header.key()).add(text(header.value()));
        }
    }
}
