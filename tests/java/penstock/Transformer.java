package penstock;

import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Consumes, transforms and produces in transactions; a program of its own, to be killed. As the Python ones in
 * tests/crash/transformers.py: every fault ends it, and whoever watches starts it again.
 */
public final class Transformer {
    private Transformer() {}

    public static void main(String[] args) {
        String bootstrap = args[0];
        String input = args[1];
        String output = args[2];
        String group = args[3];
        try (var producer = new KafkaProducer<>(producerConfig(bootstrap, args[4]), new StringSerializer(),
                 new StringSerializer());
             var consumer = new KafkaConsumer<>(consumerConfig(bootstrap, group, args[5]), new StringDeserializer(),
                 new StringDeserializer())) {
            producer.initTransactions();
            consumer.subscribe(List.of(input));
            while (true) {
                ConsumerRecords<String, String> polled = consumer.poll(Duration.ofMillis(100));
                if (!polled.isEmpty()) {
                    transform(producer, consumer, polled, output);
                }
            }
        } catch (Throwable failure) {
            failure.printStackTrace();
            Runtime.getRuntime().halt(1);
        }
    }

    private static void transform(KafkaProducer<String, String> producer, KafkaConsumer<String, String> consumer,
            ConsumerRecords<String, String> polled, String output) {
        producer.beginTransaction();
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        for (ConsumerRecord<String, String> record : polled) {
            producer.send(new ProducerRecord<>(output, record.partition(), null, "out-" + record.value()));
            offsets.put(new TopicPartition(record.topic(), record.partition()),
                new OffsetAndMetadata(record.offset() + 1));
        }
        producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
        producer.commitTransaction();
    }

    private static Map<String, Object> producerConfig(String bootstrap, String transactionalId) {
        return Map.of("bootstrap.servers", bootstrap, "transactional.id", transactionalId,
            "transaction.timeout.ms", 20_000, "linger.ms", 0, "reconnect.backoff.max.ms", 200);
    }

    private static Map<String, Object> consumerConfig(String bootstrap, String group, String protocol) {
        Map<String, Object> config = new HashMap<>(Map.of("bootstrap.servers", bootstrap, "group.id", group,
            "group.protocol", protocol, "isolation.level", "read_committed", "enable.auto.commit", false,
            "auto.offset.reset", "earliest", "max.poll.records", 10, "reconnect.backoff.max.ms", 200));
        if (protocol.equals("classic")) {
            config.put("session.timeout.ms", 2_000);
            config.put("heartbeat.interval.ms", 300);
        }
        return config;
    }
}
