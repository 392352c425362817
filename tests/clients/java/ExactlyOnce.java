import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;

/**
 * Kafka Streams with exactly_once_v2: copies a topic to another one, and counts its keys in a store with a changelog, into a third.
 * Runs until a line comes; --bootstrap, --application, --from, --to, --counts, --state FOLDER.
 */
public final class ExactlyOnce {
    private static final int COMMIT_INTERVAL_MS = 200;
    private static final int CLOSE_SECONDS = 60;

    private ExactlyOnce() {
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, String> given = new HashMap<>();
        for (int at = 0; at < arguments.length; at += 2) {
            given.put(arguments[at].substring(2), arguments[at + 1]);
        }
        StreamsBuilder builder = new StreamsBuilder();
        KStream<String, String> records =
            builder.stream(given.get("from"), Consumed.with(Serdes.String(), Serdes.String()));
        records.to(given.get("to"), Produced.with(Serdes.String(), Serdes.String()));
        records.groupByKey(Grouped.with(Serdes.String(), Serdes.String()))
            .count(Materialized.with(Serdes.String(), Serdes.Long()))
            .toStream()
            .mapValues(number -> Long.toString(number))
            .to(given.get("counts"), Produced.with(Serdes.String(), Serdes.String()));
        CountDownLatch failed = new CountDownLatch(1);
        try (KafkaStreams streams = new KafkaStreams(builder.build(), settings(given))) {
            streams.setStateListener((now, before) -> {
                System.out.println(now);
                if (now == KafkaStreams.State.ERROR) {
                    failed.countDown();
                }
            });
            streams.start();
            while (System.in.available() == 0 && failed.getCount() > 0) {
                Thread.sleep(50);
            }
            streams.close(Duration.ofSeconds(CLOSE_SECONDS));
        }
        System.exit((int) (1 - failed.getCount()));
    }

    private static Properties settings(Map<String, String> given) {
        Properties settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, given.get("application"));
        settings.put(StreamsConfig.CLIENT_ID_CONFIG, given.get("application"));
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, given.get("bootstrap"));
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, COMMIT_INTERVAL_MS);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, given.get("state"));
        settings.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, 1);
        settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 2);
        settings.put(StreamsConfig.consumerPrefix("auto.offset.reset"), "earliest");
        settings.put(StreamsConfig.consumerPrefix("fetch.max.wait.ms"), 100);
        return settings;
    }
}
