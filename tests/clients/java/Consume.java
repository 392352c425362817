import java.io.InputStream;
import java.security.MessageDigest;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.StringJoiner;
import org.apache.kafka.clients.consumer.ConsumerInterceptor;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * The consumer program of the Java client, which makes fetch sessions of its own. Command line and output are told in
 * tests/clients/__init__.py.
 */
public final class Consume {
    private static final int FETCH_MAX_WAIT_MS = System.getenv("CONSUME_USUAL") == null ? 100 : 500;
    private static final int COMMIT_INTERVAL_MS = 1000;

    private Consume() {
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, String> given = new HashMap<>();
        for (int at = 0; at < arguments.length; at += 2) {
            given.put(arguments[at].substring(2), arguments[at + 1]);
        }
        System.out.printf("{\"kind\": \"start\", \"client\": \"Java\", \"version\": \"%s\"}%n", version());
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings(given))) {
            if (given.containsKey("subscribe")) {
                consumer.subscribe(List.of(given.get("subscribe").split(",")), new Rebalances());
            } else {
                List<TopicPartition> partitions = partitions(given.get("assign"));
                consumer.assign(partitions);
                consumer.seekToBeginning(partitions);
            }
            read(consumer);
        }
        System.out.println("{\"kind\": \"end\"}");
    }

    private static String version() throws Exception {
        Properties told = new Properties();
        try (InputStream stream = KafkaConsumer.class.getResourceAsStream("/kafka/kafka-version.properties")) {
            told.load(stream);
        }
        return told.getProperty("version");
    }

    private static Map<String, Object> settings(Map<String, String> given) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", given.get("bootstrap"));
        settings.put("client.id", given.getOrDefault("client-id", "java" + given.getOrDefault("suffix", "")));
        settings.put("isolation.level", given.get("isolation"));
        if (given.containsKey("group")) {
            settings.put("group.id", given.get("group"));
            settings.put("auto.offset.reset", "earliest");
            settings.put("auto.commit.interval.ms", COMMIT_INTERVAL_MS);
            settings.put("interceptor.classes", Acknowledged.class.getName());
        }
        if (given.containsKey("strategy")) {
            settings.put("partition.assignment.strategy", "org.apache.kafka.clients.consumer.RangeAssignor");
        }
        if (given.containsKey("session-ms")) {
            int sessionMs = Integer.parseInt(given.get("session-ms"));
            settings.put("session.timeout.ms", sessionMs);
            settings.put("heartbeat.interval.ms", sessionMs / 6);
        }
        settings.put("fetch.max.wait.ms", FETCH_MAX_WAIT_MS);
        settings.put("key.deserializer", ByteArrayDeserializer.class);
        settings.put("value.deserializer", ByteArrayDeserializer.class);
        return settings;
    }

    private static List<TopicPartition> partitions(String assign) {
        List<TopicPartition> partitions = new ArrayList<>();
        for (String item : assign.split(",")) {
            String[] parts = item.split(":");
            for (int partition = 0; partition < Integer.parseInt(parts[1]); partition++) {
                partitions.add(new TopicPartition(parts[0], partition));
            }
        }
        return partitions;
    }

    private static void read(KafkaConsumer<byte[], byte[]> consumer) throws Exception {
        while (System.in.available() == 0) {
            try {
                for (ConsumerRecord<byte[], byte[]> each : consumer.poll(Duration.ofMillis(100))) {
                    System.out.println(line(each));
                }
            } catch (KafkaException error) {
                System.out.printf("{\"kind\": \"error\", \"code\": \"%s\", \"text\": \"\"}%n", error.getClass().getSimpleName());
            }
        }
    }

    /** Prints the partitions which the group assigns and revokes. */
    private static final class Rebalances implements ConsumerRebalanceListener {
        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            print("assigned", partitions);
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            print("revoked", partitions);
        }

        private static void print(String kind, Collection<TopicPartition> partitions) {
            StringJoiner places = new StringJoiner(", ", "[", "]");
            for (TopicPartition each : partitions) {
                places.add("[\"" + each.topic() + "\", " + each.partition() + "]");
            }
            System.out.printf("{\"kind\": \"%s\", \"partitions\": %s}%n", kind, places);
        }
    }

    /** Prints each commit that the group has accepted, also those that the client makes by itself. */
    public static final class Acknowledged implements ConsumerInterceptor<byte[], byte[]> {
        @Override
        public ConsumerRecords<byte[], byte[]> onConsume(ConsumerRecords<byte[], byte[]> records) {
            return records;
        }

        @Override
        public void onCommit(Map<TopicPartition, OffsetAndMetadata> offsets) {
            offsets.forEach((place, each) -> System.out.printf(
                "{\"kind\": \"acknowledged\", \"topic\": \"%s\", \"partition\": %d, \"offset\": %d}%n",
                place.topic(), place.partition(), each.offset()));
        }

        @Override
        public void close() {
        }

        @Override
        public void configure(Map<String, ?> settings) {
        }
    }

    private static String line(ConsumerRecord<byte[], byte[]> each) throws Exception {
        StringJoiner headers = new StringJoiner(", ", "[", "]");
        for (Header header : each.headers()) {
            headers.add("[\"" + header.key() + "\", " + hex(header.value()) + "]");
        }
        return String.format(
            "{\"kind\": \"record\", \"topic\": \"%s\", \"partition\": %d, \"offset\": %d, \"timestamp\": %d, "
                + "\"key\": %s, \"value\": %s, \"headers\": %s}",
            each.topic(), each.partition(), each.offset(), each.timestamp(),
            hex(each.key()), digest(each.value()), headers);
    }

    private static String hex(byte[] data) {
        return data == null ? "null" : "\"" + HexFormat.of().formatHex(data) + "\"";
    }

    private static String digest(byte[] data) throws Exception {
        if (data == null) {
            return "null";
        }
        byte[] sum = MessageDigest.getInstance("SHA-256").digest(data);
        return "\"" + data.length + ":" + HexFormat.of().formatHex(sum) + "\"";
    }
}
