package penstock;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Transactional producers, by name, taken step by step. */
final class Transactions {
    private static final Map<String, KafkaProducer<byte[], byte[]>> PRODUCERS = new HashMap<>();

    private Transactions() {}

    static void run(JsonNode command, ObjectNode answer) throws Exception {
        String name = command.path("name").asText();
        switch (command.get("step").asText()) {
            case "init" -> init(name, command);
            case "begin" -> PRODUCERS.get(name).beginTransaction();
            case "send" -> send(PRODUCERS.get(name), command);
            case "offsets" -> sendOffsets(PRODUCERS.get(name), command);
            case "commit" -> PRODUCERS.get(name).commitTransaction();
            case "abort" -> PRODUCERS.get(name).abortTransaction();
            case "close" -> PRODUCERS.remove(name).close();
            case "fence" -> fence(command);
            default -> throw new IllegalArgumentException("unknown step");
        }
    }

    private static void init(String name, JsonNode command) {
        ByteArraySerializer serializer = new ByteArraySerializer();
        KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(Records.config(command), serializer, serializer);
        PRODUCERS.put(name, producer);
        producer.initTransactions();
    }

    private static void send(KafkaProducer<byte[], byte[]> producer, JsonNode command) throws Exception {
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        for (JsonNode value : command.get("values")) {
            String topic = command.get("topic").asText();
            int partition = command.get("partition").asInt();
            sent.add(producer.send(new ProducerRecord<>(topic, partition, null, Records.bytes(value))));
        }
        producer.flush();
        for (Future<RecordMetadata> each : sent) {
            each.get(30, TimeUnit.SECONDS);
        }
    }

    private static void sendOffsets(KafkaProducer<byte[], byte[]> producer, JsonNode command) {
        TopicPartition place = new TopicPartition(command.get("topic").asText(), command.get("partition").asInt());
        OffsetAndMetadata offset = new OffsetAndMetadata(command.get("offset").asLong());
        producer.sendOffsetsToTransaction(Map.of(place, offset),
            new ConsumerGroupMetadata(command.get("group").asText()));
    }

    private static void fence(JsonNode command) throws Exception {
        try (Admin admin = Admin.create(Records.config(command))) {
            admin.fenceProducers(List.of(command.get("id").asText())).all().get(30, TimeUnit.SECONDS);
        }
    }
}
