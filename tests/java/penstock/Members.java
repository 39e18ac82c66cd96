package penstock;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** Members of consumer groups, each on a thread of its own, that report what they own, lost and received. */
final class Members {
    private static final int MAX_TOLD = 10_000;
    private static final Map<String, Member> MEMBERS = new HashMap<>();

    private Members() {}

    static void start(JsonNode command) {
        Member member = new Member(Records.config(command), command.get("topic").asText());
        MEMBERS.put(command.get("name").asText(), member);
        member.start();
    }

    static void state(JsonNode command, ObjectNode answer) {
        MEMBERS.get(command.get("name").asText()).report(answer, command.get("since").asInt());
    }

    static void stop(JsonNode command) throws InterruptedException {
        MEMBERS.get(command.get("name").asText()).end();
    }

    static void stopAll() throws InterruptedException {
        for (Member member : MEMBERS.values()) {
            member.end();
        }
    }

    private static final class Member extends Thread implements ConsumerRebalanceListener {
        private final Map<String, Object> config;
        private final String topic;
        private final TreeSet<Integer> owned = new TreeSet<>();
        private final List<Integer> revoked = new ArrayList<>();
        private final List<String> received = new ArrayList<>();
        private String failure;
        private volatile boolean ending;

        Member(Map<String, Object> config, String topic) {
            this.config = config;
            this.topic = topic;
            setDaemon(true);
        }

        @Override
        public void run() {
            ByteArrayDeserializer deserializer = new ByteArrayDeserializer();
            try (var consumer = new KafkaConsumer<>(config, deserializer, deserializer)) {
                consumer.subscribe(List.of(topic), this);
                while (!ending) {
                    var polled = consumer.poll(Duration.ofMillis(50));
                    synchronized (this) {
                        for (ConsumerRecord<byte[], byte[]> record : polled) {
                            received.add(Records.text(record.value()));
                        }
                    }
                    if (!polled.isEmpty()) {
                        consumer.commitAsync();
                    }
                }
            } catch (RuntimeException e) {
                synchronized (this) {
                    failure = e.toString();
                }
            }
        }

        @Override
        public synchronized void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            partitions.forEach(p -> owned.add(p.partition()));
        }

        @Override
        public synchronized void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            partitions.forEach(p -> owned.remove(p.partition()));
            partitions.forEach(p -> revoked.add(p.partition()));
        }

        /** What it received is told from number `since` on, and not all at once: it may be a lot. */
        synchronized void report(ObjectNode answer, int since) {
            ArrayNode partitions = answer.putArray("owned");
            owned.forEach(partitions::add);
            ArrayNode lost = answer.putArray("revoked");
            revoked.forEach(lost::add);
            ArrayNode values = answer.putArray("received");
            received.subList(since, Math.min(received.size(), since + MAX_TOLD)).forEach(values::add);
            answer.put("error", failure);
        }

        void end() throws InterruptedException {
            ending = true;
            join(15_000);
        }
    }
}
