import io.confluent.parallelconsumer.ParallelConsumerOptions;
import io.confluent.parallelconsumer.ParallelConsumerOptions.ProcessingOrder;
import io.confluent.parallelconsumer.ParallelStreamProcessor;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * Works on records with Confluent's parallel-consumer, in order by key:
 * ParallelWork BOOTSTRAP TOPIC GROUP CONCURRENCY LOG WORK_MS ENTRIES. It ends when its stdin is closed.
 */
public final class ParallelWork {
    private ParallelWork() {
    }

    public static void main(String[] arguments) throws Exception {
        WorkLog log = new WorkLog(arguments[4], arguments[5], arguments[6]);
        Map<String, Object> settings = Map.of(
            "bootstrap.servers", arguments[0],
            "group.id", arguments[2],
            "auto.offset.reset", "earliest",
            "enable.auto.commit", false,
            "session.timeout.ms", 6000,
            "heartbeat.interval.ms", 500,
            "key.deserializer", StringDeserializer.class,  // arrays of bytes would not be equal as keys
            "value.deserializer", ByteArrayDeserializer.class);
        ParallelConsumerOptions<String, byte[]> options = ParallelConsumerOptions.<String, byte[]>builder()
            .ordering(ProcessingOrder.KEY)
            .commitInterval(Duration.ofMillis(500))
            .initialLoadFactor(100)  // it comes to that by itself, in a minute or so
            .maxConcurrency(Integer.parseInt(arguments[3]))
            .consumer(new KafkaConsumer<>(settings))
            .build();
        ParallelStreamProcessor<String, byte[]> processor = ParallelStreamProcessor.createEosStreamProcessor(options);
        processor.subscribe(List.of(arguments[1]));
        processor.poll(context -> log.handle(context.offset(), context.key().getBytes(StandardCharsets.US_ASCII)));
        System.in.read();
        processor.closeDrainFirst();
    }
}
