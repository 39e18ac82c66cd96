package penstock;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.zip.CRC32;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Steady traffic while a cluster is hurt: an idempotent producer, and one consumer of each group protocol that commits
 * what it has read, some time after. Tells everything on stdout, a line each, in the order in which it happened to its thread:
 *
 *   A partition number offset sent acknowledged   a record was acknowledged; times are those of the monotonic clock
 *   F text                                        a delivery failed, or a client gave up
 *   R group partition first last crc              records were received; the CRC-32 of their values
 *   C group partition offset                      a commit was acknowledged
 *
 * Arguments: bootstrap topic partitions pause_ms timeout_ms, where a timeout of 0 leaves Kafka's defaults alone.
 * On stdin, the line "replace" lets other members take over from what the groups have committed, any other line ends
 * the producer, and the end of it the consumers.
 */
public final class Traffic {
    private static final PrintStream OUT = System.out;
    private static final long COMMIT_NANOS = 300_000_000L;
    private static final AtomicInteger MEMBERS = new AtomicInteger();
    private static volatile boolean producing = true;
    private static volatile boolean consuming = true;

    private Traffic() {}

    public static void main(String[] args) throws Exception {
        int timeoutMs = Integer.parseInt(args[4]);
        List<Thread> consumers = new ArrayList<>();
        for (String protocol : List.of("classic", "consumer")) {
            consumers.add(new Thread(() -> guarded(() -> consume(args[0], args[1], protocol, timeoutMs))));
        }
        Thread producer = new Thread(() -> guarded(
            () -> produce(args[0], args[1], Integer.parseInt(args[2]), Integer.parseInt(args[3]), timeoutMs)));
        producer.start();
        consumers.forEach(Thread::start);
        var orders = new BufferedReader(new InputStreamReader(System.in));
        for (String order = orders.readLine(); order != null; order = orders.readLine()) {
            if (order.equals("replace")) {
                MEMBERS.incrementAndGet();
            } else {
                producing = false;
                producer.join();
                say("E");
            }
        }
        consuming = false;
        for (Thread consumer : consumers) {
            consumer.join(15_000);
        }
        OUT.flush();
        Runtime.getRuntime().halt(0);
    }

    private interface Work {
        void run() throws Exception;
    }

    private static void guarded(Work work) {
        try {
            work.run();
        } catch (Throwable failure) {
            failure.printStackTrace();
            say("F " + failure);
        }
    }

    private static void say(String line) {
        synchronized (OUT) {
            OUT.println(line);
            OUT.flush();
        }
    }

    private static void produce(String bootstrap, String topic, int partitions, int pauseMs, int timeoutMs)
            throws InterruptedException {
        Map<String, Object> config = new HashMap<>(Map.of("bootstrap.servers", bootstrap, "acks", "all",
            "enable.idempotence", true, "linger.ms", 2, "client.id", "java-producer"));
        if (timeoutMs > 0) {
            config.putAll(Map.of("request.timeout.ms", timeoutMs, "socket.connection.setup.timeout.ms", timeoutMs,
                "reconnect.backoff.max.ms", 200, "retry.backoff.max.ms", 200));
        }
        try (var producer = new KafkaProducer<>(config, new StringSerializer(), new StringSerializer())) {
            for (int number = 0; producing; number++) {
                for (int partition = 0; partition < partitions; partition++) {
                    send(producer, topic, partition, number);
                }
                Thread.sleep(pauseMs);
            }
            producer.flush();
        }
    }

    private static void send(KafkaProducer<String, String> producer, String topic, int partition, int number) {
        long sent = System.nanoTime();
        producer.send(new ProducerRecord<>(topic, partition, null, "java:" + number), (metadata, failure) -> {
            if (failure != null) {
                say("F " + failure);
            } else {
                say("A " + partition + " " + number + " " + metadata.offset() + " " + sent + " " + System.nanoTime());
            }
        });
    }

    private static void consume(String bootstrap, String topic, String protocol, int timeoutMs) {
        String group = "java-" + protocol;
        Map<String, Object> config = new HashMap<>(Map.of("bootstrap.servers", bootstrap, "group.id", group,
            "group.protocol", protocol, "enable.auto.commit", false, "auto.offset.reset", "earliest",
            "client.id", group));
        if (timeoutMs > 0) {
            config.putAll(Map.of("request.timeout.ms", 2 * timeoutMs, "default.api.timeout.ms", 4 * timeoutMs,
                "socket.connection.setup.timeout.ms", timeoutMs, "reconnect.backoff.max.ms", 200));
            if (protocol.equals("classic")) {
                config.putAll(Map.of("session.timeout.ms", 10_000, "heartbeat.interval.ms", 500));
            }
        }
        while (consuming) {
            beMember(config, topic, group);
        }
    }

    /** Until another one is to take over: what was not committed by then is read again, and there is something. */
    private static void beMember(Map<String, Object> config, String topic, String group) {
        int member = MEMBERS.get();
        Map<TopicPartition, OffsetAndMetadata> read = new HashMap<>();
        try (var consumer = new KafkaConsumer<>(config, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(topic));
            long due = System.nanoTime() + COMMIT_NANOS;
            while (consuming && (member == MEMBERS.get() || read.isEmpty())) {
                ConsumerRecords<String, String> polled = consumer.poll(Duration.ofMillis(100));
                for (TopicPartition partition : polled.partitions()) {
                    read.put(partition, tell(group, partition, polled.records(partition)));
                }
                if (!read.isEmpty() && System.nanoTime() - due >= 0) {
                    commit(consumer, group, read);
                    read.clear();
                    due = System.nanoTime() + COMMIT_NANOS;
                }
            }
        }
    }

    private static OffsetAndMetadata tell(String group, TopicPartition partition,
            List<ConsumerRecord<String, String>> records) {
        CRC32 crc = new CRC32();
        long next = records.get(0).offset();
        for (ConsumerRecord<String, String> record : records) {
            if (record.offset() != next++) {
                say("F " + group + " " + partition + ": " + record.offset() + " does not follow");
            }
            crc.update(record.value().getBytes(StandardCharsets.UTF_8));
        }
        long first = records.get(0).offset();
        say("R " + group + " " + partition.partition() + " " + first + " " + (next - 1) + " " + crc.getValue());
        return new OffsetAndMetadata(next);
    }

    /** A commit that fails is not acknowledged; the group may read again from the one before. */
    private static void commit(KafkaConsumer<String, String> consumer, String group,
            Map<TopicPartition, OffsetAndMetadata> offsets) {
        try {
            consumer.commitSync(offsets);
            offsets.forEach((at, to) -> say("C " + group + " " + at.partition() + " " + to.offset()));
        } catch (KafkaException failure) {
            System.err.println(group + " could not commit: " + failure);
        }
    }
}
